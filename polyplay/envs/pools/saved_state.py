"""What decides an environment's future, as arrays; and how it travels between a pool and its processes.

Every layer of an environment, from the outermost wrapper to the environment itself, answers for itself alone: with
methods of its own, `get_state() -> dict` (of arrays, nested as you like) and `set_state(dict)`, or by what is known
here of Gymnasium's. A layer of which nothing is known may hold anything: then nothing is saved, and which it was is
said. `set_state` is called on an environment that was just built and reset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum

from polyplay.common import tree
from polyplay.common.shared_memory import SharedBlock
from polyplay.common.tree import Batch
from polyplay.envs.pools.batching import ReadyLanes
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.faults import Faults

SAVE, LOAD = 1 << 24, 1 << 25  # added to a lane's number: an order to save or load it instead of stepping it
UNSAVED = 5  # kind of a note: why a lane was not saved or loaded


class Unsaveable(Exception):
    """An environment that cannot tell its state, or not take it back: why, and what to do."""


def reason_of(e: BaseException) -> str:
    """One line."""
    text = " ".join(str(e).split())
    return text if isinstance(e, Unsaveable) else f"{type(e).__name__}: {text}"


# ---------------------------------------------------------------------------------------- generators


def generator_state(random: np.random.Generator) -> np.ndarray:
    """uint64 [6]: the state of a generator over PCG64, as Gymnasium's `np_random` is. Raises Unsaveable."""
    kept: Any = random.bit_generator.state
    if kept["bit_generator"] != "PCG64":
        raise Unsaveable(f"its generator is {kept['bit_generator']}; only PCG64, Gymnasium's own, is known")
    low = 2**64 - 1
    state, inc = kept["state"]["state"], kept["state"]["inc"]
    words = (state >> 64, state & low, inc >> 64, inc & low, kept["has_uint32"], kept["uinteger"])
    return np.array(words, np.uint64)


def set_generator_state(random: np.random.Generator, kept: np.ndarray) -> None:
    """Go on from what `generator` gave."""
    words = [int(x) for x in kept]
    state = {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3]}
    random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": state,
        "has_uint32": words[4],
        "uinteger": words[5],
    }


# ----------------------------------------------------------------------------------- what is known here


class _Classic:
    """Gymnasium's classic control: `state`, its generator, and CartPole's count of steps after the fall."""

    def save(self, env: Any) -> Batch:
        beyond = getattr(env, "steps_beyond_terminated", None)
        return {
            "state": np.asarray(env.state),
            "random": generator_state(env.np_random),
            "beyond": np.array(-1 if beyond is None else beyond),
        }

    def load(self, env: Any, kept: Batch) -> None:
        env.state = np.array(kept["state"])
        set_generator_state(env.np_random, kept["random"])
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None if kept["beyond"] < 0 else int(kept["beyond"])


class _Count:
    """A wrapper with one number that decides anything."""

    def __init__(self, name: str):
        self.name = name

    def save(self, wrapper: Any) -> Batch:
        return {"count": np.array(getattr(wrapper, self.name), np.int64)}

    def load(self, wrapper: Any, kept: Batch) -> None:
        setattr(wrapper, self.name, int(kept["count"]))


class _Nothing:
    """A wrapper that holds nothing which decides rows."""

    def save(self, wrapper: Any) -> Batch:
        return {}

    def load(self, wrapper: Any, kept: Batch) -> None:
        pass


class _Own:
    """A layer with methods of its own."""

    def save(self, layer: Any) -> Batch:
        kept = layer.get_state()
        wrong = _flaw(kept)
        if wrong:
            raise Unsaveable(f"get_state() of {type(layer).__name__} must give a dict of arrays, {wrong}")
        return tree.map(np.array, kept)

    def load(self, layer: Any, kept: Batch) -> None:
        layer.set_state(kept)


CLASSIC = (
    cartpole.CartPoleEnv,
    acrobot.AcrobotEnv,
    mountain_car.MountainCarEnv,
    continuous_mountain_car.Continuous_MountainCarEnv,
    pendulum.PendulumEnv,
)
COUNTS = {"TimeLimit": "_elapsed_steps", "OrderEnforcing": "_has_reset"}
NOTHING = (  # what some of these hold is read by nobody but themselves: first checks, statistics in `info`
    "PassiveEnvChecker",
    "RecordEpisodeStatistics",
    "ClipAction",
    "RescaleAction",
    "ClipReward",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "GrayscaleObservation",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
)


