"""What else computes an update's loss and gradient: several threads of a learner, each of its part of the batch.

And the update as one pure function, for whatever traces it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyplay.core import tree
from polyplay.core.errors import Closed, Leaving
from polyplay.core.machine import ThreadPool, cores
from polyplay.core.tree import Batch
from polyplay.learning.learner import Epochs, Learner, Minibatches, Runner, pick_rows
from polyplay.learning.losses import ActorCriticLoss, Hyper, Loss, LossOutput
from polyplay.learning.packages import BackgroundCall, Compiled, CompileJob, Package, why_failed
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets.device import StaticCall, signature_of, synchronize, to_device
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Conv2d, Linear, Tape
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.optimizers import OptimizerSpec, RMSProp, load_state, optimizer_state, pure_step
from polyplay.weights.params import FlatParams, named_views
from polyplay.weights.update import Local, clip_gradient

Factors = list[tuple[Tensor, Tensor]]
BESIDE_ACTING = 0.75  # of an equal part, for the thread that acts too, in bfloat16
TWO = ("obs", "mask", "first")  # rows [2, B] of a transition; all else is [B]
# rows of a thread, with fewer of which most of its work is what their number does not change; weights of a network,
# with fewer of which waking threads costs more than they save
LEAST, LARGE = 8, 100_000


def split_size(rows: int, threads: int, weights: int) -> int:
    """How many of so many threads divide a batch of `rows` among them, evenly."""
    if weights < LARGE:
        return 1
    return next((n for n in range(min(threads, rows // LEAST), 1, -1) if rows % n == 0), 1)


def divide(learner: Learner, rows: int) -> bool:
    """Have several threads run the updates from samples of so many transitions, where they may. One thread does where
    it shall be able to repeat the run to the bit.
    """
    ctx, refuses = learner.ctx, any(part.admit for part in learner.parts)
    whole = not learner.spec.loss.divisible or learner.policy.state_spec()
    if not (whole or refuses or ctx.control.trace or learner.device.type != "cpu"):
        n = split_size(rows, torch.get_num_threads(), learner.update.vector.weights)
        if n > 1:
            learner.run = ThreadedRunner(learner, n)
    return learner.run.begins > 0


class ThreadedRunner(Runner):
    """`n` threads, the caller's among them, with a network each on the learner's weights.

    Threads inside one operation meet about a hundred times an update: where another program keeps one of their cores
    busy, each meeting waits for the scheduler. These meet three times. The parts' gradients are added in fixed order,
    so a run repeats to the bit; from one thread's gradient theirs differs by rounding. While the first thread acts, the
    others may begin with the next batch: acting doesn't change the weights.
    """

    begins = 1

    def __init__(self, learner: Learner, n: int):
        super().__init__(learner.policy, learner.run.target, learner.spec.loss, learner.update.vector, learner.run.seed)
        self.learner, self.n, self.hyper = learner, n, learner.run.hyper
        self.nets = [self._copy(learner.policy, learner.update.vector) for _ in range(n)]
        torch.set_num_threads(1)  # of an operation
        self.team = ThreadPool(n, partial(torch.set_num_threads, 1))
        if isinstance(learner.update.optimizer, RMSProp):
            learner.update.optimizer.team = self.team
        each = zip(learner.policy.parameters(), *(net.parameters() for net in self.nets), strict=True)
        self.grads = [(p.grad, parts) for p, *parts in each]
        self.layers = [_large(net) for net in self.nets]
        for layer in (layer for layers in self.layers for layer in layers.values()):
            layer.factors = []  # of its weight's gradient: the product of the whole batch's costs half of that of parts
        self.halves = self._keep_halves()
        self.refresh()
        self.begun: list[Future[LossOutput]] = []  # the others' parts of the batch that is scored next
        self.targets: list[Future[Batch]] = []  # its pass through the target network, divided among the others

    def _copy(self, net: Policy, vector: FlatParams) -> Policy:
        """Another module on the same weights, with gradients of its own."""
        made = build_network(self.learner.spec.policy, 0, self.learner.ctx.precision, self.learner.device)
        FlatParams(made, memory=vector.flat.detach(), write=False)
        return made

    def _keep_halves(self) -> list[tuple[Tensor, Tensor]]:
        """Large layers' weights and, where the policy computes in bfloat16, one copy in that for all networks. Not
        where others change the weights.
        """
        kept = list[tuple[Tensor, Tensor]]()
        if not self.learner.policy.bf16 or self.learner.spec.update.asynchronous:
            return []
        for k, layer in _large(self.learner.policy).items():
            layer.present_half = torch.empty_like(layer.weight, dtype=torch.bfloat16, requires_grad=False)
            kept.append((layer.weight.detach(), layer.present_half))
            for layers in self.layers:
                layers[k].present_half = layer.present_half
        return kept

    def refresh(self) -> None:
        """See Runner: the halves are those of the new weights."""

        def copy(i: int) -> None:
            for weight, half in self.halves:
                rows = self.team.part(i, len(weight))
                half[rows].copy_(weight[rows])

        if self.halves:
            self.team.each(copy)

    def begin(self, items: list[Batch], version: int) -> None:
        """See Runner: the others do their parts, and before that the target network's pass of all."""
        batch = to_device(items[0], self.learner.device)
        batch, rows = self.with_noise(batch, version), len(batch["action"])
        others = _split(batch, even(rows, self.n - 1))
        self.targets = [self.team.begin(partial(self.loss.ahead, self.target, part)) for part in others]
        parts = _split(batch, self._rows_beside_acting(rows))
        self.begun = [self.team.begin(partial(self._one, i, parts[i], rows, self.targets)) for i in range(1, self.n)]

    def settle(self) -> None:
        wait(self.targets)
        wait(self.begun)

    def __call__(self, batch: Batch, state: Batch, version: int, tape: Tape | None = None) -> LossOutput:
        """See Runner. A batch that was begun is the one that `begin` had."""
        whole = len(batch["action"])
        rows = self._rows_beside_acting(whole) if self.begun else even(whole, self.n)
        parts = _split(self.with_noise(to_device(batch, self.learner.device), version), rows)
        if self.begun:
            scored = [self._one(0, parts[0], whole, self.targets), *(other.result() for other in self.begun)]
            self.begun, self.targets = [], []
        else:
            scored = self.team.each(lambda i: self._one(i, parts[i], whole))
        self.team.each(self._add_up)
        loss = torch.stack([s.loss.detach() for s in scored]).sum()
        priority = None if scored[0].priority is None else torch.cat([s.priority for s in scored])  # type: ignore[misc]
        weights = torch.tensor(rows) / whole
        means = {k: (torch.stack([s.metrics[k] for s in scored]) * weights).sum() for k in scored[0].metrics}
        return LossOutput(loss, {**means, "loss": loss}, priority)

    def _rows_beside_acting(self, rows: int) -> list[int]:
        """How a batch is divided that is begun while the first thread acts: where a row takes half the time, in
        bfloat16, and acting nearly as long as in float32, that thread has fewer.
        """
        if not self.policy.bf16:
            return even(rows, self.n)
        first = max(1, round(BESIDE_ACTING * rows / self.n))
        return [first, *even(rows - first, self.n - 1)]

    def _one(self, i: int, batch: Batch, whole: int, targets: Sequence[Future[Batch]] = ()) -> LossOutput:
        """The loss of part i, whose gradient its network has then; of a mean over `whole` rows its share. targets: of
        the whole batch, where begun before.
        """
        net = self.nets[i]
        if targets:
            found = tree.map(lambda *parts: torch.cat(parts), *(t.result() for t in targets))
            batch = batch | tree.map(lambda x: x.split(self._rows_beside_acting(len(x)))[i], found)
        scored = self.loss(net, self.target, batch, {}, self.hyper)
        if self.loss.reduction == "mean":
            scored = scored._replace(loss=scored.loss * (len(batch["action"]) / whole))
        for p in net.parameters():
            p.grad = None  # what backward makes is kept as it is, nothing is added up
        for layer in self.layers[i].values():
            cast("Factors", layer.factors).clear()
        scored.loss.backward()
        return scored

    @torch.no_grad()
    def _add_up(self, i: int) -> None:
        """The sum of all parts' gradients, for thread i's rows of every parameter."""
        for k, (whole, parts) in enumerate(self.grads):
            if whole.numel() < LARGE:  # small ones are the first thread's
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
    """Large layers, by the number of their weight among the parameters."""
    numbers = {id(p): k for k, p in enumerate(net.parameters())}
    layers = (m for m in net.modules() if isinstance(m, Linear))
    return {numbers[id(m.weight)]: m for m in layers if m.weight.numel() >= LARGE}


