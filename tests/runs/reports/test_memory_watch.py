from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyplay.envs import Envs
from polyplay.runs.reports.memory_watch import MOST, MemoryTrend, MemoryWatch

HOUR = 3600.0


def leak_of(mb: Callable[[float], float], hours: float = 1.0, every: float = 15.0) -> float:
    """Of a process whose memory is mb(hours since it began)."""
    trend = MemoryTrend()
    for i in range(int(hours * HOUR / every) + 1):
        trend.add(i * every, mb(i * every / HOUR))
    assert len(trend.samples) <= MOST
    return trend.leak()


def noise(hours: float) -> float:
    """In 0 … 1."""
    return math.modf(math.sin(hours * 1e4) * 1e4)[0] ** 2


LEAKS = {
    "steadily": lambda t: 300 + 400 * t,
    "under noise": lambda t: 300 + 400 * t + 30 * noise(t),
    "after a warm-up": lambda t: 300 + 200 * (1 - math.exp(-40 * t)) + 400 * t,
    "in steps": lambda t: 300 + 40 * int(10 * t),
    "while the collector swings": lambda t: 300 + 400 * t + 80 * ((20 * t) % 1),
}


@pytest.mark.parametrize("how", LEAKS)
def test_what_rises_without_end_is_a_leak(how: str):
    assert leak_of(LEAKS[how]) == pytest.approx(400, rel=0.15)


def test_a_slow_leak_is_found_in_a_long_run():
    assert leak_of(lambda t: 300 + 25 * t, hours=1.0) == 0.0
    assert leak_of(lambda t: 300 + 25 * t, hours=12.0) == pytest.approx(25, rel=0.05)


NONE: dict[str, Callable[[float], float]] = {
    "level": lambda t: 300,
    "noise": lambda t: 300 + 500 * noise(t),
    "warming up": lambda t: 300 + 1000 * (1 - math.exp(-15 * t)),
    "warming up slowly": lambda t: 300 + 1000 * (1 - math.exp(-4 * t)),
    "at once": lambda t: 300 + 1000 * (t > 0.5),
    "twice at once": lambda t: 300 + 500 * (t > 0.4) + 500 * (t > 0.8),
    "filled up": lambda t: 300 + 3000 * min(t, 0.6),
    "swinging": lambda t: 300 + 400 * ((5 * t) % 1),
    "falling": lambda t: 900 - 400 * t,
    "so little that it is none": lambda t: 300 + 60 * t,
}


@pytest.mark.parametrize("how", NONE)
def test_what_settles_comes_at_once_or_swings_is_none(how: str):
    assert leak_of(NONE[how]) == 0.0


def test_ten_minutes_are_watched_first():
    assert leak_of(LEAKS["steadily"], hours=9 / 60) == 0.0
    assert leak_of(lambda t: 300 + 1000 * t, hours=11 / 60) == pytest.approx(1000, rel=0.1)


class Leaking(gymnasium.Env):
    """Lane 1 keeps half a megabyte at every step. obs: its process."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def polyplay_lane(self, lane: int) -> None:
        self.leaks, self.kept = lane == 1, list[Any]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.array([float(os.getpid())]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.leaks:
            self.kept.append(np.ones(1 << 16))
        return np.array([float(os.getpid())]), 0.0, False, False, {}


def crew(*roles: Any) -> Any:
    return SimpleNamespace(roles=roles)


def role(name: str, pid: int | None, held_replay: Any = None) -> Any:
    worker = SimpleNamespace(ctx=SimpleNamespace(index=0), runs=SimpleNamespace(pid=pid))
    return SimpleNamespace(name=name, workers={0: worker}, held_replay=held_replay)


def test_an_environment_that_leaks_is_named_with_its_process_and_its_rate():
    now = [0.0]
    watch = MemoryWatch(crew(), clock=lambda: now[0])
    with contextlib.closing(Envs(Leaking, 2, workers=2).open(0)) as pool:
        lanes, row = pool.recv(60)
        numbers = row["obs"][:, 0].astype(int).tolist()
        for _ in range(30):
            for _ in range(8):
                pool.send(lanes, np.zeros(2, np.int64))
                lanes, _ = pool.recv(60)
            now[0] += 60.0
            assert watch._measure() > 0
    lines = list(watch.news())
    assert lines[0].startswith(f"an environment process of the main process (process {numbers[1]}): its memory grows")
    assert watch.leaking == pytest.approx(240, rel=0.1), "4 MB a minute"
    assert all(f"(process {numbers[1]})" in line for line in lines)
    assert len(lines) <= 3, "anew only when it has doubled"
    assert list(watch.news()) == []


def test_a_replay_that_fills_is_no_leak():
    own = os.getpid()
    for held, watched in ((None, True), ("replay", False)):
        for pid in (own, None):  # a process, or a thread of the main one
            watch = MemoryWatch(crew(role("learn", pid, held)))
            watch._measure()
            assert any(number == own for number, _ in watch.trends) is watched
    assert MemoryWatch(crew(role("act", 7), role("learn", 8)))._workers()[0] | {own: ""} == {
        own: "", 7: "act 0", 8: "learn 0",
    }  # fmt: skip
