"""Scripted players: they see what their seats see, and learn nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyplay.common.tree import Tree
from polyplay.envs.pools.build import imported

Bot = Callable[[Tree, Tree | None], Tree]  # observations [n, …] and masks, None without any: actions [n]


def load_bot(bots: Mapping[str, str], name: str) -> Bot:
    """Of an EnvSpec. Raises UserError: its callable is not there."""
    return imported(bots[name], "polyplay_bots")
