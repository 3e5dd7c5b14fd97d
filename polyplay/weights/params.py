"""Weights of an agent as one vector in memory, and the ways in which workers exchange them.

The vector of an agent is [parameters | floating buffers]. The tensors of a module are views of the vector. Workers
publish, pull, save and average whole vectors, but an optimizer sees only the parameters, as one flat Parameter with one
flat gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core.errors import UserError
from polyplay.core.flows import MAIN, VECTOR, WAITING, Crossing, End, Flow, Piece
from polyplay.core.shared_memory import Closable, memory_barrier, shared_array
from polyplay.core.tree import Batch
from polyplay.core.worker import Arrow, Edge
from polyplay.nets.device import page_lock, to_host
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.optimizers import load_state, optimizer_state

# Base of the classes of arrays that workers share.


class SharedArrays(Closable, Edge):
    """Base of classes of arrays in shared memory, such as weights or gradients, that several workers use."""

    memory: ClassVar[str] = "weights"
    patience = 0.02  # seconds of a wait before other workers get their turn; 0 if all run in one thread


class TwoCopies:
    """Two copies of a vector in shared memory, so that readers never get a mix of two versions.

    Readers copy the newest complete copy. A single writer writes to the other copy. If a copy changes while a reader
    copies it, the reader notices this and tries again.
    """

    def __init__(self, cells: np.ndarray, copies: np.ndarray):
        """`cells`: int64 [5], state of the copies, zeros at first. `copies`: float32 [2, n]."""
        self._active, self._begun, self._done = cells[:1], cells[1:3], cells[3:5]
        self._copies = [torch.from_numpy(copy) for copy in copies]

    @property
    def active(self) -> int:
        """Index of the newest complete copy."""
        return int(self._active[0])

    def begin(self, version: int) -> None:
        """Mark the copy that is not active as being written."""
        self._begun[1 - self.active] = version + 1  # + 1: zero means never written; `end` may get a later version
        memory_barrier()

    def end(self, version: int) -> None:
        """Mark the copy that is not active as complete, and make it the active copy."""
        into = 1 - self.active
        self._begun[into] = version + 1
        memory_barrier()
        self._done[into] = version + 1
        self._active[0] = into

    def write(self, vector: Tensor, version: int) -> None:
        self.begin(version)
        self._copies[1 - self.active].copy_(vector)
        self.end(version)

    @torch.no_grad()
    def read(self, into: Tensor, check: Callable[[], None]) -> int:
        """Copy the active copy into `into`, and return its version. Call `check`, which may raise, before each try."""
        while True:
            check()
            at = self.active
            mark = int(self._done[at])
            memory_barrier()
            into.copy_(self._copies[at])  # perhaps a mix of two versions: then it is copied again
            memory_barrier()
            if self._begun[at] == mark == self._done[at]:
                return mark - 1


# A network as one flat vector: parameters first, then floating buffers, those in float64 last.
#
# A float64 number takes the place of two float32 numbers, with the same bits, so code that copies a vector can ignore
# types. Only code that averages or adds buffers must know where float64 begins (`FlatParams.doubles`).


NetworkOrFactory = nn.Module | PolicyFactory


def param_sizes(of: NetworkOrFactory) -> tuple[int, int]:
    """Return the number of a network's parameters, and the length of its vector (parameters and floating buffers).

    `of`: a network, or a factory of networks. Raises UserError for any other object.
    """
    module = of() if isinstance(of, PolicyFactory) else of
    if not isinstance(module, nn.Module):
        allowed = "a network, or a PolicyFactory of polyplay.nets.policy, such as NetworkFactory"
        raise UserError(f"policy: {type(module).__name__} given, allowed: {allowed}")
    weights = sum(p.numel() for p in module.parameters())
    singles, doubles = (sum(b.numel() for _, b in kind) for kind in _buffers(module))
    end = weights + singles
    return weights, end + (end % 2 + 2 * doubles if doubles else 0)  # float64 numbers lie at even indices


Named = list[tuple[str, torch.Tensor]]


def _buffers(module: nn.Module) -> tuple[Named, Named]:
    """Return a module's floating buffers as two lists of (name, tensor): those in float32, and those in float64."""
    floating = [(k, b) for k, b in module.named_buffers() if b.is_floating_point()]
    doubles = [(k, b) for k, b in floating if b.dtype == torch.float64]
    return [(k, b) for k, b in floating if b.dtype != torch.float64], doubles


