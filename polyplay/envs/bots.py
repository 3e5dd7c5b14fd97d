"""Scripted players: they see what their seats see, and learn nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.pools.build import imported, one_line
from polyplay.envs.spaces import fields

Bot = Callable[[Tree, Tree | None], Tree]  # observations [n, …] and masks, None without any: actions [n]


def load_bot(spec: EnvSpec, name: str) -> Bot:
    """Raises UserError: its callable is not there, raises, or returns something else."""
    bot = imported(spec.bots[name], "polyplay_bots")
    mask = None if spec.mask is None else tree.map(lambda x: x | True, tree.zeros(spec.mask, (2,)))
    want = [(2, *field.shape) for _, field in tree.leaves(fields(spec.action))]
    try:
        given = [np.shape(x) for _, x in tree.leaves(bot(tree.zeros(spec.obs, (2,)), mask))]
    except Exception as e:
        raise UserError(f"polyplay_bots: {name}: {spec.bots[name]} raised {one_line(e)}") from e
    if given != want:
        text = f"{spec.bots[name]} returned actions of shape {given} for 2 players, allowed: {want}"
        raise UserError(f"polyplay_bots: {name}: {text}")
    return bot
