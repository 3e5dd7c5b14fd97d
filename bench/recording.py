"""Play that was recorded once, as rows that actors send: for bench/fleet.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyplay import systems
from polyplay.acting.rows import EpsilonLadder
from polyplay.acting.worker import act
from polyplay.buffers.rollout_queue import RolloutBatches, RolloutQueue, row_spec
from polyplay.core import tree
from polyplay.core.shared_memory import Layout
from polyplay.core.tree import Batch, Field, Spec
from polyplay.core.worker import WorkerContext
from polyplay.envs import Envs
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.systems import _wiring
from polyplay.weights.params import FlatParams, Params, param_sizes
from polyplay.workers.crew import Crew

PLANES = 4  # of a stack


class Recording:
    """Rows of some lanes as `act` wrote them, in shared memory. Of stacks each plane once: the stack of the row whose
    newest plane is number i is planes[i - 3 : i + 1].
    """

    def __init__(self, planes: np.ndarray, newest: np.ndarray, rows: dict[str, np.ndarray]):
        """planes uint8 [P, H, W]; newest int64 [lanes, N]; rows: all other leaves by path, [lanes, N, …]."""
        layout, self.names = Layout(), ["planes", "newest", *rows]
        given = [planes, newest, *rows.values()]
        self._fields = [layout.add(a.shape, a.dtype) for a in given]
        self._block = layout.block()
        self._attach()
        for name, array in zip(self.names, given, strict=True):
            self.arrays[name][...] = array

    def _attach(self) -> None:
        self.arrays = {n: self._block.array(*f) for n, f in zip(self.names, self._fields, strict=True)}
        self.newest = self.arrays["newest"]
        self.lanes, self.rows = self.newest.shape
        planes = self.arrays["planes"]
        shape, steps = (len(planes) - PLANES + 1, PLANES, *planes.shape[1:]), (planes.strides[0], *planes.strides)
        self.stacks = np.lib.stride_tricks.as_strided(planes, shape, steps, writeable=False)

    def __getstate__(self) -> dict[str, Any]:
        return {k: self.__dict__[k] for k in ("names", "_fields", "_block")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def copy(self, lane: int, at: int, into: Batch) -> None:
        """Rows from `at` on into a slot's rows [T+1, 1, …], all but their version."""
        leaves = dict(tree.leaves(into))
        n = len(leaves["obs"])
        newest = self.newest[lane, at : at + n]
        edges = [0, *(np.flatnonzero(np.diff(newest) != 1) + 1).tolist(), n]
        for a, b in pairwise(edges):
            begin = int(newest[a]) - PLANES + 1
            leaves["obs"][a:b, 0] = self.stacks[begin : begin + b - a]
        for name in self.names[2:]:
            leaves[name][:, 0] = self.arrays[name][lane, at : at + n]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **self.arrays)

    @staticmethod
    def load(path: Path) -> Recording:
        with np.load(path, allow_pickle=False) as found:
            rest = {k: found[k] for k in found.files if k not in ("planes", "newest")}
            return Recording(found["planes"], found["newest"], rest)


def planes_of(obs: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each plane of stacks [N, 4, H, W] once, and the number of each row's newest one [N]."""
    kept, newest, n = list[np.ndarray](), np.empty(len(obs), np.int64), 0
    for t, stack in enumerate(obs):
        goes_on = t > 0 and not first[t] and np.array_equal(stack[:-1], obs[t - 1, 1:])
        kept.append(stack[-1:] if goes_on else stack)
        n += len(kept[-1])
        newest[t] = n - 1
    return np.concatenate(kept), newest


def record(rows: int, lanes: int = 8, env: str = "ALE/Pong-v5", T: int = 25) -> Recording:
    """So many rows of each lane, played by an untrained network on Ape-X's ladder of ε."""
    crew = Crew(serial=True)
    envs = Envs(
        env, lanes, workers=1, options=_wiring.atari_options(systems.load("apex").Config(env=env)), **crew.stepping
    )
    policy = factory.NetworkFactory("a3c", envs.spec, {"dueling": True}, values=True)
    net = build_network(policy, 0)
    params = Params(param_sizes(net)[1])
    params.publish(FlatParams(net), 0, 0)
    queue = RolloutQueue(spec_of(envs.spec.obs), net.state_spec(), T, lanes, 2)
    kept: list[Batch] = []

    def keep(ctx: WorkerContext, *, source: RolloutBatches) -> Iterator[None]:
        for taken in source.consumer(0):
            if taken is not None:
                kept.append(tree.map(lambda x: x[:-1].copy(), taken[0]))
            yield

    crew.add(act, envs=envs, policy=policy, params=params, out=queue, explore=EpsilonLadder(lanes))
    crew.add(keep, learner=True, source=queue.batches(1))
    crew.start()
    try:
        while T * len(kept) < rows:
            crew.poll(0.2)
    finally:
        crew.stop()
    whole = {path: np.concatenate(leaf) for path, *leaf in _columns(kept)}
    found = [planes_of(whole["obs"][:rows, i], whole["first"][:rows, i]) for i in range(lanes)]
    before = np.cumsum([0, *(len(p) for p, _ in found)])
    newest = np.stack([at + begin for (_, at), begin in zip(found, before, strict=False)])
    rest = {k: v[:rows].swapaxes(0, 1) for k, v in whole.items() if k not in ("obs", "version")}
    return Recording(np.concatenate([p for p, _ in found]), newest, rest)


def _columns(parts: list[Batch]) -> list[tuple[Any, ...]]:
    """(path, leaf of each part, …) of every leaf."""
    flat = [dict(tree.leaves(part)) for part in parts]
    return [(path, *(f[path] for f in flat)) for path in flat[0]]


def spec_of(obs: Spec) -> Spec:
    """The rows that Ape-X's actors write of such observations."""
    number = Field((), "float32")
    return row_spec(obs, {"action": Field((), "int64"), "value": number, "chosen": number})