def named_views(module: nn.Module, weights: torch.Tensor, buffers: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a module's parameters and floating buffers by name, as views of the module's vector.
    `weights`, `buffers`: the two parts of the vector.
    """
    singles, doubles = _buffers(module)
    at = len(buffers) - 2 * sum(b.numel() for _, b in doubles)
    found: dict[str, torch.Tensor] = {}  # not dict[…](), which dynamo can't call
    parts = (list(module.named_parameters()), weights), (singles, buffers[:at]), (doubles, as_doubles(buffers[at:]))
    for named, numbers in parts:
        sizes = [x.numel() for _, x in named]
        views = numbers.split([*sizes, len(numbers) - sum(sizes)])  # one split: its gradient is one tensor
        found.update({k: view.view(x.shape) for (k, x), view in zip(named, views, strict=False)})
    return found


def as_doubles(numbers: torch.Tensor | np.ndarray) -> Any:
    """View float32 numbers [2 · n] as the float64 numbers [n] that they hold, in the same memory."""
    if isinstance(numbers, np.ndarray):
        return numbers.view(np.float64)
    return numbers.view(torch.float64) if len(numbers) else numbers.double()  # an empty tensor may be unaligned


def module_nbytes(module: nn.Module) -> int:
    """Return how many bytes a module's parameters and buffers take."""
    return sum(x.numel() * x.element_size() for x in (*module.parameters(), *module.buffers()))


class FlatParams:
    """Joins all weights of a module in one flat tensor. Parameters, gradients and floating buffers become views of flat
    tensors.

    Set gradients to zero only by `zero_grad`, and don't move the module to another device. Otherwise, its tensors would
    no longer be views.
    `memory`: float32 [size] for the weights, an array or a tensor on the module's device. Several modules may share it.
    `write`: whether to write the module's weights into `memory`. Otherwise, the module takes the contents of `memory`.
    `grad`: float32 [weights or more] for the gradient of a module on a CPU.

    The attribute `doubles` is the index of the vector's first float64 number, or its length if it has none.
    """

    def __init__(
        self,
        module: nn.Module,
        memory: np.ndarray | torch.Tensor | None = None,
        write: bool = True,
        grad: np.ndarray | None = None,
    ):
        self.module = module
        parameters = list(module.parameters())
        _check_dense(module)
        self.weights, self.size = param_sizes(module)
        self.doubles = self.size - 2 * sum(b.numel() for _, b in _buffers(module)[1])
        device = parameters[0].device
        self.flat = torch.zeros(self.size, device=device) if memory is None else torch.as_tensor(memory)
        given = None if grad is None or device.type != "cpu" else torch.from_numpy(grad[: self.weights])
        self.grad = torch.zeros(self.weights, device=device) if given is None else given.zero_()
        views = named_views(module, self.flat[: self.weights], self.flat[self.weights :])
        for name, x in (*module.named_parameters(), *module.named_buffers()):
            if (view := views.get(name)) is not None:
                if write:
                    view.copy_(x.detach())
                x.data = view
        for x, part in zip(parameters, self.grad.split([x.numel() for x in parameters]), strict=True):
            x.grad = part.view(x.shape)
        self.parameter = nn.Parameter(self.flat[: self.weights])
        self.parameter.grad = self.grad
        self._host = self.flat.numpy() if device.type == "cpu" else None

    def buffers(self) -> list[torch.Tensor]:
        """Return two views of the vector: the floating buffers in float32, and those in float64."""
        return buffers_in(self.flat, self.weights, self.doubles)

    def finite(self) -> bool:
        """Tell whether all numbers in the vector are finite."""
        parts = [self.flat[: self.weights], *self.buffers()]
        return all(bool(part.isfinite().all()) for part in parts)

    def zero_grad(self) -> None:
        self.grad.zero_()

    def read(self) -> np.ndarray:
        """Return the vector, float32 [size]: on a CPU a view, on a GPU a copy."""
        return self._host if self._host is not None else self.flat.cpu().numpy()

    def write(self, vector: np.ndarray) -> None:
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(vector))


