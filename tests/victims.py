"""A crew of workers that do nothing but take turns, for tests that harm it. Light: every worker imports this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from polyplay.core.shared_memory import SharedBlock
from polyplay.workers.crew import Crew

PATIENCE = 150  # seconds for anything to happen


def turns(ctx, *, block):
    block.array(64, "int64")[ctx.index] = os.getpid()
    while True:
        time.sleep(0.005)
        yield


def crew_of(n: int, **more: Any) -> tuple[Crew, Any]:
    """A started crew of `n` such workers, all at work, and int64 [64]: their processes' numbers."""
    crew, block = Crew(seed=5, log=lambda kind, text: None), SharedBlock(512)
    crew.add(turns, n, name="act", learner=True, block=block, **more)
    crew.start()
    pids = block.array(64, "int64")
    until(crew, None, lambda: pids[:n].all())
    return crew, pids


def until(crew: Crew, havoc: Any, condition: Callable[[], Any], saved: bool = False) -> None:
    """Go on as a session does until `condition`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        crew.poll(0.01)
        if havoc:
            havoc.tick(saved)
