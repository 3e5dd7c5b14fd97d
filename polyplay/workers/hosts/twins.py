"""Shared memory on two machines: what is pickled here for another one has, there, twins of its blocks.

A twin has the size of its block and the same number. It begins with zeros; mirrors copy what is written. Calls travel
so through the engine that started the agent (a pipe of this machine, or Ray), never through a link.
"""

from __future__ import annotations

import io
from typing import Any

import cloudpickle

from polyplay.common.semaphores import Semaphores
from polyplay.common.shared_memory import SharedBlock, SharedObject


class TwinNumbers:
    """The numbers of the blocks of this process that have twins; they hold on to the blocks."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, SharedBlock]] = {}  # by identity

    def of(self, block: SharedBlock) -> int:
        return self._blocks.setdefault(id(block), (len(self._blocks), block))[0]


class _TwinPickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: TwinNumbers):
        super().__init__(file)
        self.numbers, self.found = numbers, list[SharedObject]()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Semaphores):
            self.found.append(obj)
            return _semaphores, (self.numbers.of(obj.block), obj.n)
        if isinstance(obj, SharedBlock):
            return _block, (self.numbers.of(obj), obj.nbytes)
        if isinstance(obj, SharedObject):
            self.found.append(obj)
        return super().reducer_override(obj)


def dump(value: object, numbers: TwinNumbers) -> tuple[bytes, list[SharedObject]]:
    """For another machine; and the shared objects in it."""
    file = io.BytesIO()
    pickler = _TwinPickler(file, numbers)
    pickler.dump(value)
    return file.getvalue(), pickler.found


load = cloudpickle.loads  # of an agent, by which its workers' calls come

# ------------------------------------------------------------------------------------------- of an agent's process

_blocks: dict[int, SharedBlock] = {}
_made: dict[int, Semaphores] = {}
_relays: list[Semaphores] = []  # one: of this machine's end of its link


def relay_by(links: Semaphores) -> None:
    """This machine's end of its link, which gets the tokens of whoever waits elsewhere."""
    _relays[:] = [links]


def _block(number: int, nbytes: int) -> SharedBlock:
    block = _blocks.get(number)
    if block is None:
        block = _blocks[number] = SharedBlock(nbytes)
    return block


def _semaphores(number: int, n: int) -> Semaphores:
    if number not in _made:
        _made[number] = made = Semaphores(n)
        made.relays = _relays[0]
        made._attach()
    return _made[number]
