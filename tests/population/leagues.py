"""Small leagues and their referees, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.buffers.league import League
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population.referee import NO_COPIES, Opponents, Referee
from polyplay.population.rules import Evolution

PLAYERS = "elo", "quality", "games", "points", "kind", "agent", "version"
DUEL = (0, 1)  # two teams of one seat each


def small(**more: Any) -> League:
    league = League(**{"agents": 2, "actors": 2, "teams": DUEL, "past": 3, **more})
    league.patience = 0.0
    return league


def employ(
    directory: Path,
    league: League,
    rule: str = "latest",
    matches: int = 4,
    heard: list | None = None,
    resume: Path | None = None,
    copies: Evolution = NO_COPIES,
) -> Referee:
    said = (lambda kind, text: heard.append((kind, text))) if heard is not None else lambda kind, text: None
    control = Counters(1), RunControl()
    ctx = WorkerContext("referee", 0, 1, 0, 3, *control, directory, patience=0.0, log=said, resume=resume)
    return Referee(ctx, league, Opponents.parse(rule), matches, copies)


def play(league: League, actor: int, outcomes: Sequence[Sequence[float]], players: Sequence[int] | None = None) -> None:
    """Matches of the players at the actor's table, in the order of their seats."""
    draw, table = league.table(actor)
    league.acknowledge(actor, draw)
    league.report(actor, np.array([players if players is not None else table] * len(outcomes)), np.array(outcomes))


def everything(league: League) -> dict[str, Any]:
    return {name: getattr(league, name).tolist() for name in PLAYERS}
