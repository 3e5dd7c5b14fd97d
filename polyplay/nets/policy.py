"""What every loop asks of a network: `Policy`, and of its weights: `Network`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from polyplay.common.tree import Batch, Spec
from polyplay.nets.activation_reuse import Tape


class Network(Protocol):
    """The part of `nn.Module` that weights are read and moved by."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def to(self, device: torch.device | str) -> Self: ...


@runtime_checkable
class Policy(Network, Protocol):
    """A module that acts in B lanes and unrolls T+1 rows of them, as the same function of its weights.

    Some have more, which loops look for: `observe` (running statistics), `hold` (copies of weights in bfloat16) and
    tapes (TapedPolicy).
    """

    @property
    def noise(self) -> int: ...  # uniforms in (0, 1) that `act` takes per lane and step
    def spec(self) -> Spec: ...  # what `act` puts out, per lane
    def state_spec(self) -> Spec: ...  # recurrent state, per lane; {} without one
    def initial(self, lanes: int) -> Batch: ...  # the state before the first step
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]: ...  # one row [B]: outputs, the state after it
    def unroll(self, batch: Batch, state: Batch) -> Batch: ...  # rows [T+1, B], the state before row 0


@runtime_checkable
class TapedPolicy(Policy, Protocol):
    """One whose `unroll` can take what `act` has computed, where `recalls` says so."""

    @property
    def recalls(self) -> bool: ...
    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]: ...
    def unroll(self, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch: ...


PolicyFactory = Callable[[], Policy]
