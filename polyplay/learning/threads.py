"""Computes the gradient of an update in several threads. Each thread takes a part of the batch."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import Closed, Leaving
from polyplay.core.machine import ThreadPool
from polyplay.core.tree import Batch
from polyplay.learning.learner import Learner, Runner
from polyplay.learning.losses import LossOutput
from polyplay.learning.packages import BackgroundCall, Compiled, CompileJob, Package, UpdateThread, why_failed
from polyplay.learning.pure_update import VECTORS, UpdateFunction
from polyplay.learning.runners import GAIN, KINDS, LOOK, NEAR, compile_job, pays, wait_for
from polyplay.nets.device import to_device
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Linear, Tape
from polyplay.nets.policy import Policy
from polyplay.weights.optimizers import RMSProp
from polyplay.weights.params import FlatParams

Factors = list[tuple[Tensor, Tensor]]
BESIDE_ACTING, BESIDE_COMPILED = 0.75, 0.94  # acting thread's part ÷ an equal part: eager in bfloat16; compiled
TWO = ("obs", "mask", "first")  # fields [2, B], with two rows per transition; all other fields are [B]
# LEAST: fewest rows per thread; with fewer, most of a thread's work does not depend on the number of rows. LARGE:
# fewest weights of a network; with fewer, waking threads takes more time than it saves
LEAST, LARGE = 8, 100_000
FEW = 3  # most threads with which the acting thread gets fewer rows in compiled updates
TRIALS = 3  # timed trials of a compiled update before its first use; the shortest time counts


def split_size(rows: int, threads: int, weights: int) -> int:
    """Return the number of threads for an update, at most `threads`. Each thread gets the same number of `rows`, at
    least LEAST. A network with fewer than LARGE weights gets one thread.
    """
    if weights < LARGE:
        return 1
    return next((n for n in range(min(threads, rows // LEAST), 1, -1) if rows % n == 0), 1)


def divide(learner: Learner, rows: int) -> bool:
    """Let the learner make its updates in several threads, if its loss and its policy allow this. A batch has `rows`
    transitions. Return whether other threads may start an update while the caller acts.
    """
    ctx, refuses = learner.ctx, any(part.admit for part in learner.parts)
    whole = not learner.spec.loss.divisible or learner.policy.state_spec()
    if not (whole or refuses or ctx.control.trace or learner.device.type != "cpu"):
        n = split_size(rows, torch.get_num_threads(), learner.update.vector.weights)
        if n > 1:
            learner.run = ThreadedRunner(learner, n)
    return learner.run.begins > 0


class ThreadedRunner(Runner):
    """Makes updates in `n` threads, one of which is the caller's. Each thread has a network object for its gradients.
    All networks share the learner's weights.

    The threads wait for each other three times per update. If torch divided each operation among threads, they would
    wait in every operation. This is slow if another program keeps a core busy.

    The gradients of the batch's parts are added in a fixed order, so a repeated run gives bitwise equal results. The
    sum differs from the gradient of one thread only by rounding. While the first thread acts, the other threads may
    start on the next batch.
    """

    begins = 1

    def __init__(self, learner: Learner, n: int):
        super().__init__(learner.policy, learner.run.target, learner.spec.loss, learner.update.vector, learner.run.seed)
        self.learner, self.n, self.hyper = learner, n, learner.run.hyper
        self.nets = [self._copy(learner.policy, learner.update.vector) for _ in range(n)]
        torch.set_num_threads(1)  # torch's threads within one operation
        self.team = ThreadPool(n, partial(torch.set_num_threads, 1))
        if isinstance(learner.update.optimizer, RMSProp):
            learner.update.optimizer.team = self.team
        each = zip(learner.policy.parameters(), *(net.parameters() for net in self.nets), strict=True)
        self.grads = [(p.grad, parts) for p, *parts in each]
        self.layers = [_large(net) for net in self.nets]
        for layer in (layer for layers in self.layers for layer in layers.values()):
            layer.factors = []  # factors of the weight's gradient: one product for the whole batch takes half the time
        self.halves = self._keep_halves()
        self.refresh()
        self.compiled: CompiledParts | None = None  # None if updates stay eager
        self.others = [UpdateThread() for _ in range(n - 1)]  # threads that call compiled packages
        self.begun: list[Any] = []  # next batch: futures of the other threads' parts, or [PartsCall]
        self.targets: list[Future[Batch]] = []  # next batch: the target network's outputs

    def _copy(self, net: Policy, vector: FlatParams) -> Policy:
        """Return another network that shares the weights of `vector`, but has its own gradients."""
        made = build_network(self.learner.spec.policy, 0, self.learner.ctx.precision, self.learner.device)
        FlatParams(made, memory=vector.flat.detach(), write=False)
        return made

    def _keep_halves(self) -> list[tuple[Tensor, Tensor]]:
        """Make bfloat16 copies of large layers' weights, which all networks share. Return pairs (weight, copy)."""
        kept = list[tuple[Tensor, Tensor]]()
        if not self.learner.policy.bf16 or self.learner.spec.update.asynchronous:  # other workers change the weights
            return []
        for k, layer in _large(self.learner.policy).items():
            layer.present_half = torch.empty_like(layer.weight, dtype=torch.bfloat16, requires_grad=False)
            kept.append((layer.weight.detach(), layer.present_half))
            for layers in self.layers:
                layers[k].present_half = layer.present_half
        return kept

    def refresh(self) -> None:
        """Update the bfloat16 copies of the weights, after an update."""

        def copy(i: int) -> None:
            for weight, half in self.halves:
                rows = self.team.part(i, len(weight))
                half[rows].copy_(weight[rows])

        if self.halves:
            self.team.each(copy)

    def compile(self) -> bool:
        """See Runner.compile."""
        self.compiled = CompiledParts(self)
        return True

    def close(self) -> None:
        if self.compiled is not None:
            self.compiled.close()

    def begin(self, items: list[Batch], version: int) -> None:
        """Start an update in the other threads: they run the target network, then compute the losses of their parts."""
        batch = to_device(items[0], self.learner.device)
        batch, rows = self.with_noise(batch, version), len(batch["return"])
        if (call := self._call_for(batch)) is not None:
            self.begun = [call]
            return call.start(batch)
        others = _split(batch, even(rows, self.n - 1))
        self.targets = [self.team.begin(partial(self.loss.ahead, self.target, part)) for part in others]
        parts = _split(batch, self._rows_beside_acting(rows))
        self.begun = [self.team.begin(partial(self._one, i, parts[i], rows, self.targets)) for i in range(1, self.n)]

    def settle(self) -> None:
        wait(self.targets)
        if self._begun_call() is None:
            wait(self.begun)
        else:
            self.begun[0].wait()

    def __call__(self, batch: Batch, state: Batch, version: int, tape: Tape | None = None) -> LossOutput:
        """Compute a batch's loss and gradient. If `begin` was called, `batch` must be the batch given to `begin`."""
        call = self._begun_call()
        if call is None:
            batch, begun = self.with_noise(to_device(batch, self.learner.device), version), bool(self.begun)
            call = None if begun else self._call_for(batch)
            if call is None:
                before = time.perf_counter()
                scored = self.score_eagerly(batch)
                if self.compiled is not None:
                    self.compiled.look(batch, time.perf_counter() - before)
                # a run that waits for the compiler must be repeatable, so even this update uses the package
                if self.compiled is None or not self.compiled.waits or (call := self._call_for(batch)) is None:
                    return scored
            call.start(batch)
        self.begun = []
        try:
            return call.finish()
        except RuntimeError as e:
            cast("CompiledParts", self.compiled).give_up(why_failed(e))
            return self(batch, state, version)

    def _begun_call(self) -> PartsCall | None:
        return self.begun[0] if self.begun and isinstance(self.begun[0], PartsCall) else None

    def _call_for(self, batch: Batch) -> PartsCall | None:
        return self.compiled.calls.get(_kind_of(batch)) if self.compiled is not None else None

    def score_eagerly(self, batch: Batch) -> LossOutput:
        """Compute the loss of a batch without compiled packages, and leave the gradient in the learner's vector."""
        whole = len(batch["return"])
        rows = self._rows_beside_acting(whole) if self.begun else even(whole, self.n)
        parts = _split(batch, rows)
        if self.begun:
            scored = [self._one(0, parts[0], whole, self.targets), *(other.result() for other in self.begun)]
            self.begun, self.targets = [], []
        else:
            scored = self.team.each(lambda i: self._one(i, parts[i], whole))
        self.team.each(self._add_up)
        loss = torch.stack([s.loss.detach() for s in scored]).sum()
        priority = None if scored[0].priority is None else torch.cat([cast("Tensor", s.priority) for s in scored])
        weights = torch.tensor(rows) / whole
        means = {k: (torch.stack([s.metrics[k] for s in scored]) * weights).sum() for k in scored[0].metrics}
        return LossOutput(loss, {**means, "loss": loss}, priority)

    def _rows_beside_acting(self, rows: int) -> list[int]:
        """Return the number of rows for each thread, for a batch that is started while the first thread acts."""
        # in bfloat16, learning takes half the time of float32, but acting nearly the full time
        return uneven(rows, self.n, BESIDE_ACTING) if self.policy.bf16 else even(rows, self.n)

    def _one(self, i: int, batch: Batch, whole: int, targets: Sequence[Future[Batch]] = ()) -> LossOutput:
        """Compute the loss of part `i` of a batch of `whole` rows, and leave the gradient in network `i`. `targets` are
        the outputs of the target network, if they are computed already.
        """
        net = self.nets[i]
        if targets:
            found = tree.map(lambda *parts: torch.cat(parts), *(t.result() for t in targets))
            batch = batch | tree.map(lambda x: x.split(self._rows_beside_acting(len(x)))[i], found)
        scored = self.loss(net, self.target, batch, {}, self.hyper)
        if self.loss.reduction == "mean":
            scored = scored._replace(loss=scored.loss * (len(batch["return"]) / whole))
        for p in net.parameters():
            p.grad = None  # so that backward stores its result without an addition
        for layer in self.layers[i].values():
            cast("Factors", layer.factors).clear()
        scored.loss.backward()
        return scored

    @torch.no_grad()
    def _add_up(self, i: int) -> None:
        """Sum the gradients of the batch's parts. Thread `i` sums its slice of every parameter."""
        for k, (whole, parts) in enumerate(self.grads):
            if whole.numel() < LARGE:  # the first thread alone sums small ones
                if i == 0:
                    _sum([p.grad for p in parts if p.grad is not None], whole)
                continue
            rows = self.team.part(i, len(whole))
            if k in self.layers[0]:
                pairs = [pair for layers in self.layers for pair in cast("Factors", layers[k].factors)]
                _product(pairs, rows, whole[rows])
            else:
                _sum([p.grad[rows] for p in parts if p.grad is not None], whole[rows])


