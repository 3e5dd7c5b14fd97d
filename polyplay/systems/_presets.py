"""Which of a page's presets fits an environment. Those of its paper are on the page, for the games of its paper; those
tuned here for other kinds of environments, its domains, or for single board games are in tuned.toml.

Imports no torch.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from polyplay.envs import Envs
from polyplay.envs.spaces import Discrete

AUTO = "auto"
MODULES = {  # by where Gymnasium's registry finds the class
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
}
EXAMPLES = {  # what a domain's preset plays unless --env names something
    "atari": "ALE/Pong-v5",
    "classic": "CartPole-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "HalfCheetah-v5",
    "minigrid": "minigrid:MiniGrid-MemoryS7-v0",
}
CLIPPED = ("clip", "sign")
SIDES = {"game:go": 19, "game:othello": 8}  # cells of a side, if a name has no size


def names(page: Any) -> list[str]:
    """The page's presets, and those tuned for domains."""
    return [*page.PRESETS, *tuned(page)]


def tuned(page: Any) -> dict[str, dict[str, Any]]:
    """Of a page: domain → settings; `source` and, by environment, `envs` among them."""
    page = getattr(page, "OVER", page)  # a population's members are of this system
    found: dict[str, dict[str, Any]] = _table().get(page.__name__.rpartition(".")[2], {})
    return found


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "tuned.toml").read_text("utf-8"))


def choose(page: Any, env: Any, **made: Any) -> str:
    """The preset for an environment. made: its `kwargs` and `wrappers`, see Envs."""
    where, there = domain(env), tuned(page)
    plain = "paper" if "paper" in page.PRESETS else next(iter(page.PRESETS))
    if str(page.Config().env).startswith("game:"):
        return _of_game(page, str(env))
    if where in ("atari", "toy") or where in there or not there:
        return where if where in there else plain
    try:
        spec = Envs(env, 1, **made).spec
    except UserError:  # building the system says what is wrong
        return plain
    if isinstance(spec.obs, Field) and len(spec.obs.shape) == 3:
        return plain
    likeliest = "classic" if isinstance(spec.action, Discrete) else "mujoco"
    return next((name for name in (likeliest, "classic", "mujoco") if name in there), plain)


def _of_game(page: Any, env: str) -> str:
    """Of a page whose presets are for games: that of this game, of the same game on the board nearest in size, or
    quick.
    """
    named = {settings(page, name).env: name for name in reversed(names(page))}
    sides = {game: _side(game) for game in named if game.split("+")[0] == env.split("+")[0]}
    nearest = min(sides, key=lambda game: abs(sides[game] - _side(env)), default="")
    return named.get(env) or named.get(nearest, "quick")


def _side(game: str) -> int:
    """Cells of a board's side, of games that name it."""
    given = [word.removeprefix("size=") for word in game.split("+") if word.startswith("size=")]
    return int(given[0]) if given and given[0].isdecimal() else SIDES.get(game.split("+")[0], 0)


def domain(env: Any) -> str:
    """atari, toy, one of MODULES (board games: classic), or other: what Gymnasium has not, or has from elsewhere."""
    if not isinstance(env, str):
        return "other"
    if env.startswith(("ALE/", "toy:")):
        return "atari" if env.startswith("ALE/") else "toy"
    if env.startswith("game:"):  # small vectors and discrete actions, as there
        return "classic"
    module, _, name = env.rpartition(":")
    import gymnasium

    if module in MODULES.values() and importlib.util.find_spec(module):
        importlib.import_module(module)  # it registers its environments
    spec = gymnasium.registry.get(name)
    point = getattr(spec, "entry_point", "")
    return next((where for start, where in MODULES.items() if str(point).startswith(start)), "other")


def settings(page: Any, name: str, env: Any = None, automatic: bool = False) -> Any:
    """The configuration that preset `name` stands for; of a domain, with what an environment has of its own. automatic:
    nobody named it. Raises UserError: there is none.
    """
    there = tuned(page)
    if name in page.PRESETS:
        made = page.PRESETS[name]()
        return _beyond_atari(made) if automatic and env is not None and domain(env) != "atari" else made
    if name not in there:
        near = difflib.get_close_matches(name, names(page), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        title = page.__name__.rpartition(".")[2]
        raise UserError(f"--preset: '{name}' given, allowed for {title}: {', '.join([AUTO, *names(page)])}{hint}")
    section = dict(there[name])
    if automatic and env is not None and domain(env) != name:  # of a likely kind: what its code does is no order here
        section.pop("actions", None)
    like, own = section.pop("like", None), section.pop("envs", {}).get(env, {})
    values = {"env": EXAMPLES.get(name), **section, **own} | ({} if env is None else {"env": env})
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "source"}
    first = page.PRESETS[like]() if like else page.Config()
    return replace(first if name == "atari" else _beyond_atari(first), **values)


def _beyond_atari(c: Any) -> Any:
    """The network by the observations, and rewards as they are."""
    known = {f.name for f in fields(c)}
    changes = {"network": "auto"} if "network" in known else {}
    changes |= {"reward": "none"} if getattr(c, "reward", "") in CLIPPED else {}
    return replace(c, **changes)


def with_fastest(c: Any, serial: bool) -> tuple[Any, dict[str, Any]]:
    """A preset's configuration, and the run's options that it sets: with the fastest evaluator the fastest precision.
    With --serial neither, as both are measured and such runs repeat to the bit.
    """
    if getattr(c, "evaluator", "") != "auto":
        return c, {}
    return (replace(c, evaluator="torch"), {}) if serial else (c, {"precision": "auto"})


def with_core(c: Any) -> Any:
    """Policy and value share a recurrent core, so they share a network."""
    return replace(c, network="mlp") if c.network == "separate" else c


def warning(page: Any, name: str, env: Any, **made: Any) -> str:
    """That a preset is for other environments, named or for want of one; "": it fits."""
    where, fits = domain(env), name if name in tuned(page) else domain(settings(page, name).env)
    if where in (fits, "toy", "other") or str(env).startswith("game:"):
        return ""
    better, title = choose(page, env, **made), page.__name__.rpartition(".")[2]
    if better == name:
        return f"{title} has no settings for {where} environments such as {env}: it uses those for {fits}"
    return f"--preset {name} is for {fits} environments, but {env} is of kind {where}: omit --preset to use {better}"
