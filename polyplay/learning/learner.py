"""What a learner is to do, one update of it, what it counts and saves."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.common import checkpoint, tree
from polyplay.common.context import WorkerContext
from polyplay.common.errors import NotFinite
from polyplay.common.files import JsonLines, LogWrites, refusal_text
from polyplay.common.schedule import SchedulePoint
from polyplay.common.tree import Batch
from polyplay.learning.epochs import run_epochs
from polyplay.learning.gradient_parts import GradientParts, parts_of
from polyplay.learning.losses.base import LossOutput
from polyplay.learning.recent_rows import AuxiliaryRows
from polyplay.learning.save_marks import SaveMarks
from polyplay.learning.spec import LearnerSpec
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.device import enter_device, to_device, to_floats, to_host
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Policy, TapedPolicy
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams
from polyplay.weights.update import Sums, check_leaving


def unroll_before_last(policy: Policy, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
    """As policy.unroll(batch, state), but of rows 0..T-1: row T has the value that was stored while acting, and 0 for
    its log-probability and entropy, which no loss uses. tape: of acting in these rows with the same weights.
    """
    rows = tree.map(lambda x: x[:-1], batch)
    out = policy.unroll(rows, state) if tape is None else cast("TapedPolicy", policy).unroll(rows, state, tape=tape)
    last = {"value": batch["value"][-1:], "logp": torch.zeros_like(batch["value"][-1:])}
    last["entropy"] = last["logp"]
    return {k: torch.cat([v, last[k]]) if k in last else v for k, v in out.items()}


WritePart = Callable[[checkpoint.CheckpointPart], None]  # what else belongs into a worker's part of a checkpoint


class Learner:
    """One replica of the learner: takes batches, counts, saves itself."""

    def __init__(self, ctx: WorkerContext, spec: LearnerSpec):
        self.ctx, self.spec = ctx, spec
        self.device = enter_device(ctx.device)
        self.policy = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
        self.vector = spec.update.vector(ctx, self.policy)
        self.update = spec.update.bind(ctx, self.vector)
        self.target_net: Policy | None = None
        self.target_params: FlatParams | None = None
        if spec.target:
            self.target_net = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
            self.target_params = FlatParams(self.target_net)
        self.follow()
        self.counts = self.update.counts
        self.version, self.learnt, self.done, self.saving, self.now = 0, 0.0, False, False, 1.0
        self.priority: Tensor | None = None  # of the rows of the last update, where its loss has them
        self.parts: GradientParts | Literal[False] | None = None  # None: not decided yet
        self.settle_until = self._settle_until()  # agent steps learnt from before which the rate is 0 (nets.surgery)
        self.auxiliary = AuxiliaryRows(self.policy, self.device)
        self.saver = ctx.index == 0 or not spec.update.apart
        self.saved, self.marks = -1, SaveMarks(ctx)  # saved: the update that was saved last
        self.scheduled = dict[str, SchedulePoint]()  # by hyperparameter, the point that holds
        self.extra_parts: WritePart | None = lambda part: None  # saved too where a run failed; None: nothing is saved
        self.saves = self.agreed = ctx.control.saves  # the last save made, and the last that all replicas know of
        self._trace: JsonLines | None = None
        self._writes = LogWrites(lambda text: ctx.say("warning", text))
        if ctx.resume is not None and self.counts.fresh:
            self._load()
        elif self.counts.fresh and not ctx.incarnation % 1000:
            self._save_initial()
        self.counts.begin(self.version, self.learnt)
        if spec.among is not None:
            spec.among.learnt[spec.agent] = self.learnt
            self.extra_parts = None  # one agent alone makes no checkpoint
        while not self.counts.ready:
            ctx.turn()
            time.sleep(0.01)
        self.version, self.learnt = self.counts.version, self.counts.learnt
        if self.target_params is not None:
            self._set_target(self._saved_target())
        self.target_copies = self._copies_due()
        if ctx.trace and ctx.index == 0 and ctx.directory is not None:
            whose = f"-{spec.agent}" if spec.agent else ""
            self._trace = JsonLines(ctx.directory / f"updates{whose}.jsonl")
        self.follow()
        ctx.rescue = self.rescue

    def _settle_until(self) -> float:
        """As the checkpoint has it that the run goes on from; where that was removed since, as the newest has it."""
        path, directory = self.ctx.resume, self.ctx.directory
        if path is None:
            return 0.0
        if not path.exists() and directory is not None:
            path = checkpoint.everything(directory)[-1]
        saved = checkpoint.OpenCheckpoint(path).json(f"agents/{self.spec.agent}/learner")
        return float(saved.get("settle_until", 0.0))

    def follow(self) -> None:
        """Have the network take over the hyperparameters that are parts of it, as they are now."""
        if (follow := getattr(self.policy, "follow", None)) is not None:
            follow(self.spec.hyperparameters.all())

    def adjust(self) -> None:
        """Take over what changes as the run goes on: before an update, the same for all its passes."""
        self.now = self.remaining()
        if "left" in self.spec.hyperparameters.all():
            self.spec.hyperparameters.set("left", self.now)
        self.keep_to_schedules()
        self.follow()

    def keep_to_schedules(self) -> None:
        """Give hyperparameters the values that are scheduled for now; worker 0 tells of each that is new."""
        total, before = self.spec.total, self.scheduled
        self.scheduled = self.spec.hyperparameters.keep_to_schedules(self.progress, total)
        for name, point in self.scheduled.items():
            if before.get(name) != point and self.ctx.index == 0:
                self.ctx.say("note", f"from {point.steps(total):,.0f} agent steps on: {name} {point.value:g}")

    def remaining(self) -> float:
        """The part of the run that is left."""
        return max(0.0, 1.0 - self.progress / self.spec.total)

    @property
    def progress(self) -> float:
        """Agent steps learnt from, by all agents of the run."""
        among = self.spec.among
        return self.learnt if among is None else among.together

    @property
    def over(self) -> bool:
        """Whether the run, or this part of it, is at its end."""
        return self.progress >= min(self.spec.total, self.ctx.control.until)

    def rate(self, left: float | None = None) -> float:
        if self.progress < self.settle_until:
            return 0.0
        left = self.remaining() if left is None else left
        dropped = 0.1 ** sum(self.version >= drop for drop in self.spec.drops)
        return self.spec.hyperparameters.learning_rate * dropped * (left if self.spec.anneal == "linear" else 1.0)

    def _copies_due(self) -> int:
        """Copies to the target network so far; where weights are shared, others' updates count too."""
        return self.version // self.spec.target if self.spec.target else 0

    def step(self, rows: Batch, state: Batch, tape: Tape | None = None) -> Iterator[None]:
        """One update from rows [T+1, B] and the state before them, NumPy arrays (obs may be the device's tensors); with
        `passes` several. tape: of acting with the present weights, where nothing is to be computed twice.
        """
        batch, state = to_device(rows, self.device), to_device(state, self.device)
        self.adjust()
        if self.spec.passes is not None:
            yield from run_epochs(self, batch, state, rows["version"], (self.ctx.seed, self.ctx.index, self.version))
            return

        with self.ctx.counters.timed("learn"):
            batch |= self.auxiliary.draw(rows, batch, state, (self.ctx.seed, self.ctx.index, self.version))
            acted = self.spec.acted
            out = unroll_before_last(self.policy, batch, state, tape) if acted else self.policy.unroll(batch, state)
            if self.spec.same:
                batch["value"] = out["value"].detach()
            scored = self.spec.loss(out, batch, self.spec.hyperparameters)
        valid = ~rows["first"][1:]
        versions, learnt = rows["version"][:-1][valid], float(np.count_nonzero(valid))
        yield from self.apply_gradient(scored, batch, versions, learnt, batch)

    def score(self, rows: Batch, state: Batch) -> LossOutput:
        """The loss of rows [T+1, B] by the present weights; for `run_epochs`."""
        with self.ctx.counters.timed("learn"):
            return self.spec.loss(self.policy.unroll(rows, state), rows, self.spec.hyperparameters)

    def step_on_sample(self, item: Batch, fresh: float = 0.0, observe: bool = False) -> Iterator[None]:
        """One update from a sample of a replay; its `priority` is then how surprising each was. fresh: agent steps
        acted since the last update, which are counted as learnt: how often they are drawn is the replay's ratio.
        observe: running statistics learn from it first, where they didn't from what was acted.
        """
        self.counts.newest()  # also where it acted with others: a gradient is of the newest weights
        batch = to_device(item, self.device)
        if observe:
            self.observe({"obs": batch["obs"]})
        self.now = self.remaining()
        self.keep_to_schedules()

        assert self.spec.outputs is not None
        with self.ctx.counters.timed("learn"):
            scored = self._score_sample(batch)
        self.priority = scored.priority
        yield from self.apply_gradient(scored, batch, item["version"].ravel(), fresh, None)
        if self.parts:
            self.parts.refresh()
        if self._copies_due() > self.target_copies:
            self.target_copies = self._copies_due()
            self._set_target()

    def divide(self, rows: int) -> GradientParts | None:
        """The threads that divide samples of so many transitions, if several do; decided once."""
        if self.parts is None:
            n = parts_of(self, rows)
            self.parts = GradientParts(self, n) if n > 1 else False
        return self.parts or None

    def begin(self, item: Batch) -> None:
        """Begin with the sample that step_on_sample gets next, where several threads divide it."""
        if self.parts:
            self.parts.begin(to_device(item, self.device), self.version)

    def _score_sample(self, batch: Batch) -> LossOutput:
        """The loss of a sample; by several threads, it comes with its gradient."""
        if parts := self.divide(len(batch["action"])):
            return parts.score(batch, self.version)
        assert self.spec.outputs is not None
        out = self.spec.outputs(self.policy, self.target_net, batch, batch.get("state"), key=self.version)
        return self.spec.loss(out, batch, self.spec.hyperparameters)

    def observe(self, rows: Batch) -> None:
        """Running statistics learn from what is acted [T+1, B], before it is drawn; the target network has the same."""
        if getattr(self.policy, "inputs", None) is None or not hasattr(self.policy, "observe"):
            return
        if self.parts:
            self.parts.settle()
        self.policy.observe(to_device(rows, self.device))
        if self.target_params is not None:
            self.target_params.flat[self.target_params.weights :].copy_(self.vector.flat[self.vector.weights :])

    def priorities(self) -> np.ndarray | None:
        """How surprising each item of the last update was, where its loss has that."""
        return None if self.priority is None else to_host(self.priority)

    def _set_target(self, saved: dict[str, np.ndarray] | None = None) -> None:
        """The target network becomes the saved one, or the network as it is now; these weights will stay."""
        assert self.target_net is not None
        assert self.target_params is not None
        if saved is not None:
            checkpoint.load_into(self.target_net, saved)
        else:
            self.counts.newest()
            self.target_params.flat.copy_(self.vector.flat)
        if (hold := getattr(self.target_net, "hold", None)) is not None:
            hold()

    def _saved_target(self) -> dict[str, np.ndarray] | None:
        """Where a run goes on; not for who takes a lost one's place: the network is not as it was made then."""
        if self.ctx.resume is None or self.ctx.incarnation % 1000:
            return None
        return checkpoint.open_checkpoint(self.ctx.resume).arrays(f"agents/{self.spec.agent}/target")

    def apply_gradient(
        self, scored: LossOutput, rows: Batch, versions: np.ndarray, learnt: float, observe: Batch | None
    ) -> Generator[None, None, float]:
        """One update along the gradient of a loss, and its count. versions: of the weights that acted, a row each;
        learnt: agent steps to count; observe: rows to learn running statistics from; rows: saved if it is not finite.
        Gives the approximate KL divergence from the policy that acted, a mean over replicas, where passes end by it.
        """
        if self.update.gate is not None and not self.update.gate(float(scored.loss.detach())):
            yield from self.rest(learnt)
            return 0.0
        with self.ctx.counters.timed("learn"):
            if scored.loss.requires_grad:  # else its gradient is there already
                self.vector.zero_grad()
                scored.loss.backward()
            if observe is not None and hasattr(self.policy, "observe"):
                self.policy.observe(observe)
            rate = self.rate(self.now)
        watched = self.spec.passes is not None and self.spec.passes.target_kl > 0.0
        kl = float(scored.metrics["approx_kl"]) if watched else 0.0
        before, waited = time.perf_counter(), self.update.waited
        norm, total = yield from self.update(rate, self._sums(learnt, kl))
        check_leaving(total)
        waited = self.update.waited - waited
        self.ctx.counters.add("wait", waited)
        self.ctx.counters.add("learn", time.perf_counter() - before - waited)
        loss = float(scored.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(self._save_batch(rows, loss, norm))
        self._count(versions, scored.metrics, loss, norm, rate, total)
        return float(total[3] / total[4])

    def rest(self, steps: float) -> Generator[None, None, float]:
        """No update: only count agent steps, with what replicas have to agree on. Gives the mean of their steps."""
        total = yield from self.update.agree(self._sums(steps, 0.0))
        check_leaving(total)
        self.counts.rest(total[0])
        self.learnt = self.counts.learnt
        self._set_learnt()
        self._heed(total)
        return float(total[0] / total[4])

    def leave(self) -> Generator[None, None, None]:
        """No update any more: have the other replicas drop theirs. Raises Leaving, as it does in each of them."""
        self.ctx.say("caution", "a slow rollout is dropped: lanes begin anew when the run is resumed")
        check_leaving((yield from self.update.agree(self._sums(0.0, 0.0, leaving=1.0))))

    def _sums(self, learnt: float, kl: float, leaving: float = 0.0) -> Sums:
        first, control = self.ctx.index == 0, self.ctx.control
        finishing = (first or self.spec.update.apart) * control.finishing  # where all are equal, one counts for all
        return np.array([learnt, first * control.saves, finishing, kl, 1.0, leaving], np.float64)

    def _heed(self, sums: Sums) -> None:
        self.agreed = int(sums[1])
        self.saving = self.agreed > self.saves
        self.done = bool(sums[2]) or self.over

    def _set_learnt(self) -> None:
        self.ctx.counters.set("learnt", self.learnt)
        if self.spec.among is not None:
            self.spec.among.learnt[self.spec.agent] = self.learnt

    def heed(self) -> None:
        """Look whether to save or to end, while nothing comes to learn from."""
        self._heed(self._sums(0.0, 0.0))

    def _count(
        self, versions: np.ndarray, metrics: Mapping[str, Tensor], loss: float, norm: float, rate: float, sums: Sums
    ) -> None:
        lags = self.counts.add(sums[0]) - versions
        self.version, self.learnt = self.counts.version, self.counts.learnt
        counters = self.ctx.counters
        counters.lag(lags)
        counters.set("updates", self.version - self.counts.begun)
        self._set_learnt()
        if self.version % self.spec.report == 0:
            own = self.spec.hyperparameters.scheduled | {"grad_norm": norm, "learning_rate": rate}
            counters.losses(to_floats(metrics) | own)
        show = self.ctx.control.show
        if show is not None and show.asked and self.ctx.index == self.spec.agent == 0:
            show.answer(self.vector, self.version)
        if (trace := self._trace) is not None:
            worst, mean = (int(lags.max()), float(lags.mean())) if lags.size else (0, 0.0)
            row = {"update": self.version, "loss": loss, "grad_norm": norm, "lag_mean": mean, "lag_max": worst}
            self._writes.attempt("updates.jsonl", lambda: trace.write(row))
        self._heed(sums)

    def _save_batch(self, rows: Batch, loss: float, norm: float) -> str:
        where = "nowhere (no run directory)"
        if self.ctx.directory is not None:
            whose = f"agent-{self.spec.agent}-" if self.spec.agent else ""
            path = self.ctx.directory / f"not-finite-{whose}{self.version}-{self.ctx.index}.safetensors"
            try:
                checkpoint.write_arrays(path, {k: to_host(v) for k, v in tree.leaves(rows)})
                where = str(path)
            except OSError as e:
                where = f"nowhere ({refusal_text(e)})"
        return (
            f"update {self.version}: loss {loss}, gradient norm {norm}; the batch was saved to {where}. "
            "A NaN in it from the environment is the usual cause; else lower --learning-rate or --max-grad-norm"
        )

    # ------------------------------------------------------------------------------------------------ saving

    def still(self) -> AbstractContextManager[None]:
        """While in it, nobody changes the weights that this replica saves, where others do otherwise (server)."""
        return self.update.still() if self.saver else contextlib.nullcontext()

    def save(self, more: WritePart = lambda part: None, at: int | None = None, number: int | None = None) -> None:
        """Write this replica's part of a checkpoint, and `more` into it; the main process completes it when all parts
        are there. at: the update whose checkpoint it is, where others write theirs under that number too. number: of a
        checkpoint of several agents, each at an update of its own.
        """
        self.marks.wait(number if number is not None else at if at is not None else self.counts.newest())
        with self.still():
            self._save(more, at, number)

    def _save_initial(self) -> None:
        """The checkpoint of update 0: from the moment that a run begins, it can go on."""
        ctx = self.ctx
        if ctx.directory is None or not self.saver:
            return
        try:
            if ctx.index == 0:
                self._write(checkpoint.CheckpointPart(ctx.directory, 0), f"agents/{self.spec.agent}")
            self.marks.tell(None)
        except OSError as e:
            self.marks.tell(None, failed=True)
            ctx.say("unsaved", f"checkpoint of update 0: {refusal_text(e)}")

    def rescue(self) -> None:
        """Save the last update where the run has failed, if the weights are whole; whoever acts begins anew then."""
        version = self.counts.newest()
        if self.extra_parts is None or not self.update.whole or version in (self.saved, self.counts.begun):
            return
        with self.still():
            part = checkpoint.CheckpointPart(cast("Path", self.ctx.directory), version)
            self.version, self.learnt = version, self.counts.learnt
            self._write(part, f"agents/{self.spec.agent}")
            self.extra_parts(part)
            self.saved = version
            self.marks.tell(version)

    def _save(self, more: WritePart, at: int | None, number: int | None) -> None:
        ctx, version = self.ctx, self.counts.newest()
        self.version, self.learnt = version if at is None else at, self.counts.learnt
        self.saves, self.saved, self.saving = self.agreed, self.version, False
        number = self.version if number is None else number
        if ctx.directory is None or not self.saver:
            return
        with ctx.counters.timed("wait"):
            try:
                part = checkpoint.CheckpointPart(ctx.directory, number)
                if ctx.index == 0:
                    self._write(part, f"agents/{self.spec.agent}")
                more(part)
                self.marks.tell(number)
            except OSError as e:
                self.marks.tell(number, failed=True)
                ctx.say("unsaved", f"checkpoint of update {number}: {refusal_text(e)}")

    def _write(self, part: checkpoint.CheckpointPart, agent: str) -> None:
        if not self.vector.finite():
            raise NotFinite(
                f"update {self.version}: weights are not finite, and not saved; a smaller --learning-rate helps"
            )
        part.arrays(f"{agent}/policy", _arrays(self.policy.state_dict()))
        part.arrays(f"{agent}/optimizer", _arrays(optimizers.optimizer_state(self.update.optimizer)))
        if self.target_net is not None:
            part.arrays(f"{agent}/target", _arrays(self.target_net.state_dict()))
        counts = {"version": self.version, "learnt": self.learnt, **self.counts.state()}
        counts |= {"settle_until": self.settle_until} if self.settle_until else {}
        hyper = self.spec.hyperparameters
        values = {"hyperparameters": hyper.all(), "configured": hyper.configured, "scheduled": [*hyper.scheduled]}
        part.json(f"{agent}/learner", {**counts, **values})

    def _load(self) -> None:
        found = checkpoint.open_checkpoint(self.ctx.resume)
        agent = f"agents/{self.spec.agent}"
        checkpoint.load_into(self.policy, found.arrays(f"{agent}/policy"))
        statistics = found.arrays(f"{agent}/optimizer")  # none before the first update
        if statistics:
            optimizers.load_state(self.update.optimizer, {k: torch.as_tensor(v) for k, v in statistics.items()})
        saved = found.json(f"{agent}/learner")
        self.version, self.learnt = int(saved["version"]), float(saved["learnt"])
        self.counts.load_state(saved)
        values = {k: v for k, v in saved["hyperparameters"].items() if k not in saved.get("scheduled", ())}
        self.spec.hyperparameters.restore(values, saved.get("configured"))


def _arrays(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {k: np.asarray(to_host(v)) for k, v in state.items()}
