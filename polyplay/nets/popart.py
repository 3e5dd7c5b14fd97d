"""PopArt: a value for each task, normalized by running statistics of the task's targets, whose change keeps outputs.

    v = σ·n + μ, n = w·f + b        per task; f: features, n: the head's output, w and b: its row

Van Hasselt et al. 2016; for several tasks Hessel et al. 2019, where policy and features know no task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyplay.nets.layers import Axis, AxisSegment, Linear, TensorAxes, axis

RATE = 3e-4  # β, the step of the statistics (Hessel et al. 2019)
LOWEST, HIGHEST = 1e-4, 1e6  # of σ


def task_axis(tasks: tuple[str, ...], what: str = "value") -> Axis:
    """What stands along an axis of tasks, by their names, so that another task is another segment."""
    if not tasks:
        return axis(what, 1, fixed=True)
    return tuple(AxisSegment(f"{what} of {task}", (1,), part=f"task {task}") for task in tasks)


class TaskValues(nn.Module):
    """Choose each row's value among the outputs of a head, one per task. tasks: their names; (): there is one."""

    def __init__(self, tasks: tuple[str, ...]):
        super().__init__()
        self.tasks = tasks

    def forward(self, outputs: Tensor, task: Tensor | None) -> Tensor:
        """Outputs [N, tasks], the numbers of the tasks int64 [N] → values [N]. None: of the first task."""
        if task is None or outputs.shape[1] == 1:
            return outputs[:, 0]
        return outputs.gather(1, task[:, None]).squeeze(1)

    def scale_of(self, task: Tensor | None, like: Tensor) -> Tensor | None:
        """The unit of each row's value, σ in like's shape; None: it is 1."""
        return None

    def observe(self, target: Tensor, task: Tensor | None, valid: Tensor) -> None:
        """Learn from targets, where they are valid."""

    def settle(self, head: Linear) -> None:
        """Give the head's rows the present units."""


class PopArt(TaskValues):
    """Values in units that follow the targets. Buffers, each [tasks]:

    mean: μ, the running mean of targets; second: their running second moment about `origin`, the mean before the last
    update; so float32 keeps a deviation that is small beside the mean, and averages over replicas are those of all
    their rows. shift, scale: μ and σ as the head's rows have them; `settle` makes them the present ones.
    """

    mean: Tensor
    origin: Tensor
    second: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, tasks: tuple[str, ...], rate: float = RATE):
        super().__init__(tasks)
        self.rate = rate
        fills = {"mean": 0.0, "origin": 0.0, "second": 1.0, "shift": 0.0, "scale": 1.0}
        for name, fill in fills.items():
            self.register_buffer(name, torch.full((max(1, len(tasks)),), fill))
        self.axes = {name: TensorAxes((task_axis(tasks, "statistics"),), fill) for name, fill in fills.items()}

    def variance(self) -> Tensor:
        """σ² [tasks] of the targets."""
        return (self.second - (self.mean - self.origin).square()).clamp_min(0.0)

    def forward(self, outputs: Tensor, task: Tensor | None) -> Tensor:
        """See TaskValues: in the environment's units."""
        number = outputs.new_zeros(len(outputs), dtype=torch.int64) if task is None else task
        return super().forward(outputs, task) * self.scale[number] + self.shift[number]

    def scale_of(self, task: Tensor | None, like: Tensor) -> Tensor | None:
        """See TaskValues."""
        return self.scale.expand_as(like) if task is None else self.scale[task]

    @torch.no_grad()
    def observe(self, target: Tensor, task: Tensor | None, valid: Tensor) -> None:
        """Learn from targets [T, B] of tasks int64 [T, B] where they are valid, with G their mean by task:

        μ ← (1 − β)·μ + β·E[G], ν ← (1 − β)·ν + β·E[G²] (Hessel et al. 2019, equation 4), where ν is about the old μ.
        Statistics of tasks without a row stay as they are.
        """
        n = len(self.mean)
        number = torch.zeros_like(valid, dtype=torch.int64) if task is None else task
        off = torch.where(valid, target.to(self.mean.dtype) - self.mean[number], 0.0)
        of_task = (number.flatten()[:, None] == torch.arange(n, device=valid.device)) & valid.flatten()[:, None]
        rows = torch.stack([torch.ones_like(off), off, off.square()]).flatten(1)
        count, first, second = (rows @ of_task.to(rows.dtype)).unbind()
        rate = self.rate * (count > 0)
        variance, mean = self.variance(), self.mean.clone()
        self.second.copy_(variance + rate * (second / count.clamp_min(1.0) - variance))
        self.mean.add_(rate * first / count.clamp_min(1.0))
        self.origin.copy_(mean)

    @torch.no_grad()
    def settle(self, head: Linear) -> None:
        """w ← w·σ_old/σ, b ← (σ_old·b + μ_old − μ)/σ, so that values stay (van Hasselt et al. 2016, proposition 1)."""
        deviation = self.variance().sqrt().clamp(LOWEST, HIGHEST)
        head.weight.mul_((self.scale / deviation)[:, None])
        head.bias.copy_((self.scale * head.bias + self.shift - self.mean) / deviation)
        self.shift.copy_(self.mean)
        self.scale.copy_(deviation)