def buffers_in(flat: Any, weights: int, doubles: int) -> list[Any]:
    """Return views of a vector's floating buffers: those in float32, and those in float64, from `doubles` on."""
    return [flat[weights:doubles], as_doubles(flat[doubles:])]


def _check_dense(module: nn.Module) -> None:
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        weight = isinstance(x, nn.Parameter)
        allowed = (torch.float32,) if weight else (torch.float32, torch.float64)
        if (weight or x.is_floating_point()) and (x.dtype not in allowed or x.layout != torch.strided):
            takes = "every weight must be dense float32, every floating buffer float32 or float64"
            raise UserError(f"network: {name} is {x.dtype}, {x.layout}; {takes}")


# int64 cells of the header: version, round, number of requests for weights, number of answers; the cells of the two
# copies begin at _COPIES
_VERSION, _ROUND, _ASKED, _ANSWERED, _COPIES = 0, 1, 2, 3, 8


WAITS, PACED = 1, 2  # a reader waits for any weights; for the weights of a round


class Params(SharedArrays):
    """Published weights of an agent, with a version, one writer, and up to `readers` readers.

    `version` counts optimizer updates. A rollout stores the version of the weights that acted. The number of updates
    since then is the rollout's lag. `round` counts rounds of rollouts. With a limited `--lag`, actors wait for the
    weights of a round.
    """

    LOCAL = ("_newest", "_locked")
    _head = shared_array(np.int64, lambda p: (32,))
    _waiting = shared_array(np.int64, lambda p: (max(p.readers, 1),))  # by reader: WAITS, PACED, or 0
    # by reader: number of its rollouts that the weights were trained on, for readers that wait for this
    _learnt = shared_array(np.int64, lambda p: (max(p.readers, 1),))
    _copies = shared_array(np.float32, lambda p: (2, p.size))

    def __init__(self, size: int, readers: int = 1):
        self.size, self.readers = size, readers
        super().__init__(bells=readers + 1)  # the last one tells a remote publisher that a reader waits
        self._head[_ROUND] = -1  # nothing was published yet; the first weights are round 0

    @classmethod
    def of(cls, policy: NetworkOrFactory, readers: int = 1) -> Params:
        return cls(param_sizes(policy)[1], readers)

    def _attach(self) -> None:
        super()._attach()
        self._newest = TwoCopies(self._head[_COPIES:], self._copies)
        self._locked = False  # whether this memory was page-locked for the publisher's device

    version = property(lambda self: int(self._head[_VERSION]))
    round = property(lambda self: int(self._head[_ROUND]))
    learnt = property(lambda self: self._learnt)
    asked = property(lambda self: bool(self._head[_ASKED] > self._head[_ANSWERED]))

    def label(self) -> str:
        return f"Params: {self.size:,} weights"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("publish",), ("params",))]

    def crossing(self) -> Crossing:
        bells = [(self._bells[i], End("params", i)) for i in range(self.readers)]
        return Crossing([WeightFlow(self, End("publish", 0))], bells, self.close)

    def publish(
        self,
        vector: Any,  # has `flat`
        version: int,
        round: int,  # noqa: A002 - the design's word
        learnt: np.ndarray | None = None,
    ) -> None:
        """Publish these weights. `learnt`: for each reader, how many of its rollouts the weights were trained on."""
        if not self._locked:
            self._locked = True
            page_lock(self.block, vector.flat.device)
        self._newest.write(vector.flat, version)
        self.announce(version, round, learnt)

    def announce(self, version: int, round: int, learnt: np.ndarray | None = None) -> None:  # noqa: A002
        """Tell readers about a version that is completely written."""
        self._head[_VERSION], self._head[_ROUND] = version, round
        if learnt is not None:
            self._learnt[:] = learnt  # written last, since readers that wait for it then pull that version
        self._wake()

    def ask(self) -> None:
        """Ask the learner to publish its weights at its next update."""
        self._head[_ASKED] = self._head[_ANSWERED] + 1

    def answer(self, vector: FlatParams, version: int) -> None:
        self.publish(vector, version, 0)
        self._head[_ANSWERED] = self._head[_ASKED]

    def _wake(self) -> None:
        memory_barrier()
        for i in np.flatnonzero(self._waiting.copy()):  # a copy, because readers change the array
            self._bells[int(i)].post()

    def waits(self, readers: slice) -> bool:
        """Tell whether each of the given readers waits for weights now."""
        return bool(self._waiting[readers].all())

    def stay(self, readers: slice, learnt: np.ndarray) -> None:
        """Let the given readers continue with their present weights, because their rollouts lead to no update yet.
        `learnt`: for each reader, the number of its rollouts so far.
        """
        self._learnt[readers] = learnt
        self._wake()

    def wait(self, atleast: int, reader: int, timeout: float, learnt: int = 0) -> bool:
        """Wait at most `timeout` seconds for new weights. Return whether new weights have arrived.

        `atleast`: least `round` of the weights.
        `learnt`: least number of the reader's rollouts that the weights must have been trained on.
        Raises Closed when the run stops.
        """

        def there() -> bool:
            return self.round >= atleast and (not learnt or int(self._learnt[reader]) >= learnt)

        if there():
            return True
        until = time.monotonic() + timeout
        self._waiting[reader] = PACED if atleast > 0 or learnt else WAITS
        memory_barrier()  # a publisher sees this before the round is read here
        if (begins := self._bells[self.readers]).relayed is not None:
            begins.post()
        while not there() and not self._closed[0] and (left := until - time.monotonic()) > 0:
            self._bells[reader].wait(left)  # a token may be from an earlier round
        self._waiting[reader] = 0
        self.check()
        return there()

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        """Copy the newest weights into `vector`, and return their version. If `have` is that version, copy nothing."""
        self.check()
        if self.round < 0:
            raise RuntimeError("nothing was published yet")
        return have if self.version == have else self._newest.read(vector.flat, self.check)


