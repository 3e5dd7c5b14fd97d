"""The gradient of a batch by several threads of a learner, each of its part of the batch.

Threads inside one operation meet about a hundred times an update: where another program keeps one of their cores busy,
each meeting waits for the scheduler. These meet three times. The parts' gradients are added in fixed order, so a
run repeats to the bit; from one thread's gradient theirs differs by rounding. While the first thread acts, the others
may pass the next batch through the target network (`begin`).
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyplay.buffers.replay.spec import BOTH
from polyplay.common import tree
from polyplay.common.team import Team, members
from polyplay.common.tree import Batch, Tree
from polyplay.learning.losses import CategoricalLoss, QLoss, q_learning
from polyplay.learning.losses.base import LazyMetrics, LossOutput
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Policy
from polyplay.weights.flat import FlatParams
from polyplay.weights.optimizers import RMSProp

if TYPE_CHECKING:
    from polyplay.learning.learner import Learner

TWO = (*BOTH, "first")  # rows [2, B] of a transition; all else is [B]


def parts_of(learner: Learner, rows: int) -> int:
    """Into how many parts a batch of so many transitions is divided: one where a single thread shall be able to repeat
    the run to the bit.
    """
    ctx, spec = learner.ctx, learner.spec
    simple = isinstance(spec.loss, QLoss | CategoricalLoss) and not learner.policy.state_spec()
    if not simple or learner.update.gate is not None or ctx.trace or learner.device.type != "cpu":
        return 1
    return members(rows, min(ctx.threads, torch.get_num_threads()), learner.vector.weights)


class GradientParts:
    """`n` threads, the caller's among them, with a network each on the learner's weights."""

    def __init__(self, learner: Learner, n: int):
        self.learner, self.n = learner, n
        self.nets = [self._copy(learner.policy, learner.vector) for _ in range(n)]
        torch.set_num_threads(1)  # of an operation
        self.team = Team(n, partial(torch.set_num_threads, 1))
        if isinstance(learner.update.optimizer, RMSProp):
            learner.update.optimizer.team = self.team
        self.views = [p.grad for p in learner.policy.parameters()]
        self.targets: list[Future[Tensor]] = []  # of the batch that was begun, a part each

    def _copy(self, net: Policy, vector: FlatParams) -> Policy:
        """Another module on the same weights, with gradients of its own."""
        made = build_network(self.learner.spec.policy, 0, self.learner.ctx.precision, self.learner.device)
        FlatParams(made, memory=vector.flat.detach(), write=False)
        for p in made.parameters():
            p.grad = None
        return made

    def begin(self, batch: Batch, key: int) -> None:
        """Pass the batch that is scored next through the target network, while the caller does something else."""
        target = self.learner.target_net
        parts = self._split(batch)
        self.targets = [self.team.begin(lambda p=p: q_learning.target_scores(target, p, key)) for p in parts]

    def settle(self) -> None:
        """Wait for what was begun: what the target network computes with is about to change."""
        wait(self.targets)

    def score(self, batch: Batch, key: int) -> LossOutput:
        """The loss of the batch, whose gradient is in the learner's vector then."""
        parts = self._split(batch)
        begun, self.targets = self.targets, []
        scored = self.team.each(lambda i: self._one(self.nets[i], parts[i], key, begun[i] if begun else None))
        summed = self.learner.spec.loss.reduction == "sum"  # type: ignore[attr-defined]
        self.team.each(lambda i: self._add_up(i, 1.0 if summed else 1.0 / self.n))
        loss = sum(s.loss.detach() for s in scored) / (1 if summed else self.n)
        assert isinstance(loss, Tensor)
        priority = None if scored[0].priority is None else torch.cat([s.priority for s in scored])  # type: ignore[misc]

        def metrics() -> dict[str, Tensor]:
            means = {k: torch.stack([s.metrics[k] for s in scored]).mean() for k in scored[0].metrics}
            return {**means, "loss": loss}

        return LossOutput(loss, LazyMetrics(metrics), priority)

    def _split(self, batch: Batch) -> list[Batch]:
        """Its parts, in order."""
        rows = len(batch["action"]) // self.n

        def part(x: Tree, i: int, dim: int) -> Tree:
            return tree.map(lambda t: t.narrow(dim, i * rows, rows), x)

        return [{k: part(v, i, int(k in TWO)) for k, v in batch.items()} for i in range(self.n)]

    def _one(self, net: Policy, batch: Batch, key: int, begun: Future[Tensor] | None) -> LossOutput:
        spec, target = self.learner.spec, self.learner.target_net
        assert spec.outputs is not None
        ready = None if begun is None else begun.result()
        scored = spec.loss(spec.outputs(net, target, batch, None, key=key, ready=ready), batch, spec.hyperparameters)
        for p in net.parameters():
            p.grad = None  # what backward makes is kept as it is, nothing is added up
        scored.loss.backward()
        return scored

    @torch.no_grad()
    def _add_up(self, i: int, scale: float) -> None:
        """The sum of all parts' gradients, times scale, for thread i's rows of every parameter."""
        for out, *parts in zip(self.views, *(net.parameters() for net in self.nets), strict=True):
            if i and not out.dim():  # one number is the first thread's
                continue
            rows = self.team.part(i, len(out)) if out.dim() else ...
            first, *others = [p.grad[rows] for p in parts if p.grad is not None] or [torch.zeros_like(out[rows])]
            total = torch.add(first, others[0], out=out[rows]) if others else out[rows].copy_(first)
            for more in others[1:]:
                total.add_(more)
            if scale != 1.0:
                total.mul_(scale)
