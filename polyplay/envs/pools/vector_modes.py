"""Vector environments as their factories make them, opened in a mode that keeps an episode's last observation.

NEXT_STEP does, and DISABLED does; SAME_STEP gives it in info.
"""

from __future__ import annotations

import contextlib
import copy
import inspect

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from polyplay.common.errors import UserError
from polyplay.envs.pool import Envs, EnvSpec, Factory

OURS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")  # what make_vec leaves in a spec's kwargs

RESETS = {
    AutoresetMode.NEXT_STEP: "its own, in the next step",
    AutoresetMode.DISABLED: "by us, lane by lane",
    None: "",
}


def factory_keywords(make: Factory) -> set[str]:
    """The keywords that a factory takes, by its signature."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return set()
    return ({"num_envs", "autoreset_mode", "vector_kwargs"} & set(parameters)) - set(getattr(make, "keywords", ()))


def build_vector(make: Factory, n: int) -> gymnasium.Env | VectorEnv:
    """What a factory makes. It is called for `n` environments, in mode NEXT_STEP, then DISABLED, as far as its
    signature has these keywords; else without.
    """
    known = factory_keywords(make)
    if not known:
        return make()
    width = {"num_envs": n} if "num_envs" in known else {}
    for wanted in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED) if known - width.keys() else ():
        mode = {"autoreset_mode": wanted}
        with contextlib.suppress(Exception):
            env = make(**width, **(mode if "autoreset_mode" in known else {"vector_kwargs": mode}))
            if autoreset_mode(env) is wanted:
                return env
            env.close()
    env = make(**width)
    if not width or isinstance(env, VectorEnv):
        return env
    env.close()  # a single environment, whose num_envs means something else
    return make()


def autoreset_mode(env: object) -> AutoresetMode | None:
    """How a vector environment resets; None where it does not say, or is none."""
    if isinstance(env, VectorEnv):
        with contextlib.suppress(ValueError):
            return AutoresetMode(env.metadata.get("autoreset_mode"))
    return None


def resets_lanes(env: VectorEnv) -> bool:
    """Whether it can reset some lanes at any time, whatever its mode: Gymnasium's own can."""
    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def describe_resets(env: VectorEnv) -> str:
    """How the episodes of its lanes begin, and what no row shows of them."""
    mode = autoreset_mode(env)
    if mode is not AutoresetMode.SAME_STEP:
        return RESETS[mode]
    more = "is reset once more" if resets_lanes(env) else "makes the first step of its next episode unseen"
    return f"its own, in the same step: a lane that ends while others go on {more}"


def single_lane(make: Factory, title: str) -> gymnasium.Env | VectorEnv:
    """A single environment, or a vector environment of one lane (of as many as it has). What Gymnasium makes in
    SAME_STEP only becomes a single one, whose lanes are stepped by themselves. Raises UserError.
    """
    env = build_vector(make, 1)
    if any(c.__module__.startswith("envpool.") for c in type(env).__mro__):
        raise UserError(f"{title}: is an EnvPool, which takes its seeds when it is made; give --env envpool:TASK")
    if not isinstance(env, VectorEnv) or autoreset_mode(env) in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        return env
    name, found, kind, bare = type(env.unwrapped).__name__, env.spec, autoreset_mode(env), env is env.unwrapped
    simple = bare and found is not None and found.entry_point is not None
    if kind is not None and not simple:
        return env
    with contextlib.suppress(Exception):
        env.close()
    if kind is None:
        say = "its metadata must say autoreset_mode: gymnasium.vector.AutoresetMode.NEXT_STEP or DISABLED"
        raise UserError(f"{title}: {name} does not say how it resets; {say}")
    assert found is not None
    return _single(found)


def _single(found: gymnasium.envs.registration.EnvSpec) -> gymnasium.Env:
    """One environment of those that gymnasium.make_vec made."""
    found = copy.deepcopy(found)
    kwargs, found.kwargs = found.kwargs, {}
    env = gymnasium.make(found, disable_env_checker=True, **{k: v for k, v in kwargs.items() if k not in OURS})
    for wrap in kwargs.get("wrappers", ()):
        env = wrap(env)
    return env


def mask_note(title: str) -> UserError:
    """The message about action masks, which are read lane by lane."""
    return UserError(f"{title}: has action masks, which vector environments can't have here; give a single one of it")


def check_lanes(envs: Envs, spec: EnvSpec) -> None:
    """Raises UserError: a vector environment that can't have these lanes."""
    if not envs.fixed:
        raise UserError(f"{envs.title}: a vector environment steps all its lanes at once, without {envs.batching}")
    n = envs.lanes // envs.groups
    if spec.width not in (0, n):
        raise UserError(
            f"{envs.title}: makes {spec.width} environments, but a group of the pool has lanes={n}: give the function "
            f"a parameter num_envs, or choose lanes so that each group has {spec.width}"
        )