def even(rows: int, n: int) -> list[int]:
    """So many rows in n parts."""
    return [rows * (i + 1) // n - rows * i // n for i in range(n)]


def _split(batch: Batch, rows: Sequence[int]) -> list[Batch]:
    """Its parts of so many rows each, in order."""
    own, split = batch.keys() - {"key"}, dict[str, Sequence[Tensor]]()
    for path, x in tree.leaves({k: batch[k] for k in own}):
        split[path] = x.split(list(rows), int(path.partition("/")[0] in TWO))
    parts = ({path: x[i] for path, x in split.items()} for i in range(len(rows)))
    return [{**batch, **tree.nest(part)} for part in parts]


def _sum(grads: list[Tensor], out: Tensor) -> None:
    """Their sum, in order; 0 where no part has one."""
    if not grads:
        out.zero_()
        return
    total = torch.add(*grads[:2], out=out) if len(grads) > 1 else out.copy_(grads[0])
    for more in grads[2:]:
        total.add_(more)


def _product(factors: Factors, rows: slice, out: Tensor) -> None:
    """Some rows of the gradient of a layer's weight, float32 [rows, inputs]; 0 where it took no part."""
    if not factors:
        out.zero_()
        return
    grad, x = torch.cat([g[:, rows] for g, _ in factors]).t(), torch.cat([x for _, x in factors])
    if grad.dtype == out.dtype:
        torch.mm(grad, x, out=out)
    else:
        out.copy_(torch.mm(grad, x))


# The update as one pure function of tensors, for whatever traces, compiles or captures it.
#
#     update(weights [W], buffers [S − W], target [S] or [0], batch, state, hyper) -> gradient [W], buffers, LossOutput
#
# The vector is that of weights.params, in its two parts. Everything else is an argument too: batch and state are trees
# of tensors of fixed shapes, with random numbers (Loss.noise) and importance weights among them, hyper has a tensor []
# for each hyperparameter. No argument is written to, and no number decides on a shape or a branch (layers.tracing).


EAGER = {  # what only eager updates do, and why traced ones do not; the last two differ by rounding
    "nets.layers.recall": "outputs of acting are no inputs: a traced update computes them again",
    "nets.layers.cache_half_weights": "copies in bfloat16 are no inputs: a traced update converts its weights",
    "nets.layers._GradientOfUses": "its backward fills Python lists: a traced update adds up the gradients of all uses",
    "nets.recurrent._copied": "how many lanes tick is a number: a traced update computes all, and keeps all",
}
PureUpdate = Callable[..., tuple[Tensor, Tensor, LossOutput]]


class _Networks(nn.Module):
    """A policy and its target network as one module, so that `functional_call` gives both their tensors."""

    def __init__(self, policy: Policy, target: Policy | None = None):
        super().__init__()
        self.policy, self.target = policy, target

    def forward(self, call: Callable[..., Any], *given: Any) -> Any:
        return call(self.policy, self.target, *given)


def make_loss(
    policy: Policy, loss: Callable[..., Any], target: Policy | None = None
) -> Callable[..., tuple[Any, Tensor]]:
    """The loss as a function of `update`'s arguments, which gives the buffers too; to differentiate by the weights.

    The modules say what the vectors mean; their own weights are not read. target: another one of the kind, where the
    loss takes a target network. Raises ValueError: one computes with copies of its weights.
    """
    networks = _Networks(policy, target)
    if any(isinstance(m, Linear | Conv2d) and m.half_weight is not None for m in networks.modules()):
        raise ValueError("a network with copies of its weights (cache_weights) given, it must have none")

    def score(weights: Tensor, buffers: Tensor, fixed: Tensor, batch: Batch, state: Batch, hyper: Hyper) -> Any:
        odd = len(weights) % 2  # where numbers of float64 stand at even places with the weights before them
        behind = torch.cat([buffers.new_zeros(odd), buffers])[odd:]  # networks may write to it
        named = {f"policy.{k}": x for k, x in named_views(policy, weights, behind).items()}
        if target is not None:
            parts = fixed[: len(weights)], fixed[len(weights) :]
            named |= {f"target.{k}": x for k, x in named_views(target, *parts).items()}
        return functional_call(networks, named, (loss, batch, state, hyper)), behind

    return score


def make_update(policy: Policy, loss: Loss, target: Policy | None = None) -> PureUpdate:
    """The pure update; see `make_loss` for what is given."""
    score = make_loss(policy, loss, target)

    def update(weights: Tensor, *given: Any) -> tuple[Tensor, Tensor, LossOutput]:
        leaf = weights.detach().requires_grad_()
        with torch.enable_grad():
            scored, buffers = score(leaf, *given)
        (gradient,) = torch.autograd.grad(scored.loss, leaf)
        return gradient, buffers, scored._replace(loss=scored.loss.detach())

    return update


def make_act(policy: Policy) -> Callable[[Tensor, Tensor, Batch, Batch], tuple[Batch, Batch]]:
    """The pure acting step: (weights, buffers, row, state) -> outputs and the state behind, as Policy.act."""
    score = make_loss(policy, lambda policy, _, row, state, __: policy.act(row, state))

    def act(weights: Tensor, buffers: Tensor, row: Batch, state: Batch) -> tuple[Batch, Batch]:
        with torch.no_grad():
            acted: tuple[Batch, Batch] = score(weights, buffers, weights, row, state, {})[0]
        return acted

    return act


# One thread, by a function of tensors that was compiled ahead of time, or is a CUDA graph.


WAIT = 10.0  # seconds of learning before a run compiles what it does: what is over sooner has nothing of it
LEFT = 20.0  # seconds that a run has to go on for it, by its speed so far
LOOK = 0.25  # seconds between two looks whether the compiler is done
LONG = 0.05  # seconds of an eager update: in longer ones computing takes most, compiled or not
GAIN = 0.9  # of the eager seconds, at most, that compiled ones may take
NEAR, NEAR_HALF = 1e-3, 1e-2  # of the gradient's size, at most, that its gradient is away, in bfloat16
ROUNDED = 1e-6  # of the weights' size, that a step may be away besides
SHARE = 0.25  # of the updates, at least, that have batches of the kind that a package is compiled for
KINDS = 4  # packages of a run that waits for them, at most
BEGUN = 16  # updates in a row that are made beside acting, at most
OFTEN = 3  # updates of one kind, the last of which captures it: some sources give batches of any size
VECTORS = 4  # the function's first arguments: weights, buffers, target, gradient


def compile_updates(learner: Learner) -> None:
    """Have the updates of a learner captured as a CUDA graph, or compiled ahead of time where they can be: of one
    thread on a CPU, in float32.
    """
    how, far = learner.ctx.control.compile, learner.device.type != "cpu"
    if how == "off" or (how == "auto" and not far and any(isinstance(m, nn.Conv2d) for m in learner.policy.modules())):
        return
    threads = type(learner.run) is not Runner
    if threads or (learner.policy.bf16 and not far):
        if how == "on" and learner.ctx.index == 0:
            why = "several threads compute them" if threads else "they are computed in bfloat16"
            learner.ctx.log("caution", f"updates stay eager: {why}")
        return
    learner.run = CompiledRunner(learner)


@dataclass(frozen=True)
class UpdateFunction:
    """Makes `update` as a function of tensors of fixed shapes, one after the other, for what compiles or captures it:

        (weights, buffers, target, gradient, hyper [H], *leaves) -> numbers [1 + metrics], and priority [B] if any

    It writes the gradient, and the buffers. leaves: of a tree {"batch", "state"}, by `paths`; of a minibatch those of
    its whole rollout, and behind them `index` [n], its places, and `inside` [n], which of them count.

    With an optimizer it takes the step too, in place: the tensors of its state come before hyper, which ends with the
    learning rate; numbers end with the gradient's norm.
    """

    policy: PolicyFactory
    loss: Loss
    target: bool
    hyper: tuple[str, ...]
    paths: tuple[str, ...]
    minibatch: bool = False
    whole: bool = False  # minibatches have whole lanes
    precision: str = "float32"
    device: str = "cpu"
    optim: OptimizerSpec | None = None
    states: int = 0  # tensors of its state

    def __call__(self) -> Callable[..., tuple[Tensor, ...]]:
        nets = [build_network(self.policy, 0, self.precision, self.device) for _ in range(1 + self.target)]
        update = make_update(nets[0], self.loss, *nets[1:])

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            (weights, buffers, target, gradient), (*state, hyper), leaves = self._split(given)
            named = dict(zip(self.hyper, hyper.unbind(), strict=False))
            made, after, scored = update(weights, buffers, target, *self._rows(leaves), named)
            gradient.copy_(made)
            if len(buffers):
                buffers.copy_(after)
            numbers = [scored.loss, *(scored.metrics[k].to(scored.loss) for k in self.loss.metrics)]
            if self.optim is not None:
                stepped, new, norm = pure_step(self.optim, weights, made, state, hyper[-1])
                for x, now in zip((weights, *state), (stepped, *new), strict=True):
                    x.copy_(now)
                numbers.append(norm)
            return (torch.stack(numbers), *(() if scored.priority is None else (scored.priority,)))

        return function

    def _split(self, given: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        """The vectors, the optimizer's state and the hyperparameters, the leaves."""
        own = VECTORS + self.states + 1
        return given[:VECTORS], given[VECTORS:own], given[own:]

    def _rows(self, leaves: Sequence[Tensor]) -> tuple[Batch, Batch]:
        n = len(self.paths)
        given = tree.nest(dict(zip(self.paths, leaves[:n], strict=True)))
        batch, state = given["batch"], given.get("state", {})
        if self.minibatch:
            index, inside = leaves[n:]
            batch, state = pick_rows(batch, state, index, self.whole)
            if not self.whole:
                batch["valid"] = batch["valid"] & inside
        return batch, state


@dataclass
class BatchKind:
    """Batches of one kind: what a package is for."""

    paths: tuple[str, ...]  # of the leaves; of a minibatch those of its rollout
    minibatch: bool
    updates: int = 0
    seconds: float = math.inf  # of an eager update
    package: Package | None = None
    call: Compiled | StaticCall | None = None


class CompiledRunner(Runner):
    """Eager until the package of its update is there, or on a GPU its CUDA graph, and for batches of other kinds.

    A package of an earlier run serves from the first update on, a graph after a few. Before it serves, its gradient and
    its time are compared with the eager ones of the same batch. Nothing that goes wrong with it ends a run: one line
    says so.
    """

    def __init__(self, learner: Learner):
        run = learner.run
        super().__init__(run.policy, run.target, run.loss, run.vector, run.seed)
        self.learner, self.hyper, self.waits = learner, run.hyper, learner.ctx.control.compile == "on"
        of_target = next((part.vector for part in learner.parts if part.vector is not None), None)
        flat, at, update = run.vector.flat.detach(), run.vector.weights, learner.update
        target = flat.new_zeros(0) if of_target is None else of_target.flat.detach()
        # whether it takes the optimizer's step too: where nobody has a say between the loss and that
        spec = learner.spec.update
        self.steps = type(spec) is Local and spec.optim.pure and not any(part.admit for part in learner.parts)
        state = [*optimizer_state(update.optimizer).values()] if self.steps else []
        self.values = np.zeros(len(run.hyper) + self.steps, np.float32)
        self.own = [flat[:at], flat[at:], target, run.vector.grad, *state, torch.from_numpy(self.values)]
        self.captures = learner.device.type != "cpu"  # a graph
        self.kinds, self.updates = dict[Any, BatchKind](), 0  # eager ones
        self.over = self.at_once = False  # whether it is eager to the end, and gives way in this very update
        self.started, self.left, self.looked = time.perf_counter(), learner.remaining, 0.0
        self.filled: Hyper = {}  # hyperparameters that `values` has
        self.parts: Minibatches | None = None  # the rollout whose minibatches come; of it:
        self.rollout: Any = None  # its kind
        self.leaves: list[Tensor] = []
        self.index, self.inside = np.zeros(0, np.int64), np.zeros(0, bool)  # of a minibatch
        own = run.loss.loss if isinstance(run.loss, WithAuxiliary) else run.loss
        # what is not `valid` is nothing to it; a user's may take all that it is given for valid
        self.pads = isinstance(own, ActorCriticLoss) and type(own).__module__.startswith("polyplay.")
        # whether another thread may compute an update while this one acts: where there is a core for it, and a clock
        # decides anyway which updates are compiled
        fits = self.steps and not run.policy.observes and not self.captures
        self.beside = fits and cores() > 1 and learner.ctx.control.compile == "auto"
        self.begun: BackgroundCall | None = None
        self.taken = self.asked = 0  # of what was begun, how many updates are taken over
        self.calls = dict[Any, BackgroundCall]()  # by shapes

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
        """See Runner: whole updates, on copies of what they change."""
        call: BackgroundCall | None = None
        for k, item in enumerate(items if not self.over else ()):
            batch = item
            if self.draws:
                batch = self.with_noise(to_device(item, self.learner.device), version + k)
            given = {"batch": batch, "state": batch.get("state", {})}
            leaves = [x for _, x in tree.leaves(given)]
            kind = tuple((x.shape, x.dtype) for x in leaves)
            call = self.calls.get(kind) or self._background(given)
            if call is None:
                return
            self.calls[kind] = call
            for place, x in zip(call.given[k][len(self.own) :], leaves, strict=True):
                np.copyto(place.numpy(), x)
        if call is not None:
            self._fill()
            call.start(len(items))
            self.begun, self.taken, self.asked = call, 0, len(items)

    def _background(self, given: Batch) -> BackgroundCall | None:
        """What makes updates of this kind beside acting; None: they wait for it. Raises nothing."""
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
            return BackgroundCall(cast("Package", kind.package).path, calls, results, copies)
        except Exception as e:
            self.begins = 0
            self._say("note", f"updates are not made beside acting: {why_failed(e)}")
            return None

    def _take(self, call: BackgroundCall) -> LossOutput:
        """Take over the next of those that were begun; the weights with the last one. Raises RuntimeError: it failed,
        and the weights are as before the first.
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
        """Whether the update of these weights may be compiled. Where a run is done again it is if it was."""
        repeats = self.learner.ctx.hooks.repeats
        self.waits = self.waits or repeats is not None
        return repeats is None or repeats(version + 1)

    def _take_up(self, parts: Minibatches) -> None:
        """Have the arguments of a rollout's minibatches ready."""
        passes = cast("Epochs", self.learner.spec.passes)
        size = -(-(parts.lanes if parts.whole else parts.valid.size) // passes.minibatches)
        if size != len(self.index):
            self.index, self.inside = np.zeros(size, np.int64), np.zeros(size, bool)
        self.rollout, leaves = self._kind_of({"batch": parts.rows, "state": parts.state}, minibatch=True)
        if isinstance(self.rollout.call, StaticCall):
            leaves = self.rollout.call.fill(leaves, len(self.own))  # once for all minibatches
        self.leaves = [*leaves, torch.from_numpy(self.index), torch.from_numpy(self.inside)]
        self.parts = parts

    def _kind_of(self, given: Batch, minibatch: bool = False) -> tuple[BatchKind, list[Tensor]]:
        """What a package is for, and the leaves."""
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
        """Have the function's hyperparameters as they are now."""
        if self.hyper is not self.filled:
            self.values[: len(self.hyper)], self.filled = list(self.hyper.values()), self.hyper
        if self.steps:
            self.values[-1] = self.rate = self.learner.rate()

    def _scored(self, found: Tensor, *priority: Tensor) -> LossOutput:
        numbers: list[Any] = found.tolist()  # a device's are waited for once; a tensor's item each takes 5 µs
        self.norm = numbers[-1] if self.steps else None
        return LossOutput(numbers[0], dict(zip(self.loss.metrics, numbers[1:], strict=False)), *priority)

    def _eager(self, eager: Callable[[], LossOutput], kind: BatchKind, leaves: list[Tensor]) -> LossOutput:
        """Score eagerly, and look for the package. A run that waits for it, or finds it with the first batch of a kind,
        has it from this very update on, so that it can be repeated.
        """
        self.at_once = (self.waits or not kind.updates) and not self.captures
        buffers = self.own[1].clone() if self.at_once else None
        before = time.perf_counter()
        scored = eager()
        synchronize(self.learner.device)
        now = time.perf_counter()
        kind.seconds, kind.updates, self.updates = min(kind.seconds, now - before), kind.updates + 1, self.updates + 1
        if self.waits or now - self.looked > LOOK:
            self.looked = now
            try:
                self._look(kind, leaves)
            except (Closed, Leaving):
                raise
            except Exception as e:
                self._stay_eager(why_failed(e))
        if kind.call is None or buffers is None:
            return scored
        self.own[1].copy_(buffers)
        return self._compiled(kind.call, leaves)

    def _look(self, kind: BatchKind, leaves: list[Tensor]) -> None:
        """Have the package compiled when the time has come, and change over once it is there; or capture a graph."""
        package, rare = kind.package, kind.updates < SHARE * self.updates
        if self.captures:
            if kind.updates >= OFTEN and not rare:
                function = self._function(kind)()
                given = [*self.own, *leaves]
                self._change_over(kind, lambda: StaticCall(function, given, len(self.own) - 1), leaves)
            return
        if package is None:
            enough = sum(k.package is not None for k in self.kinds.values()) == KINDS
            if enough if self.waits else rare:
                return
            package = kind.package = Package(self._job(kind, leaves))
        if not package.done and (self.waits or self._pays(kind)):
            package.begin()
        before = time.perf_counter()
        while self.waits and not package.done:
            self.learner.ctx.turn()
            time.sleep(0.05)
            package.begin()  # where another run was to do it
        self.learner.update.waited += time.perf_counter() - before
        if package.done:
            call = package.load()
            if call is None:
                return self._stay_eager(package.failure)
            self._change_over(kind, lambda: call, leaves)
            self.begins = BEGUN if self.beside and kind.call is not None else 0

    def _pays(self, kind: BatchKind) -> bool:
        """Whether a run is to last long enough, and an update is small enough."""
        passed, left = time.perf_counter() - self.started, self.learner.remaining
        rest = passed * left / max(self.left - left, 1e-9)
        return kind.seconds < LONG and passed > WAIT and rest > LEFT

    def _job(self, kind: BatchKind, leaves: list[Tensor]) -> CompileJob:
        """What is compiled: this update of leaves such as these."""
        parts = [self.loss, *self.policy.modules(), *([self.loss.loss] if isinstance(self.loss, WithAuxiliary) else [])]
        modules = {of.__module__ for x in parts for of in type(x).__mro__}
        own = {name for name in modules if name.split(".")[0] not in ("polyplay", "torch", *sys.stdlib_module_names)}
        shapes = tuple((tuple(x.shape), x.dtype) for x in (*self.own, *leaves))
        return CompileJob(self._function(kind), shapes, tuple(sorted(own)))

    def _function(self, kind: BatchKind) -> UpdateFunction:
        whole = kind.minibatch and self.parts is not None and self.parts.whole
        names, target = tuple(self.hyper), self.target is not None
        where = "bfloat16" if self.policy.bf16 else "float32", str(self.learner.device)
        made = self.learner.spec.policy, self.loss, target, names, kind.paths, kind.minibatch, whole
        optim = self.learner.spec.update.optim if self.steps else None
        return UpdateFunction(*made, *where, optim, len(self.own) - VECTORS - 1)

    def _change_over(self, kind: BatchKind, load: Callable[[], Any], leaves: list[Tensor]) -> None:
        """Serve from now on, if the gradient is that of the eager update, which was made of the same batch, and it
        takes less time. Buffers and gradient stay those of that update.
        """
        kept, seconds = [x.clone() for x in self.own[:-1]], math.inf
        wanted, own = kept[3].clone(), [*(self.own[:-1] if self.captures else map(torch.clone, kept)), self.own[-1]]
        if self.learner.spec.update.asynchronous and not self.captures:  # others have changed the weights since
            with torch.random.fork_rng(devices=[]):  # networks are made
                self._function(kind)()(kept[0], kept[1].clone(), kept[2], wanted, *kept[4:], self.own[-1], *leaves)
        try:
            call = load()
            self._put_back(kept)
            self._compiled(call, leaves, own)
            made, alike = own[3].clone(), not self.steps or self._steps_alike(kept, own)
            for _ in range(3):
                began = time.perf_counter()
                self._compiled(call, leaves, own)
                seconds = min(seconds, time.perf_counter() - began)
        finally:
            self.norm = None  # the eager gradient is to be applied
            self._put_back(kept)
        far = float(torch.linalg.vector_norm(made - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-6))
        way = "captured" if self.captures else "compiled"
        times = f"{seconds * 1e3:.3g} ms instead of {kind.seconds * 1e3:.3g}"
        if not far <= (NEAR_HALF if self.policy.bf16 else NEAR):
            return self._stay_eager(f"the gradient of the {way} one differs by {far:.2g} of its size")
        if not alike:
            return self._stay_eager(f"the optimizer's step of the {way} one differs")
        if seconds > GAIN * kind.seconds and not self.waits:
            return self._stay_eager(f"{way} ones take {times}")
        kind.call = call
        update = self.learner.version + (1 if self.at_once else 2)
        if self.learner.ctx.hooks.compiled is not None:
            self.learner.ctx.hooks.compiled(update)
        self._say("note", f"updates are {way} from update {update:,} on: {times}")

    def _put_back(self, kept: list[Tensor]) -> None:
        """Undo what trying a graph wrote. Packages are tried on copies."""
        if self.captures:
            for x, before in zip(self.own, kept, strict=False):
                x.copy_(before)

    def _steps_alike(self, kept: list[Tensor], own: list[Tensor]) -> bool:
        """Whether the optimizer's own step from the vectors and the state in `kept`, along the gradient in `own`, leads
        to its weights.
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
        """End a compiler that runs, and threads."""
        for begun in (*(kind.package for kind in self.kinds.values()), *self.calls.values()):
            if begun is not None:
                begun.close()
