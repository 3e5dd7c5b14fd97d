"""Shared memory of worker processes: blocks, ring buffers, semaphores and locks.

A block of shared memory is an anonymous file (memfd). It disappears when the last process that uses it ends, even by a
kill. Waits use POSIX semaphores inside a block. Processes share no mutex, which a killed worker would hold forever.
Portable mode differs (see `platform`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from polyplay.core import platform, tree
from polyplay.core.errors import Closed
from polyplay.core.platform import memory_barrier, sem_post, sem_try, sem_wait

if TYPE_CHECKING:
    from polyplay.core.flows import Crossing

Place = tuple[tuple[int, ...] | int, DTypeLike, int]  # shape, dtype and offset of an array in a block
LINE = 64  # bytes of a cache line: numbers that different workers write are at least this far apart


class SharedBlock:
    """Anonymous block of shared memory. If a block is passed to a worker, the worker sees the same bytes.
    `named`: whether RobustLocks will use the block.
    """

    fd, path, made = -1, "", False  # no descriptor yet

    def __init__(self, nbytes: int, named: bool = False):
        self.nbytes, self.made = max(int(nbytes), 1), named
        self.fd, self.path = platform.new_memory(named)
        os.ftruncate(self.fd, self.nbytes)

    @cached_property
    def memory(self) -> mmap.mmap:
        """The block's bytes, mapped into this process at first use."""
        return mmap.mmap(self.fd, self.nbytes)

    def array(self, shape: tuple[int, ...] | int, dtype: DTypeLike, offset: int = 0) -> np.ndarray:
        """Return the array of `shape` and `dtype` at byte `offset`."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.memory, np.dtype(dtype), count, offset).reshape(shape)

    def __reduce__(self) -> tuple:
        return _open_block, (*platform.send_memory(self.fd, self.path), self.nbytes)

    def __del__(
        self, close: Callable[[int], None] = os.close, forget: Callable[[str], None] = platform.forget_memory
    ) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)  # the mapping outlives the descriptor; `os` may be gone when Python ends
            if self.made:
                forget(self.path)


def _open_block(fd: Any, path: str, nbytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    (block.fd, block.path), block.nbytes = platform.receive_memory(fd, path), nbytes
    return block


class _Declared(NamedTuple):
    dtype: type
    shape: Callable[..., tuple[int, ...]]


def shared_array(dtype: type, shape: Callable[..., tuple[int, ...]]) -> np.ndarray:
    """Declare an array in the class body of a SharedObject. `shape`: function from the object to the array's shape."""
    return cast("np.ndarray", _Declared(dtype, shape))


class SharedObject:
    """Object whose arrays lie in one block of shared memory. The arrays are attributes in each process. Each array
    starts at a new cache line. If the object is pickled, its arrays are not copied.

    `LOCAL`: names of other attributes that `_attach` sets in each process, and that are not pickled.
    """

    LOCAL: tuple[str, ...] = ()
    _places: tree.Tree = ()  # places of the arrays in the block, by name

    def __init__(self, **arrays: tree.Tree):
        """`arrays`: (shape, dtype) of each array, or a tree of such pairs, besides the arrays of the class."""
        size, members = 0, [x for cls in reversed(type(self).__mro__) for x in vars(cls).items()]
        declared = {name: (x.shape(self), x.dtype) for name, x in members if isinstance(x, _Declared)}

        def placed(array: tuple[tuple[int, ...] | int, DTypeLike]) -> Place:
            nonlocal size
            at, bytes_ = size, int(np.prod(array[0], dtype=np.int64)) * np.dtype(array[1]).itemsize
            size = -(-(at + bytes_) // LINE) * LINE
            return *array, at

        self._places = tree.map(placed, {**declared, **arrays})
        self.block = SharedBlock(size)
        self._attach()

    def _attach(self) -> None:
        """Set the attributes that are not pickled, such as the arrays. Each process calls this."""
        self.__dict__.update(self.arrays())

    def arrays(self) -> tree.Batch:
        """Return all arrays of the object in this process, by name."""
        return cast("tree.Batch", tree.map(lambda place: self.block.array(*place), self._places))

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory."""
        return self.block.nbytes

    def crossing(self) -> Crossing | None:
        """Return the flows of the object's data between machines, or None if only one machine uses the object."""
        return None

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in self.LOCAL and k not in self._places}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._attach()


RELAY = 32  # bytes of a semaphore; the next 8 hold 1 + the number of the line that gets the tokens, or 0


