"""Makes updates in one thread by a compiled function or a CUDA graph, which is faster than eager updates."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import Closed, Leaving
from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.learning.learner import Epochs, Learner, Minibatches, Runner
from polyplay.learning.losses import ActorCriticLoss, Hyper, LossOutput
from polyplay.learning.packages import BackgroundCall, Compiled, CompileJob, Package, UpdateThread, why_failed
from polyplay.learning.pure_update import VECTORS, UpdateFunction
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets.device import StaticCall, signature_of, synchronize, to_device
from polyplay.nets.layers import Tape
from polyplay.weights.optimizers import load_state, optimizer_state
from polyplay.weights.update import Local, clip_gradient

WAIT = 10.0  # seconds of learning before a run compiles its updates: shorter runs would not gain
LEFT = 20.0  # least seconds that a run must have left, at its speed so far
LOOK = 0.25  # seconds between checks whether the compiler is done
LONG = 0.05  # seconds of the longest eager update to compile; longer updates would hardly gain
GAIN = 0.9  # largest compiled time ÷ eager time of an update that is used compiled
NEAR, NEAR_HALF = 1e-3, 1e-2  # largest relative difference of a compiled gradient: in float32, in bfloat16
ROUNDED = 1e-6  # additional allowed difference of an optimizer step, relative to the weights
SHARE = 0.25  # compile a kind of batch if it has at least this fraction of the run's updates
KINDS = 4  # most kinds of batches for which packages are compiled, if a run waits for packages
BEGUN = 16  # most updates in a row that another thread makes while this one acts
OFTEN = 3  # updates of one kind before it is captured; some sources give batches of many sizes


def compile_updates(learner: Learner) -> None:
    """Let the learner make its updates by CUDA graphs on a GPU, or by compiled functions on a CPU in float32."""
    how, far = learner.ctx.control.compile, learner.device.type != "cpu"
    if how == "off" or (how == "auto" and not far and any(isinstance(m, nn.Conv2d) for m in learner.policy.modules())):
        return
    if learner.policy.bf16 and not far:
        if how == "on" and learner.ctx.index == 0:
            learner.ctx.log("caution", "updates stay eager: they are computed in bfloat16")
        return
    if not learner.run.compile():
        learner.run = CompiledRunner(learner)


def pays(learner: Learner, started: float, left: float, seconds: float) -> bool:
    """Return whether compiling would save time: eager updates must be short, and the rest of the run long. `seconds` is
    the time of an eager update. At the time `started` (perf_counter), the fraction `left` of the run remained.
    """
    passed, remaining = time.perf_counter() - started, learner.remaining
    rest = passed * remaining / max(left - remaining, 1e-9)
    return seconds < LONG and passed > WAIT and rest > LEFT


def wait_for(package: Package, learner: Learner) -> None:
    """Wait until a package exists or has failed to compile. Add the waiting time to `learner.update.waited`."""
    before = time.perf_counter()
    while not package.done:
        learner.ctx.turn()
        time.sleep(0.05)
        package.begin()  # if another run stopped compiling this package
    learner.update.waited += time.perf_counter() - before


def compile_job(learner: Learner, function: UpdateFunction, given: Sequence[Tensor]) -> CompileJob:
    """Return the job that compiles a learner's update, for arguments with the shapes of `given`."""
    loss, policy = learner.spec.loss, learner.policy
    parts = [loss, *policy.modules(), *([loss.loss] if isinstance(loss, WithAuxiliary) else [])]
    modules = {of.__module__ for x in parts for of in type(x).__mro__}
    own = {name for name in modules if name.split(".")[0] not in ("polyplay", "torch", *sys.stdlib_module_names)}
    return CompileJob(function, tuple((tuple(x.shape), x.dtype) for x in given), tuple(sorted(own)))


@dataclass
class BatchKind:
    """Batches whose tensors have the same paths, shapes and types. They share one package (compiled function)."""

    paths: tuple[str, ...]  # of the batch's tensors; for a minibatch, of its rollout's tensors
    minibatch: bool
    updates: int = 0
    seconds: float = math.inf  # shortest time of an eager update
    package: Package | None = None
    call: Compiled | StaticCall | None = None