def _large(net: Policy) -> dict[int, Linear]:
    """Return the large Linear layers, keyed by the index of their weight in `net.parameters()`."""
    numbers = {id(p): k for k, p in enumerate(net.parameters())}
    layers = (m for m in net.modules() if isinstance(m, Linear))
    return {numbers[id(m.weight)]: m for m in layers if m.weight.numel() >= LARGE}


def even(rows: int, n: int) -> list[int]:
    """Divide `rows` into n parts, and return the parts' sizes, which differ by at most one."""
    return [rows * (i + 1) // n - rows * i // n for i in range(n)]


def uneven(rows: int, n: int, share: float) -> list[int]:
    """Return the sizes of n parts of `rows`, of which the first is smaller: it has about share·rows/n rows."""
    first = max(1, round(share * rows / n))
    return [first, *even(rows - first, n - 1)]


def _split(batch: Batch, rows: Sequence[int]) -> list[Batch]:
    split = {path: _divided(path, x, rows) for path, x in tree.leaves(batch)}
    return [cast("Batch", tree.nest({path: x[i] for path, x in split.items()})) for i in range(len(rows))]


def _divided(path: str, x: Tensor, rows: Sequence[int]) -> Sequence[Tensor]:
    """Split a batch's tensor `x` into parts of rows[i] rows. The random `key` is not split: every part gets it."""
    return [x] * len(rows) if path == "key" else x.split(list(rows), int(path.partition("/")[0] in TWO))


def _sum(grads: list[Tensor], out: Tensor) -> None:
    if not grads:
        out.zero_()
        return
    total = torch.add(*grads[:2], out=out) if len(grads) > 1 else out.copy_(grads[0])
    for more in grads[2:]:
        total.add_(more)


def _product(factors: Factors, rows: slice, out: Tensor) -> None:
    """Compute rows `rows` of a weight's gradient from its `factors`, and write them to `out` [rows, inputs]."""
    if not factors:
        out.zero_()
        return
    grad, x = torch.cat([g[:, rows] for g, _ in factors]).t(), torch.cat([x for _, x in factors])
    if grad.dtype == out.dtype:
        torch.mm(grad, x, out=out)
    else:
        out.copy_(torch.mm(grad, x))


# The same gradient by compiled packages: each thread calls one for its part. Only the first thread runs Python code.


Kind = tuple[Any, ...]  # kind of a batch: path, shape and type of each tensor


def _kind_of(batch: Batch) -> Kind:
    return tuple((path, x.shape, x.dtype) for path, x in tree.leaves(batch))


def _arguments(runner: ThreadedRunner) -> list[Tensor]:
    """Return the arguments of an UpdateFunction, except the batch, with new tensors for buffers and gradient."""
    flat, at = runner.vector.flat.detach(), runner.vector.weights
    parts = runner.learner.parts
    of_target = next((part.vector.flat.detach() for part in parts if part.vector is not None), flat.new_zeros(0))
    values = torch.tensor([*runner.hyper.values()], dtype=torch.float32)
    return [flat[:at], flat[at:].clone(), of_target, flat.new_zeros(at), values]


class PartsCall:
    """Computes the gradient of a batch in several threads, each of which calls a package (compiled function) on a part
    of the batch. `start` starts all parts but the first, which `finish` computes.

    `rows`: number of rows in each part.
    `packages`: path and function of a package, by number of rows.

    Raises RuntimeError if a call failed. The weights are then unchanged.
    """

    def __init__(
        self, runner: ThreadedRunner, rows: list[int], packages: dict[int, tuple[Path, Compiled]], batch: Batch
    ):
        self.runner, self.rows, self.pending, self.failure = runner, rows, False, ""
        self.call = packages[rows[0]][1]
        mean, whole = runner.loss.reduction == "mean", sum(rows)
        self.weights = [n / whole if mean else 1.0 for n in rows]  # weights of the parts' gradients in the sum
        leaves = [[x.clone() for _, x in tree.leaves(part)] for part in _split(batch, self.rows)]
        own = [_arguments(runner) for _ in leaves]
        self.given = [[*mine, *part] for mine, part in zip(own, leaves, strict=True)]
        self.results = [packages[n][1](list(given)) for n, given in zip(rows, self.given, strict=True)]
        buffers = runner.vector.flat.detach()[runner.vector.weights :]
        self.copies = [(given[1], buffers) for given in self.given]
        each = list(zip(self.given, self.results, self.copies, strict=True))[1:]
        paths = [packages[n][0] for n in rows[1:]]
        others = zip(paths, each, runner.others, strict=True)
        self.others = [BackgroundCall(path, [x], [y], [z], thread) for path, (x, y, z), thread in others]

    def start(self, batch: Batch) -> None:
        """Copy the batch to the arguments of all parts, and start all parts but the first."""
        values, (mine, buffers) = torch.tensor([*self.runner.hyper.values()], dtype=torch.float32), self.copies[0]
        leaves = [_divided(path, x, self.rows) for path, x in tree.leaves(batch)]
        for i in (*range(1, len(self.rows)), 0):
            self.given[i][VECTORS].copy_(values)
            for place, parts in zip(self.given[i][VECTORS + 1 :], leaves, strict=True):
                place.copy_(parts[i])
            if i:
                self.others[i - 1].start()
        mine.copy_(buffers)
        self.pending = True

    def wait(self) -> None:
        """Wait until the other threads have computed their parts. If a part failed, `finish` raises RuntimeError."""
        for other in self.others if self.pending else ():
            try:
                other.wait()
            except RuntimeError as e:
                self.failure = str(e)
        self.pending = False

    def finish(self) -> LossOutput:
        """Write the whole batch's gradient into the learner's vector, and return the LossOutput of the whole batch."""
        self.results[0] = self.call(list(self.given[0]))
        self.wait()
        if self.failure:
            raise RuntimeError(self.failure)
        loss, grad = self.runner.loss, self.runner.vector.grad
        torch.mul(self.given[0][VECTORS - 1], self.weights[0], out=grad)
        for given, weight in zip(self.given[1:], self.weights[1:], strict=True):
            grad.add_(given[VECTORS - 1], alpha=weight)
        numbers = [found[0].tolist() for found in self.results]
        shares = [n / sum(self.rows) for n in self.rows]
        total, *means = [sum(map(operator.mul, shares, column)) for column in zip(*numbers, strict=True)]
        if loss.reduction != "mean":
            total = sum(row[0] for row in numbers)
        metrics = {**dict(zip(loss.metrics, means, strict=False)), "loss": total}
        priority = [found[1] for found in self.results] if len(self.results[0]) > 1 else []
        joined = torch.cat(priority) if priority else None
        return LossOutput(cast("Any", total), cast("Any", metrics), joined)

    def close(self) -> None:
        """End the calls of the other threads."""
        for other in self.others:
            other.close()


class CompiledParts:
    """Packages (compiled functions) for the parts of a ThreadedRunner's batches. Other processes compile them during
    the run. Before their first use, their gradient is compared with the eager gradient of the same batch.
    """

    def __init__(self, runner: ThreadedRunner):
        self.runner, self.learner = runner, runner.learner
        self.waits = self.learner.ctx.control.compile == "on"
        self.started, self.left, self.looked = time.perf_counter(), self.learner.remaining, 0.0
        self.packages, self.calls = dict[Kind, dict[int, Package]](), dict[Kind, PartsCall]()
        self.rows = dict[Kind, list[int]]()  # number of rows of each part

    def look(self, batch: Batch, seconds: float) -> None:
        """Start to compile packages for the batch's parts, or use finished ones. An eager update takes `seconds`."""
        if not (self.waits or time.perf_counter() - self.looked > LOOK):
            return
        self.looked = time.perf_counter()
        try:
            self._look(batch, seconds)
        except (Closed, Leaving):
            raise
        except Exception as e:
            self.give_up(why_failed(e))

    def _look(self, batch: Batch, seconds: float) -> None:
        kind = _kind_of(batch)
        if kind not in self.packages:
            if len(self.packages) == KINDS:
                return
            whole, n = len(batch["return"]), self.runner.n
            beside = self.runner.acts and n <= FEW
            rows = self.rows[kind] = uneven(whole, n, BESIDE_COMPILED) if beside else even(whole, n)
            self.packages[kind] = {size: Package(self._job(batch, size)) for size in rows}
        packages = self.packages[kind]
        for package in packages.values():  # one after the other
            if not package.done and (self.waits or pays(self.learner, self.started, self.left, seconds)):
                package.begin()
            if self.waits:
                wait_for(package, self.learner)
            if not package.done:
                return
            if package.failure:
                return self.give_up(package.failure)
        calls = {size: (package.path, package.load()) for size, package in packages.items()}
        if failure := next((package.failure for package in packages.values() if package.failure), ""):
            return self.give_up(failure)
        self._change_over(kind, PartsCall(self.runner, self.rows[kind], cast("Any", calls), batch), batch, seconds)

    def _job(self, batch: Batch, size: int) -> CompileJob:
        runner = self.runner
        part = _split(batch, [size, len(batch["return"]) - size])[0]
        paths, leaves = zip(*tree.leaves(part), strict=True)
        own = tuple(f"batch/{path}" for path in paths)
        names, target = tuple(runner.hyper), runner.target is not None
        function = UpdateFunction(self.learner.spec.policy, runner.loss, target, names, own)
        return compile_job(self.learner, function, [*_arguments(runner), *leaves])

    def _change_over(self, kind: Kind, call: PartsCall, batch: Batch, seconds: float) -> None:
        """Use the packages if they give the eager gradient. Without --compile on, they must also be faster. Keep this
        batch's eager gradient.
        """
        self.calls[kind] = call
        grad = self.runner.vector.grad
        kept, least = grad.clone(), math.inf
        try:
            if self.runner.policy.observes:  # a batch that was started early may have used older statistics
                self.runner.score_eagerly(batch)
            wanted = grad.clone()
            for _ in range(TRIALS):
                before = time.perf_counter()
                call.start(batch)
                call.finish()
                least = min(least, time.perf_counter() - before)
            far = float(torch.linalg.vector_norm(grad - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-6))
        finally:
            grad.copy_(kept)
        times = f"{least * 1e3:.3g} ms instead of {seconds * 1e3:.3g}"
        if not far <= NEAR:
            self.give_up(f"the compiled gradient differs by {far:.2g} of its size")
        elif not all(torch.equal(mine, buffers) for mine, buffers in call.copies):
            self.give_up("the network changes its buffers while it learns")
        elif least > GAIN * seconds and not self.waits:
            self.give_up(f"compiled updates take {times}")
        else:
            self._say("note", f"updates are compiled, in {self.runner.n} parts: {times}")

    def give_up(self, why: str) -> None:
        """Make all later updates eager, and log the reason."""
        self.close()
        self.runner.compiled = None
        self._say("caution" if self.waits else "note", f"updates stay eager: {why}")

    def _say(self, kind: str, text: str) -> None:
        if self.learner.ctx.index == 0:
            self.learner.ctx.log(kind, text)

    def close(self) -> None:
        """End the compiler processes and the threads."""
        for package in (x for packages in self.packages.values() for x in packages.values()):
            package.close()
        for call in self.calls.values():
            call.close()
