"""Games against an agent that has learnt nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyplay.cli.play_session import PlaySession
from polyplay.games.boards import game
from polyplay.search import SearchOptions
from tests.search.test_policy import policy_of

ABOUT = {"run": "runs/x", "system": "alphago_zero", "updates": 7, "most": 1000}


@contextmanager
def session_of(name: str, simulations: int = 32, **options: Any) -> Iterator[PlaySession]:
    session = PlaySession(policy_of(game(name), SearchOptions(simulations, **options)), simulations, ABOUT)
    try:
        yield session
    finally:
        session.close()


def wait(done: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def settle(session: PlaySession) -> None:
    """Until the agent has nothing to think of."""
    wait(lambda: not session.state()["thinking"])