class CompiledRunner(Runner):
    """Makes updates by packages: compiled functions on a CPU, CUDA graphs on a GPU. Updates are eager until a package
    exists for the kind of batch. Before its first use, a package must give the gradient of an eager update of the same
    batch. Without --compile on, it must also be faster. If any of this fails, the log says so, and all later updates
    are eager.
    """

    def __init__(self, learner: Learner):
        run = learner.run
        super().__init__(run.policy, run.target, run.loss, run.vector, run.seed)
        self.learner, self.hyper, self.waits = learner, run.hyper, learner.ctx.control.compile == "on"
        of_target = next((part.vector for part in learner.parts if part.vector is not None), None)
        flat, at, update = run.vector.flat.detach(), run.vector.weights, learner.update
        target = flat.new_zeros(0) if of_target is None else of_target.flat.detach()
        # whether the compiled function also makes the optimizer's step: if nothing is decided between loss and step
        spec = learner.spec.update
        self.steps = type(spec) is Local and spec.optim.pure and not any(part.admit for part in learner.parts)
        state = [*optimizer_state(update.optimizer).values()] if self.steps else []
        self.values = np.zeros(len(run.hyper) + self.steps, np.float32)
        self.own = [flat[:at], flat[at:], target, run.vector.grad, *state, torch.from_numpy(self.values)]
        self.captures = learner.device.type != "cpu"  # whether to capture CUDA graphs
        self.kinds, self.updates = dict[Any, BatchKind](), 0  # number of all eager updates
        self.over = self.at_once = False  # whether updates stay eager; whether this update is repeated compiled
        self.started, self.left, self.looked = time.perf_counter(), learner.remaining, 0.0
        self.filled: Hyper = {}  # hyperparameters that `values` holds
        self.parts: Minibatches | None = None  # rollout of the current minibatches
        self.rollout: Any = None  # kind of that rollout; `leaves`: its tensors
        self.leaves: list[Tensor] = []
        self.index, self.inside = np.zeros(0, np.int64), np.zeros(0, bool)  # a minibatch's indices; False for padding
        own = run.loss.loss if isinstance(run.loss, WithAuxiliary) else run.loss
        # Polyplay's losses ignore rows that are not `valid`; a user's loss may count all rows
        self.pads = isinstance(own, ActorCriticLoss) and type(own).__module__.startswith("polyplay.")
        # whether another thread may make updates while this one acts: if it has a core, and if timing already decides
        # which updates are compiled (--compile auto)
        fits = self.steps and not (run.policy.observes or run.policy.settles or self.captures)
        self.beside = fits and cores() > 1 and learner.ctx.control.compile == "auto"
        self.begun: BackgroundCall | None = None
        self.thread: UpdateThread | None = None  # the thread that makes all calls
        self.taken = self.asked = 0  # numbers of updates taken over, and started
        self.calls = dict[Any, BackgroundCall]()  # by shapes and types
        self.places = dict[Any, list[list[np.ndarray]]]()  # arrays of each call's batch

    def __call__(self, batch: Batch, state: Batch, version: int, tape: Tape | None = None) -> LossOutput:
        if self.begun is not None:
            try:
                return self._take(self.begun)
            except RuntimeError as e:
                self._stay_eager(why_failed(e))
                batch, state = to_device(batch, self.learner.device), to_device(state, self.learner.device)
        if self.over or tape is not None or not self._may(version):
            return super().__call__(batch, state, version, tape)
        batch = self.with_noise(batch, version) if self.draws else batch
        kind, leaves = self._kind_of({"batch": batch, "state": state})
        if kind.call:
            return self._compiled(kind.call, leaves)
        return self._eager(partial(self.score, batch, state), kind, leaves)

    def part(self, parts: Minibatches, order: np.ndarray, at: slice, version: int) -> LossOutput:
        if self.over or self.draws or not self._may(version):
            return super().part(parts, order, at, version)
        if parts is not self.parts:
            self._take_up(parts)
        places, most = order[at], len(self.index)
        n = len(places)
        if n < most and (parts.whole or not self.pads):
            return super().part(parts, order, at, version)
        self.index[:n], self.inside[:n], self.inside[n:] = places, True, False
        if self.rollout.call:
            return self._compiled(self.rollout.call, self.leaves)
        return self._eager(lambda: self.score(*parts.take(order, at)), self.rollout, self.leaves)

    def begin(self, items: list[Batch], version: int) -> None:
        """Start updates from the batches `items` in another thread. The updates change copies of the weights."""
        first: BackgroundCall | None = None
        begun = 0
        for k, item in enumerate(items if not self.over else ()):
            batch = {**item, **self.noise_of(item, version + k)} if self.draws else item
            given = {"batch": batch, "state": batch.get("state", {})}
            leaves = [x for _, x in tree.leaves(given)]
            kind = tuple((x.shape, x.dtype) for x in leaves)
            if (call := self.calls.get(kind)) is None and (call := self._background(given)) is not None:
                self.places[kind] = [[x.numpy() for x in each[len(self.own) :]] for each in call.given]
            if call is None or (first is not None and call is not first):
                break
            first = self.calls[kind] = call
            for place, x in zip(self.places[kind][k], leaves, strict=True):
                np.copyto(place, x)
            begun += 1
        if first is not None:
            self._fill()
            first.start(begun)
            self.begun, self.taken, self.asked = first, 0, begun

    def _background(self, given: Batch) -> BackgroundCall | None:
        """Return a call that updates from batches like `given` in another thread, or None if that is impossible."""
        kind, leaves = self._kind_of(to_device(given, self.learner.device))
        written = [*self.own[:2], *self.own[VECTORS:-1]]
        weights, buffers, *state = mine = [x.clone() for x in written]
        own = [weights, buffers, *self.own[2:VECTORS], *state, self.own[-1]]
        if kind.call is None:
            return None
        try:
            made = cast("Compiled", kind.call)([torch.clone(x) for x in (*own, *leaves)])
            calls = [[*own, *map(torch.clone, leaves)] for _ in range(BEGUN)]
            results = [[x.clone() for x in made] for _ in range(BEGUN)]
            copies = list(zip(mine, written, strict=True))
            self.thread = self.thread or UpdateThread()
            return BackgroundCall(cast("Package", kind.package).path, calls, results, copies, self.thread)
        except Exception as e:
            self.begins = 0
            self._say("note", f"updates are not made beside acting: {why_failed(e)}")
            return None

    def _take(self, call: BackgroundCall) -> LossOutput:
        """Return the results of the oldest update that `begin` started. After the last of these updates, copy the new
        weights to the learner. Raises RuntimeError if an update failed, and leaves the learner's weights unchanged.
        """
        self.begun = None
        call.wait()
        results, self.taken = call.results[self.taken], self.taken + 1
        if self.taken < self.asked:
            self.begun = call
        else:
            for made, own in call.copies:
                own.copy_(made)
        return self._scored(*results)

    def _may(self, version: int) -> bool:
        """Return whether the next update may use a package. A run that repeats an earlier run uses packages for the
        same updates as the earlier run.
        """
        repeats = self.learner.ctx.hooks.repeats
        self.waits = self.waits or repeats is not None
        return repeats is None or repeats(version + 1)

    def _take_up(self, parts: Minibatches) -> None:
        passes = cast("Epochs", self.learner.spec.passes)
        size = -(-(parts.lanes if parts.whole else parts.valid.size) // passes.minibatches)
        if size != len(self.index):
            self.index, self.inside = np.zeros(size, np.int64), np.zeros(size, bool)
        self.rollout, leaves = self._kind_of({"batch": parts.rows, "state": parts.state}, minibatch=True)
        if isinstance(self.rollout.call, StaticCall):
            leaves = self.rollout.call.fill(leaves, len(self.own))  # copy the rollout once for all minibatches
        self.leaves = [*leaves, torch.from_numpy(self.index), torch.from_numpy(self.inside)]
        self.parts = parts

    def _kind_of(self, given: Batch, minibatch: bool = False) -> tuple[BatchKind, list[Tensor]]:
        (paths, shapes), leaves = signature_of(given)
        name = minibatch, paths, shapes
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = BatchKind(paths, minibatch)
        return kind, leaves

    def _compiled(
        self, call: Compiled | StaticCall, leaves: list[Tensor], own: list[Tensor] | None = None
    ) -> LossOutput:
        self._fill()
        return self._scored(*call([*(own or self.own), *leaves]))

    def _fill(self) -> None:
        """Write the current hyperparameters and learning rate to `self.values`, an argument of the package."""
        if self.hyper is not self.filled:
            self.values[: len(self.hyper)], self.filled = list(self.hyper.values()), self.hyper
        if self.steps:
            self.values[-1] = self.rate = self.learner.rate()

    def _scored(self, found: Tensor, *priority: Tensor) -> LossOutput:
        numbers: list[Any] = found.tolist()  # one wait for the device; reading items one by one takes 5 µs each
        self.norm = numbers[-1] if self.steps else None
        return LossOutput(numbers[0], dict(zip(self.loss.metrics, numbers[1:], strict=False)), *priority)

    def _eager(self, eager: Callable[[], LossOutput], kind: BatchKind, leaves: list[Tensor]) -> LossOutput:
        """Make an update eagerly, then look for the package for its kind of batch."""
        # repeat the update by the package, so that a run repeats bitwise if its packages exist or it waits for them
        self.at_once = (self.waits or not kind.updates) and not self.captures
        buffers, before = self.own[1].clone(), time.perf_counter()
        scored = eager()
        synchronize(self.learner.device)
        now = time.perf_counter()
        kind.seconds, kind.updates, self.updates = min(kind.seconds, now - before), kind.updates + 1, self.updates + 1
        if self.waits or now - self.looked > LOOK:
            self.looked = now
            try:
                self._look(kind, leaves, buffers)
            except (Closed, Leaving):
                raise
            except Exception as e:
                self._stay_eager(why_failed(e))
        if kind.call is None or not self.at_once:
            return scored
        self.own[1].copy_(buffers)
        return self._compiled(kind.call, leaves)

    def _look(self, kind: BatchKind, leaves: list[Tensor], buffers: Tensor) -> None:
        """Compile a package for the kind of batch, load it, or capture a CUDA graph, whichever is due. `buffers` are
        the network's buffers before the eager update.
        """
        package, rare = kind.package, kind.updates < SHARE * self.updates
        if self.captures:
            if kind.updates >= OFTEN and not rare:
                function = self._function(kind)()
                given = [*self.own, *leaves]
                self._change_over(kind, lambda: StaticCall(function, given, len(self.own) - 1), leaves, buffers)
            return
        if package is None:
            enough = sum(k.package is not None for k in self.kinds.values()) == KINDS
            if enough if self.waits else rare:
                return
            package = kind.package = Package(self._job(kind, leaves))
        if not package.done and (self.waits or pays(self.learner, self.started, self.left, kind.seconds)):
            package.begin()
        if self.waits:
            wait_for(package, self.learner)
        if package.done:
            call = package.load()
            if call is None:
                return self._stay_eager(package.failure)
            self._change_over(kind, lambda: call, leaves, buffers)
            self.begins = BEGUN if self.beside and kind.call is not None else 0

    def _job(self, kind: BatchKind, leaves: list[Tensor]) -> CompileJob:
        return compile_job(self.learner, self._function(kind), [*self.own, *leaves])

    def _function(self, kind: BatchKind) -> UpdateFunction:
        whole = kind.minibatch and self.parts is not None and self.parts.whole
        names, target = tuple(self.hyper), self.target is not None
        where = "bfloat16" if self.policy.bf16 else "float32", str(self.learner.device)
        made = self.learner.spec.policy, self.loss, target, names, kind.paths, kind.minibatch, whole
        optim = self.learner.spec.update.optim if self.steps else None
        return UpdateFunction(*made, *where, optim, len(self.own) - VECTORS - 1)

    def _change_over(self, kind: BatchKind, load: Callable[[], Any], leaves: list[Tensor], buffers: Tensor) -> None:
        """Use the package for later batches if it gives the gradient of the eager update. Without --compile on, it must
        also be faster. Keep the buffers and the gradient of the eager update.
        """
        kept, seconds = [x.clone() for x in self.own[:-1]], math.inf
        wanted, own = kept[3].clone(), [*(self.own[:-1] if self.captures else map(torch.clone, kept)), self.own[-1]]
        if self.learner.spec.update.asynchronous and not self.captures:  # other workers have changed the weights
            with torch.random.fork_rng(devices=[]):  # making networks draws random numbers
                self._function(kind)()(kept[0], buffers.clone(), kept[2], wanted, *kept[4:], self.own[-1], *leaves)
        try:
            call = load()
            self._put_back(kept)
            own[1].copy_(buffers)
            self._compiled(call, leaves, own)
            made, alike = own[3].clone(), not self.steps or self._steps_alike(kept, own)
            for _ in range(3):
                began = time.perf_counter()
                self._compiled(call, leaves, own)
                seconds = min(seconds, time.perf_counter() - began)
        finally:
            self.norm = None  # so that the eager gradient is applied
            self._put_back(kept)
        far = float(torch.linalg.vector_norm(made - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-6))
        way = "captured" if self.captures else "compiled"
        times = f"{seconds * 1e3:.3g} ms instead of {kind.seconds * 1e3:.3g}"
        if not far <= (NEAR_HALF if self.policy.bf16 else NEAR):
            return self._stay_eager(f"the {way} gradient differs by {far:.2g} of its size")
        if not alike:
            return self._stay_eager(f"the {way} step of the optimizer differs")
        if seconds > GAIN * kind.seconds and not self.waits:
            return self._stay_eager(f"{way} updates take {times}")
        kind.call = call
        update = self.learner.version + (1 if self.at_once else 2)
        if self.learner.ctx.hooks.compiled is not None:
            self.learner.ctx.hooks.compiled(update)
        self._say("note", f"updates are {way} from update {update:,} on: {times}")

    def _put_back(self, kept: list[Tensor]) -> None:
        if self.captures:  # a package's trial wrote only to copies
            for x, before in zip(self.own, kept, strict=False):
                x.copy_(before)

    def _steps_alike(self, kept: list[Tensor], own: list[Tensor]) -> bool:
        """Return whether an eager optimizer step gives the same weights as the compiled step. `kept` holds the tensors
        before the compiled step, and `own` the tensors after it.
        """
        spec, weights = self.learner.spec.update.optim, nn.Parameter(kept[0].clone())
        optimizer = spec.make(weights, float(self.values[-1]))
        load_state(optimizer, dict(zip(optimizer_state(optimizer), kept[VECTORS:], strict=True)))
        weights.grad = own[3].clone()
        clip_gradient(weights.grad, spec.clip)
        optimizer.step()
        size = torch.linalg.vector_norm
        bound = NEAR * size(weights.detach() - kept[0]) + ROUNDED * size(kept[0])
        return bool(size(own[0] - weights.detach()) <= bound)

    def _stay_eager(self, why: str) -> None:
        self.over, self.begins = True, 0
        self._say("caution" if self.waits else "note", f"updates stay eager: {why}")

    def _say(self, kind: str, text: str) -> None:
        if self.learner.ctx.index == 0:
            self.learner.ctx.log(kind, text)

    def close(self) -> None:
        """End the compiler processes and the threads."""
        for begun in (*(kind.package for kind in self.kinds.values()), *self.calls.values()):
            if begun is not None:
                begun.close()