OFTEN, SELDOM = 4, 1.0  # most versions sent to a machine per rollout; most seconds between two versions


class WeightFlow(Flow):
    """Sends published weights, with their version, round and `learnt` (see Params), to readers on another machine.

    A reader that waits for a round gets the first version of each round. A reader that waits for any weights gets the
    newest version at once. If no reader waits, at most four versions per rollout are sent, or at least one a second.
    """

    both = True

    def __init__(self, params: Params, publisher: End):
        super().__init__(publisher, [End("params", i) for i in range(params.readers)])
        self.params = params
        self._version = -1  # version of the vector that was last sent or received
        self._waiting, self._last, self._pace = 0, (params.version, -1, b""), (-2, b"")
        self._sent = -math.inf, 0  # time of the last send, and number of slots received by then
        self._vector = torch.empty(params.size)

    def activate(self, gives: bool) -> None:
        if not gives:  # readers that wait wake the connection to the publisher's machine
            self.params._bells[self.params.readers].relay(self.traffic.relay)
        elif across := self._readers(not self.traffic.away):  # a publication wakes the connection to the readers
            self.params._waiting[across[0]] = 1

    def _readers(self, away: bool) -> list[int]:
        """Return the readers on the other machine if `away` is True, else those on this machine."""
        return [end.i for end in self.readers if ((self.thing, end) in self.traffic.seats) == away]

    def token(self, gives: bool) -> Any:
        params = self.params
        if not gives:
            self._waiting = max(self._waiting & PACED, *params._waiting[self._readers(self.traffic.away)].tolist(), 0)
            return self._waiting
        if params.round >= 0 and self._due():
            learnt = params._learnt.tobytes()  # read in the reverse order of writing
            memory_barrier()
            rounds = params.round
            memory_barrier()
            if (news := (params.version, rounds, learnt)) != self._last:
                self._last, self._sent = news, (self.traffic.now, self.traffic.landed)
        return self._last

    def _due(self) -> bool:
        """Tell whether a newer version may be sent now."""
        when, landed = self._sent
        before, self._pace = self._pace, (self.params.round, self.params._learnt[self._readers(True)].tobytes())
        if self.traffic.away or self._waiting == WAITS or self.traffic.now >= when + SELDOM:
            return True
        if self._waiting == PACED:
            return before != self._pace
        return self.traffic.landed >= landed + len(self._readers(True)) / OFTEN

    def pieces(self, old: Any, new: Any, gives: bool) -> Iterator[Piece]:
        if not gives:
            yield WAITING, 0, [np.array([new])]
            return
        params, (version, rounds, learnt) = self.params, new
        if self.traffic.away:  # a judge (AlphaGo Zero) on another machine also sends the champion's checkpoint
            yield from self.traffic.files("checkpoints/champion-*/*/*/*", keep=True)
            yield from self.traffic.files("checkpoints/champion-*/manifest.json", keep=True)
        vector = []
        if rounds >= 0 and self._version != version:
            vector = [self._vector.numpy()]
            version = self._version = params._newest.read(self._vector, params.check)  # perhaps a later version
        yield VECTOR, 0, [np.array([version, rounds, *np.frombuffer(learnt, np.int64)]), *vector]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        params = self.params
        if part == WAITING:
            self._waiting, self._pace = int(arrays[0][0]), (-2, b"")
            if self._waiting and (across := self._readers(not self.traffic.away)):
                params._bells[across[0]].post()  # a version that was not sent may be available
            return
        (version, rounds), learnt = arrays[0][:2].tolist(), arrays[0][2:]
        if len(arrays) > 1:
            params._newest.write(torch.from_numpy(arrays[1]), version)
            self._version = version
        params.announce(version, rounds, learnt if learnt.size else None)