def _keeper(layer: Any) -> Any:
    """Who saves and loads a layer. A subclass of a known one may hold more, so it is not known. Raises Unsaveable."""
    kind = type(layer)
    if all(callable(getattr(kind, name, None)) for name in ("get_state", "set_state")):
        return _Own()
    if kind in CLASSIC:
        return _Classic()
    name = kind.__name__
    if (name in COUNTS or name in NOTHING) and getattr(gymnasium.wrappers, name, None) is kind:
        return _Count(COUNTS[name]) if name in COUNTS else _Nothing()
    raise Unsaveable(f"{name} has no get_state() and set_state()")


def _flaw(kept: Any) -> str:
    if not isinstance(kept, dict):
        return f"gave {type(kept).__name__}"
    for key, value in kept.items():
        if not isinstance(key, str) or not key or "/" in key:
            return f"gave the key {key!r}: keys are words without '/'"
        wrong = _flaw(value) if isinstance(value, dict) else _kind(key, value)
        if wrong:
            return wrong
    return ""


def _kind(key: str, value: Any) -> str:
    right = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"
    return "" if right else f"gave {getattr(value, 'dtype', type(value).__name__)} under {key!r}"


# ------------------------------------------------------------------------------------- one environment


def wrappers_of(env: Any) -> Iterator[Any]:
    """From the outermost wrapper to the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def save_env(env: Any) -> Batch:
    """What decides the future of `env`, layer by layer. Raises Unsaveable."""
    kept = [_keeper(layer).save(layer) for layer in wrappers_of(env)]
    return {"layers": _names(env), **{str(i): state for i, state in enumerate(kept)}}


def load_env(env: Any, kept: Batch) -> None:
    """Go on from there, in an environment that was reset. Raises Unsaveable: another one."""
    if not np.array_equal(kept["layers"], _names(env)):
        before, now = kept["layers"].tobytes().decode(), _names(env).tobytes().decode()
        raise Unsaveable(f"the environment was {before} and is {now}")
    for i, layer in enumerate(wrappers_of(env)):
        _keeper(layer).load(layer, kept.get(str(i), {}))


def _names(env: Any) -> np.ndarray:
    return np.frombuffer(" of ".join(type(layer).__name__ for layer in wrappers_of(env)).encode(), np.uint8)


# ------------------------------------------------------------------------------------------- in a pool


class StateMail:
    """A file without a name that a pool and one of its processes hold: the state of a lane, one at a time."""

    def __init__(self) -> None:
        self.block = SharedBlock(1)

    def put(self, kept: Batch) -> None:
        from safetensors.numpy import save as pack

        data = pack({k: np.asarray(v, order="C") for k, v in tree.leaves(kept)})
        os.ftruncate(self.block.fd, 0)
        os.pwrite(self.block.fd, data, 0)

    def take(self) -> Batch:
        from safetensors.numpy import load as unpack

        data = os.pread(self.block.fd, os.fstat(self.block.fd).st_size, 0)
        return tree.nest(unpack(data))


class StateServer:
    """Stands among a process's lanes under the number of such an order, and saves or loads one of them."""

    def __init__(self, lane: Any, order: int, mail: StateMail):
        self.lane, self.order, self.mail = lane, order, mail

    def turn(self) -> int:
        """The order's number, or `~number` with a note on the board."""
        try:
            if self.order >= LOAD:
                self.lane.load(self.mail.take())
            else:
                self.mail.put(self.lane.save())
            return self.order
        except BaseException as e:
            self.lane.board.note(self.lane.lane, UNSAVED, reason_of(e))
            return ~self.order


def state_servers(lanes: dict[int, Any], mail: StateMail) -> dict[int, StateServer]:
    return {order + i: StateServer(lane, order + i, mail) for order in (SAVE, LOAD) for i, lane in lanes.items()}


def pool_state(board: SharedRows, turns: ReadyLanes, lanes: Batch) -> Batch:
    """A pool's state from those of its lanes; every lane has a row."""
    arrays = {"rows": board.rows, "action": board.action, "faults": board.faults}
    return {"lanes": lanes, "turns": turns.state(), **tree.map(np.copy, arrays)}


def load_pool_state(board: SharedRows, turns: ReadyLanes, faults: Faults, kept: Batch) -> None:
    """The same backwards, once the lanes are loaded."""
    arrays = {"rows": board.rows, "action": board.action, "faults": board.faults}
    tree.map(lambda mine, was: mine.__setitem__(..., was), arrays, {k: kept[k] for k in arrays})
    faults.forget()
    turns.load(kept["turns"])
