"""What the page of AlphaGo Zero's Config means for its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyplay.acting.search import SearchOptions
from polyplay.acting.search.evaluators import check_backend
from polyplay.buffers import Replay
from polyplay.common.errors import UserError
from polyplay.common.tree import Spec

if TYPE_CHECKING:
    from polyplay.systems.alphago_zero import Config


def search_of(c: Config) -> SearchOptions:
    """Raises UserError."""
    check_backend(c.evaluator)
    return SearchOptions(
        c.simulations,
        c.exploration,
        c.c,
        fpu=c.fpu,
        noise=c.noise,
        noise_alpha=c.noise_alpha,
        temperature=((0, 1.0), (c.warm, 0.0)),
        symmetries=c.symmetries,
        reuse=c.keep_tree,
    )


def replay_of(c: Config, rows: Spec) -> Replay:
    """Of positions. Raises UserError."""
    if c.capacity < c.batch:
        raise UserError(f"--capacity: {c.capacity} given, allowed: as many as --batch, which is {c.batch}, or more")
    stored = {k: v for k, v in rows.items() if k != "agent"}
    return Replay(stored, c.players, c.capacity, c.batch, gamma=0.0, start=c.start, ratio=c.ratio)
