"""Scripted players: they see what their seats see, or the game itself, and learn nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs.pool import EnvSpec, Lanes, Pool, title_of
from polyplay.envs.pools.build import imported, one_line
from polyplay.envs.spaces import fields


class Seats(NamedTuple):
    """Where lanes sit in which matches, for bots that play by the state of the game."""

    game: Any
    states: Batch  # arrays [matches, …] of all of the pool's matches; only to be read
    match: np.ndarray  # int64 [n]: of each lane
    seat: np.ndarray  # int64 [n]


# observations [n, …] and masks, None without any, and where its attribute plays_state is true Seats: actions [n]
Bot = Callable[..., Tree]
SeatedBot = Callable[[Tree, Tree | None], Tree]  # one that has its lanes


def load_bot(spec: EnvSpec, name: str) -> Bot:
    """Raises UserError: its callable is not there, raises, or returns something else. One that plays by the state is
    tried by seat_bot.
    """
    bot: Bot = imported(spec.bots[name], "polyplay_bots")
    if not _plays_state(bot):
        _try(bot, spec, 2, f"{name}: {spec.bots[name]}")
    return bot


def seat_bot(bot: Bot, pool: Pool, lanes: Lanes) -> SeatedBot:
    """The bot on these lanes of the pool. Raises UserError: it plays by states that this pool does not have, raises, or
    returns something else.
    """
    if not _plays_state(bot):
        return bot
    seats_of, name = getattr(pool, "seats_of", None), title_of(bot)
    if seats_of is None:
        needs = "allowed: bots that play by observations, or a toy: or arena: environment of several players"
        raise UserError(f"polyplay_bots: {name} plays by the game's state, which these environments lack; {needs}")

    def play(obs: Tree, mask: Tree | None) -> Tree:
        return bot(obs, mask, seats_of(lanes))

    _try(play, pool.spec, len(range(pool.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes), name)
    return play


def _plays_state(bot: Bot) -> bool:
    return bool(getattr(bot, "plays_state", False))


def _try(bot: SeatedBot, spec: EnvSpec, n: int, name: str) -> None:
    """Raises UserError: it raises on n blank observations, or returns no actions for them."""
    mask = None if spec.mask is None else tree.map(lambda x: x | True, tree.zeros(spec.mask, (n,)))
    want = [(n, *field.shape) for _, field in tree.leaves(fields(spec.action))]
    try:
        given = [np.shape(x) for _, x in tree.leaves(bot(tree.zeros(spec.obs, (n,)), mask))]
    except Exception as e:
        raise UserError(f"polyplay_bots: {name} raised {one_line(e)}") from e
    if given != want:
        raise UserError(f"polyplay_bots: {name} returned actions of shape {given} for {n} players, allowed: {want}")