class WeightCache:
    """A reader's copy of the weights. The reader pulls newer weights after every `rollouts` rollouts."""

    def __init__(self, vector: FlatParams, rollouts: int = 1):
        self.vector, self.rollouts = vector, rollouts
        self.version = -1
        self.age = 0  # number of rollouts made with these weights; 0: newer weights are due

    def tick(self) -> None:
        self.age = (self.age + 1) % self.rollouts

    def save(self) -> Batch:
        """Return the state for a checkpoint. Return {} if the reader pulls new weights before its next rollout."""
        state = {"age": np.array(self.age), "version": np.array(self.version)}
        return {**state, "vector": np.array(to_host(self.vector.flat))} if self.age else {}

    def load(self, saved: Batch) -> None:
        self.age, self.version = int(saved["age"]), int(saved["version"])
        self.vector.flat.copy_(torch.from_numpy(np.array(saved["vector"])))


# Weights and optimizer state of an agent at one version, in shared memory, from which another agent continues.


_NUMBER, _SNAPSHOT_VERSION, _STEPS = 0, 1, 2  # cells of the head


class AgentSnapshot(SharedArrays):
    """Weights and optimizer state of one agent, which its learner writes so that another agent can copy them.

    `number`: number of the copy order that the snapshot is for. While the snapshot is written, the number is 0.
    """

    _head = shared_array(np.int64, lambda _: (8,))
    _vector = shared_array(np.float32, lambda s: (s.size,))
    _statistics = shared_array(np.float32, lambda s: (len(s.statistics), s.weights))

    def __init__(self, network: NetworkOrFactory, statistics: Sequence[str]):
        """`statistics`: names of the numbers that the optimizer keeps for each weight (OptimizerSpec)."""
        self.statistics = tuple(statistics)
        self.weights, self.size = param_sizes(network)
        super().__init__()

    number = property(lambda self: int(self._head[_NUMBER]))

    def crossing(self) -> Crossing:
        """Return no flows (data sent between machines), because learners are on the main machine."""
        return Crossing()

    def write(self, number: int, vector: FlatParams, optimizer: torch.optim.Optimizer, version: int) -> None:
        """Write a snapshot for copy order `number`."""
        self._head[_NUMBER] = 0  # during the write, so that a killed writer leaves no partial snapshot
        memory_barrier()
        state = optimizer_state(optimizer)
        torch.from_numpy(self._vector).copy_(vector.flat)
        for name, row in zip(self.statistics, self._statistics, strict=True):
            row[:] = state[name].cpu().numpy()
        self._head[_SNAPSHOT_VERSION], self._head[_STEPS] = version, int(state["step"]) if "step" in state else 0
        memory_barrier()
        self._head[_NUMBER] = number

    @torch.no_grad()
    def read(self, vector: FlatParams, optimizer: torch.optim.Optimizer) -> int:
        """Load the snapshot into a learner's vector and optimizer. Return the version of the loaded weights."""
        memory_barrier()
        state = {k: torch.tensor(x) for k, x in zip(self.statistics, self._statistics, strict=True)}
        if "exp_avg" in state:
            state["step"] = torch.tensor(float(self._head[_STEPS]))
        vector.flat.copy_(torch.from_numpy(self._vector))
        load_state(optimizer, state)
        return int(self._head[_SNAPSHOT_VERSION])

    def save(self) -> Batch:
        """Return all arrays, for a checkpoint."""
        return {"head": self._head, "vector": self._vector, "statistics": self._statistics}

    def load(self, saved: Batch) -> None:
        """Copy arrays from a checkpoint back into the snapshot."""
        for name, array in self.save().items():
            array[:] = saved[name]