class Semaphore:
    """Semaphore in shared memory, for one waiting worker. `post` adds tokens. `wait` takes a token, and gives up after
    `timeout` seconds. In portable mode, several posts may count as one.

    `relays`: semaphores of the connections to other machines. If the waiting worker is on another machine, `post` posts
        to that connection's semaphore.
    """

    def __init__(self, cell: np.ndarray, create: bool = False, relays: Semaphores | None = None):
        self._cell, self._relays = cell, relays
        self._at = platform.sem_at(cell)
        self._relay = cell[RELAY : RELAY + 8].view(np.int64)
        if create:
            platform.sem_create(self._at)

    def post(self, n: int = 1) -> None:
        if self._relays is not None and (relay := int(self._relay[0])):
            self._relays[relay - 1].post()
            return
        for _ in range(n):
            sem_post(self._at)

    def relay(self, to: int | None) -> None:
        """Send future tokens to another machine over connection `to`, or keep them here if `to` is None."""
        self._relay[0] = 0 if to is None else to + 1

    @property
    def relayed(self) -> int | None:
        """Number of the connection to which tokens are sent, or None if they stay on this machine."""
        return int(self._relay[0]) - 1 if self._relay[0] else None

    def wait(self, timeout: float) -> bool:
        """Wait for a token and take it. Return False if no token comes within `timeout` seconds."""
        if sem_try(self._at) == 0:
            return True
        return timeout > 0 and sem_wait(self._at, timeout)


class Semaphores(SharedObject):
    """Array of `n` semaphores in one block."""

    LOCAL = ("_all",)
    relays: Semaphores | None = None  # semaphores of the lines to other machines, if any
    _cells = shared_array(np.uint8, lambda s: (s.n, LINE))

    def __init__(self, n: int):
        self.n = n
        super().__init__()
        for cell in self._cells:
            Semaphore(cell, create=True)

    def _attach(self) -> None:
        super()._attach()
        self._all = [Semaphore(cell, relays=self.relays) for cell in self._cells]

    def relay_by(self, links: Semaphores) -> None:
        """Let workers on other machines wait for these semaphores. `links`: semaphores of the connections to them."""
        self.relays = links
        self._attach()

    def __getitem__(self, i: int) -> Semaphore:
        return self._all[i]


class Closable(SharedObject):
    """Shared arrays with semaphores ("bells") that announce changes. After `close`, waits raise Closed."""

    _closed = shared_array(np.int64, lambda _: (LINE // 8,))

    def __init__(self, bells: int = 1, **arrays: tree.Tree):
        self._bells = Semaphores(bells)
        super().__init__(**arrays)

    def check(self) -> None:
        """Raise Closed if `close` was called."""
        if self._closed[0]:
            raise Closed

    def close(self) -> None:
        """Make all waits for this object raise Closed, now and later."""
        self._closed[0] = 1
        for i in range(self._bells.n):
            self._bells[i].post()


class Ring:
    """Ring buffer in shared memory, through which one producer sends numbers to one consumer, in order. No method
    waits. A consumer that wants to wait uses the semaphore `bell`.

    `cells`: int64 array of `Ring.cells(capacity)` elements.
    `bell`: semaphore that gets one token with every call of `put` or `put_all`.
    """

    def __init__(self, cells: np.ndarray, bell: Semaphore | None = None):
        self._head, self._tail, self._ring, self._bell = cells[0:1], cells[8:9], cells[16:], bell

    @staticmethod
    def cells(capacity: int) -> int:
        return 16 + capacity

    def put(self, number: int) -> None:
        self.put_all([number])

    def put_all(self, numbers: Sequence[int]) -> None:
        """Put these numbers into the ring, and post one token for all of them."""
        tail, size = int(self._tail[0]), len(self._ring)
        if tail + len(numbers) - int(self._head[0]) > size:
            raise RuntimeError("ring overflow: more numbers in flight than the ring was made for")
        for i, number in enumerate(numbers, tail):
            self._ring[i % size] = number
        memory_barrier()  # the consumer may read the numbers without taking the token
        self._tail[0] = tail + len(numbers)
        if self._bell is not None:
            self._bell.post()

    def take_all(self) -> list[int]:
        """Take all numbers out of the ring. This takes no tokens from the semaphore."""
        head, tail = int(self._head[0]), int(self._tail[0])
        if head == tail:
            return []
        memory_barrier()
        numbers = [int(self._ring[i % len(self._ring)]) for i in range(head, tail)]
        self._head[0] = tail
        return numbers

    def take(self, use: np.ndarray, holder: int) -> int | None:
        """Set use[number] to `holder` for the next number, and then take the number out of the ring. Return the number,
        or None if the ring is empty.
        """
        head = int(self._head[0])
        if head == int(self._tail[0]):
            return None
        number = int(self._ring[head % len(self._ring)])
        use[number] = holder
        self._head[0] += 1
        return number

    def peek(self) -> list[int]:
        """Return the numbers in the ring without taking them."""
        head, tail = int(self._head[0]), int(self._tail[0])
        return [int(self._ring[i % len(self._ring)]) for i in range(head, tail)]


class RobustLocks:
    """Locks that the operating system releases if the process that holds them ends, even by a kill. Each lock locks the
    file of one block. The blocks must be named.
    """

    def __init__(self, blocks: Sequence[SharedBlock]):
        # separate open files: a lock belongs to its open file, and several workers may share this process
        self._fds = [platform.reopen(block.fd, block.path) for block in blocks]

    def acquire(self, index: int) -> bool:
        """Try to take the lock with number `index`. Return False if another worker holds the lock."""
        return platform.lock(self._fds[index])

    def release(self, index: int) -> None:
        platform.unlock(self._fds[index])

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        while self._fds:
            close(self._fds.pop())
