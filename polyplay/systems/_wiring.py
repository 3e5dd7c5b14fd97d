"""What pages share: Atari options, shares of replicas, a replay of rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

from polyplay.buffers.replay import Replay, Sampler
from polyplay.buffers.rollout_queue import PolicyLike, row_spec
from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.atari.presets import preset


def atari_options(c: Any, life_loss: str = "auto", pipeline: str = "") -> dict[str, Any]:
    """The options of the Atari preset that `c.atari` names, where the environment is an Atari game: NAME, NAME:PIPELINE
    or auto:PIPELINE (auto: the page's default). `pipeline`: the only one that will do, where it matters.
    Raises UserError: an unknown one, another pipeline, or no Atari game.
    """
    name, colon, how = c.atari.partition(":")
    if not (isinstance(c.env, str) and c.env.startswith("ALE/")):
        presets = sys.modules[type(c).__module__].PRESETS.values()
        if c.atari not in {make().atari for make in presets}:
            raise UserError(f"--atari: {c.atari} given, but --env {c.env} is no Atari game (ALE/Pong-v5)")
        return {}
    options = preset(type(c).atari if name == "auto" else name)
    if colon and how not in ("native", "plain"):
        raise UserError(f"--atari: {c.atari} given; after the colon allowed: native, plain")
    if colon and how != (pipeline or how):
        raise UserError(f"--atari: {c.atari} given, but here each environment is a process of its own: use :{pipeline}")
    how = how or pipeline
    cut = {} if life_loss == "auto" else {"life_loss": life_loss}
    return {**options, **cut, **({"pipeline": how} if how else {})}


def shares_of(n: int, among: str = "replicas", **wholes: int) -> list[int]:
    """Each one's share of every whole, where there are `n` of them. Raises UserError: one does not divide, or there is
    nothing to divide.
    """
    for name, whole in wholes.items():
        if n < 1 or whole % n or whole // n < (name != "start"):
            raise UserError(f"--{name} {whole} does not divide among --{among} {n}: make it a multiple of that")
    return [whole // n for whole in wholes.values()]


def only_with(option: str, c: Any, *others: str) -> None:
    """Raises UserError: one of the `others` was set though it says nothing without `option`, which is off."""
    for f in fields(c):
        given = getattr(c, f.name)
        if f.name in others and given != f.default and not getattr(c, option):
            raise UserError(f"--{f.name} {given} says nothing without --{option}: give both, or leave it out")


@dataclass(frozen=True)
class DrawSpec:
    """What is drawn from a replay, and when: fields of Replay."""

    batch: int
    sampler: Sampler
    n_step: int
    gamma: float
    reward: str = "none"
    scale: float = 1.0
    start: int = 1
    ratio: float | None = None
    soft: bool = False
    sequence: int = 0
    burn_in: int = 0
    period: int = 0


def replay_of_rows(envs: Envs, net: PolicyLike, lanes: int, capacity: int, drawn: DrawSpec) -> Replay:
    """A replay of such environments' rows, of stacked images only the newest plane. The policy's values are stored
    where first priorities are made of them.
    """
    spec, stack = envs.spec, 0
    left = {"agent"} if getattr(drawn.sampler, "first", "") == "td" else {"agent", "value", "chosen"}
    if envs.title.startswith("ALE/") and spec.obs.shape[0] > 1:
        stack = spec.obs.shape[0]
    rows = {k: v for k, v in row_spec(spec.obs, net.spec(), spec.mask).items() if k not in left}
    return Replay(rows, lanes, capacity, state=net.state_spec(), stack=stack, **vars(drawn))
