"""The external memory of the Differentiable Neural Computer (Graves et al. 2016): one write head, several read heads.

It has no parameters. A linear layer of some controller says what to write and what to look for, anew in every access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common.tree import Batch, Field, Spec
from polyplay.nets.addressing import (
    allocation_weights,
    bmm_rows,
    content_weights,
    erase_and_add,
    precedence_after,
    usage_after,
)
from polyplay.nets.temporal_links import TemporalLinks

Follow = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # TemporalLinks.follow, of all lanes or some


class _Signals(NamedTuple):
    """What a controller says; gates and the erase vector in (0, 1), strengths > 0, a head's modes sum to 1."""

    write_vector: Tensor  # [B, W]
    erase: Tensor  # [B, W]
    free_gates: Tensor  # [B, R]
    allocation_gate: Tensor  # [B, 1]
    write_gate: Tensor  # [B, 1]
    modes: Tensor  # [B, R, 3]: backward, content, forward
    write_key: Tensor  # [B, 1, W]
    read_keys: Tensor  # [B, R, W]
    write_strength: Tensor  # [B, 1]
    read_strengths: Tensor  # [B, R]


class Memory(nn.Module):
    """`slots` words of `word` numbers. An access takes `interface` numbers and gives `features`, `reads` words.

    On a CPU a row's results are to the bit what they would be in any other batch.
    """

    def __init__(self, slots: int = 450, word: int = 32, reads: int = 4):
        super().__init__()
        self.slots, self.word, self.reads = slots, word, reads
        self.features = reads * word
        self._sizes = (word, word + reads + 2, 3 * reads, (1 + reads) * word, 1 + reads)
        self.interface = sum(self._sizes)

    def state_spec(self) -> Spec:
        """All zero where an episode begins."""
        n = self.slots
        shapes = {"memory": (n, self.word), "usage": (n,), "link": (n, n), "precedence": (n,)}
        shapes |= {"read_weights": (self.reads, n), "write_weights": (n,)}
        return {name: Field(shape, "float32") for name, shape in shapes.items()}

    def forward(self, interface: Tensor, state: Batch, follow: Follow | None = None) -> tuple[Tensor, Batch]:
        """One access, writing before it reads: [B, interface], the state → words [B, features], the state behind.

        follow: what the links of many accesses are followed by; the state then has none.
        """
        if interface.ndim != 2 or interface.shape[1] != self.interface:
            raise ValueError(f"interface must be [B, {self.interface}]; got {list(interface.shape)}")
        if follow is None:
            links = TemporalLinks(state["link"])
            words, after = self(interface, state, links.follow)
            return words, {**after, "link": links.end()}
        said = self._signals(interface)
        usage = usage_after(state["usage"], state["write_weights"], said.free_gates, state["read_weights"])
        write = self._write_weights(said, state["memory"], usage)
        memory = erase_and_add(state["memory"], write, said.erase, said.write_vector)
        forward, backward = follow(state["precedence"], write, state["read_weights"])
        content = content_weights(memory, said.read_keys, said.read_strengths)
        modes = said.modes.unsqueeze(3).unbind(2)
        read = modes[0] * backward + modes[1] * content + modes[2] * forward
        after = {"memory": memory, "usage": usage, "read_weights": read, "write_weights": write}
        after["precedence"] = precedence_after(state["precedence"], write)
        return bmm_rows(read, memory).flatten(1), after

    @staticmethod
    def _write_weights(said: _Signals, memory: Tensor, usage: Tensor) -> Tensor:
        """g_w·(g_a·allocation + (1 − g_a)·content) [B, N]."""
        content = content_weights(memory, said.write_key, said.write_strength).squeeze(1)
        gate = said.allocation_gate
        return said.write_gate * (gate * allocation_weights(usage) + (1.0 - gate) * content)

    def _signals(self, interface: Tensor) -> _Signals:
        write_vector, gates, modes, keys, strengths = interface.split(self._sizes, 1)
        erase, free, allocation, write = torch.sigmoid(gates).split((self.word, self.reads, 1, 1), 1)
        modes = torch.softmax(modes.unflatten(1, (self.reads, 3)), 2)
        write_key, read_keys = keys.unflatten(1, (1 + self.reads, self.word)).split((1, self.reads), 1)
        write_strength, read_strengths = F.softplus(strengths).split((1, self.reads), 1)
        return _Signals(
            write_vector, erase, free, allocation, write, modes, write_key, read_keys, write_strength, read_strengths
        )
