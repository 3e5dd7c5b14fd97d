"""What tests of systems ask of a run that was trained, and of a crew that runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.workers.crew import Crew


def updates(run: polyplay.Run) -> list[dict]:
    return list(read_lines(run.directory / "updates.jsonl"))


def weights(run: polyplay.Run) -> dict[str, np.ndarray]:
    return checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")


def same_weights(one: polyplay.Run, two: polyplay.Run) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def resumed_and_whole(system: str, tmp_path: Path, steps: int, **settings: Any) -> tuple[polyplay.Run, polyplay.Run]:
    """A run that was stopped halfway and resumed, and the same run without a stop."""
    settings |= {"trace": True, "serial": True}
    whole = polyplay.train(system, run=str(tmp_path / "whole"), steps=steps, **settings)
    half = polyplay.train(system, run=str(tmp_path / "half"), steps=steps // 2, **settings)
    assert 0 < len(updates(half)) < len(updates(whole))
    return polyplay.resume(half.directory, steps=steps), whole


def until(crew: Crew, condition: Callable[[], Any], seconds: float = 600.0) -> None:
    """Go on as a session does until `condition`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        crew.poll(0.02)


def kill_one_by_one(crew: Crew) -> None:
    """Kill the two workers that share a vector of weights, one after the other: each is replaced and goes on."""
    role: Any = crew.roles[0]
    update, workers = role.spec.update, crew._seats[role.name].workers
    crew.start(())
    try:
        until(crew, lambda: update.counters[:, 0].min() > 20)
        for index in (0, 1):
            before = int(update.counters[index, 0])
            os.kill(workers[index].runs.pid, signal.SIGKILL)
            until(crew, lambda i=index: crew.lost == i + 1)
            vector, statistics = (x.copy() for x in (update.shared, update.statistics))
            assert np.abs(vector).max() < 10, (float(np.nanmax(np.abs(vector))), int(np.isnan(vector).sum()))
            assert statistics.any()
            until(crew, lambda i=index, n=before: update.counters[i, 0] > n + 20)
            total = update.counters[:, 0].sum()
            assert int(crew.counters.column("updates")[workers[index].ctx.row]) >= total - 50
    finally:
        crew.stop()


def wired(system: str, crew: Crew, **settings: Any) -> Any:
    """A page in a crew; of the settings those that it knows."""
    page = systems.load(system)
    known = {f.name for f in fields(page.Config)}
    return page.build(page.Config(**{k: v for k, v in settings.items() if k in known}), crew)