# The current weights of several agents, and the number of agent steps that they have trained on together.


_LAST = 0  # cell: the number of the run's last save; 0: not known yet


class AgentParams(SharedArrays):
    """Published weights (Params) of several agents, which train separately.

    The run ends when all agents together have trained on the run's agent steps. A checkpoint is complete once each
    agent has added its part.
    `snapshot`: memory through which an agent copies another agent's weights, or None if agents do not copy each other.
    """

    learnt = shared_array(np.float64, lambda p: (len(p.each),))  # agent steps trained on, by agent
    _cells = shared_array(np.int64, lambda _: (8,))

    def __init__(
        self, network: NetworkOrFactory, agents: int, readers: int = 1, statistics: Sequence[str] | None = None
    ):
        """`statistics`: names of the optimizer's numbers per weight, or None if agents do not copy each other."""
        self.snapshot = None if statistics is None else AgentSnapshot(network, statistics)
        self.each = [Params.of(network, readers) for _ in range(agents)]
        super().__init__()

    agents = property(lambda self: len(self.each))
    together = property(lambda self: float(self.learnt.sum()))  # agent steps that all agents have trained on

    @property
    def patience(self) -> float:
        return self.each[0].patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        for params in self.each:
            params.patience = seconds

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory."""
        snapshot = 0 if self.snapshot is None else self.snapshot.nbytes
        return self.block.nbytes + snapshot + sum(params.nbytes for params in self.each)

    def crossing(self) -> Crossing:
        """Return each agent's flow of weights to other machines. All learners are on the main machine."""
        bells = [bell for params in self.each for bell in params.crossing().bells]
        return Crossing([WeightFlow(params, MAIN) for params in self.each], bells, self.close)

    def label(self) -> str:
        return f"{self.each[0].label()} × {self.agents} agents"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("publish",), ("params",))]

    def close(self) -> None:
        """End every wait on the weights of any agent."""
        super().close()
        for params in self.each:
            params.close()

    def save_number(self, saves: int, agent: int, last: bool) -> int | None:
        """Return the number of the checkpoint to which an agent's part belongs, counted from the start of this session.

        `saves`: number of save requests so far.
        `last`: whether this checkpoint ends the run. Agent 0 chooses its number. Before that, return None.
        """
        cells = self._cells
        if last and not agent and not cells[_LAST]:
            cells[_LAST] = saves + 1
        if cells[_LAST]:
            return int(cells[_LAST])
        return None if last else saves
