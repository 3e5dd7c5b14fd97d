"""Save the state that decides an environment's future as arrays, and load it again.

The layers of an environment are its wrappers and the environment inside them. A layer may have the methods `get_state()
-> dict` (of arrays; dicts may be nested) and `set_state(dict)`. Layers of Gymnasium need no such methods, see
`COUNTERS` and `CLASSIC`. If the kind of a layer is unknown, nothing is saved, and the message names the layer.
`set_state` is called on an environment that was just built and reset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv, PendulumEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from polyplay.core import tree
from polyplay.core.tree import Batch


class Unsaveable(Exception):
    """Raised when an environment's state cannot be saved or loaded. The message says why."""


def reason_of(e: BaseException) -> str:
    """Format an exception in one line."""
    text = " ".join(str(e).split())
    return text if isinstance(e, Unsaveable) else f"{type(e).__name__}: {text}"


# ---------------------------------------------------------------------------------------- generators


def generator_state(random: np.random.Generator) -> np.ndarray:
    """Return the state of a PCG64 generator (Gymnasium's `np_random`) as uint64 [6]. Raises Unsaveable for another kind
    of generator.
    """
    saved: Batch = random.bit_generator.state  # type: ignore[assignment]
    if saved["bit_generator"] != "PCG64":
        raise Unsaveable(f"its generator is {saved['bit_generator']}; only PCG64, Gymnasium's own, is known")
    low = 2**64 - 1
    state, inc = saved["state"]["state"], saved["state"]["inc"]
    words = (state >> 64, state & low, inc >> 64, inc & low, saved["has_uint32"], saved["uinteger"])
    return np.array(words, np.uint64)


def set_generator_state(random: np.random.Generator, saved: np.ndarray) -> None:
    """Restore a state that `generator_state` returned."""
    high, low, inc_high, inc_low, has, kept = (int(x) for x in saved)
    state = {"state": high << 64 | low, "inc": inc_high << 64 | inc_low}
    random.bit_generator.state = {"bit_generator": "PCG64", "state": state, "has_uint32": has, "uinteger": kept}


# ----------------------------------------------------------------------------------- known layers


CLASSIC = (CartPoleEnv, AcrobotEnv, MountainCarEnv, Continuous_MountainCarEnv, PendulumEnv)
# Gymnasium's wrappers → the attribute that decides rows; "": the wrapper's state only serves first checks or statistics
# in `info`
COUNTERS = {"TimeLimit": "_elapsed_steps", "OrderEnforcing": "_has_reset", "PassiveEnvChecker": ""}
COUNTERS |= dict.fromkeys(("RecordEpisodeStatistics", "ClipAction", "RescaleAction", "ClipReward"), "")
SEEN = ("Dtype", "Filter", "Flatten", "Grayscale", "Rescale", "Reshape", "Resize")
COUNTERS |= {f"{name}Observation": "" for name in SEEN}


def _has_methods(layer: Any) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _counter_of(layer: object) -> str:
    """Return the attribute that a Gymnasium wrapper must save, or "" if it needs none. Raises Unsaveable for an unknown
    layer, or for a subclass of a known wrapper, because a subclass may have more state.
    """
    name = type(layer).__name__
    if name not in COUNTERS or getattr(gymnasium.wrappers, name, None) is not type(layer):
        raise Unsaveable(f"{name} has no get_state() and set_state()")
    return COUNTERS[name]


def _save_layer(layer: Any) -> Batch:
    if _has_methods(layer):
        state = layer.get_state()
        wrong = _flaw(state)
        if wrong:
            raise Unsaveable(f"get_state() of {type(layer).__name__} must give a dict of arrays, {wrong}")
        return tree.map(np.array, state)
    if type(layer) in CLASSIC:
        beyond = getattr(layer, "steps_beyond_terminated", None)  # CartPole's number of steps after the pole fell
        return {
            "state": np.asarray(layer.state),
            "random": generator_state(layer.np_random),
            "beyond": np.array(-1 if beyond is None else beyond),
        }
    counter = _counter_of(layer)
    return {"count": np.array(getattr(layer, counter), np.int64)} if counter else {}


def _load_layer(layer: Any, saved: Batch) -> None:
    if _has_methods(layer):
        layer.set_state(saved)
    elif type(layer) in CLASSIC:
        layer.state = np.array(saved["state"])
        set_generator_state(layer.np_random, saved["random"])
        if hasattr(layer, "steps_beyond_terminated"):
            layer.steps_beyond_terminated = None if saved["beyond"] < 0 else int(saved["beyond"])
    elif counter := _counter_of(layer):
        setattr(layer, counter, int(saved["count"]))


def _flaw(state: object) -> str:
    if not isinstance(state, dict):
        return f"gave {type(state).__name__}"
    for key, value in state.items():
        if not isinstance(key, str) or not key or "/" in key:
            return f"gave the key {key!r}: keys are words without '/'"
        if isinstance(value, dict):
            if wrong := _flaw(value):
                return wrong
        elif not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
            return f"gave {getattr(value, 'dtype', type(value).__name__)} under {key!r}"
    return ""


# ------------------------------------------------------------------------------------- one environment


def wrappers_of(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """Yield the layers of an environment, from the outermost wrapper to the environment inside."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def save_env(env: gymnasium.Env) -> Batch:
    """Return the state of `env`, layer by layer. Raises Unsaveable."""
    return {"layers": _names(env), **{str(i): _save_layer(layer) for i, layer in enumerate(wrappers_of(env))}}


def load_env(env: gymnasium.Env, saved: Batch) -> None:
    """Restore a saved state in an environment that was reset. Raises Unsaveable if the saved one had other layers."""
    if not np.array_equal(saved["layers"], _names(env)):
        before, now = saved["layers"].tobytes().decode(), _names(env).tobytes().decode()
        raise Unsaveable(f"the environment was {before} and is {now}")
    for i, layer in enumerate(wrappers_of(env)):
        _load_layer(layer, saved.get(str(i), {}))


def _names(env: gymnasium.Env) -> np.ndarray:
    return np.frombuffer(" of ".join(type(layer).__name__ for layer in wrappers_of(env)).encode(), np.uint8)
