"""A long run's log of games: it stops growing with every game, and still says how many there were."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyplay.cli.plot import read_curve
from polyplay.cli.watch import RunReader
from polyplay.core.files import write_json
from polyplay.runs.directory import games_of, rewind
from polyplay.runs.reporter import Reporter, Snapshot, ThinnedGames, stride
from polyplay.runs.session import CheckpointCompleter
from tests.reports import rows

WORKERS, LANES = 2, 4


def play(reporter: Reporter, games: int, first: int = 0) -> None:
    """Lanes that all end together, in two workers. Game i returns i, at step i."""
    for i in range(first, first + games):
        lane = i % (WORKERS * LANES)
        reporter.episode(float(i), 10, i, i, lane, worker=lane // LANES)


def make(directory: Path, bound: int, **more: Any) -> Reporter:
    return Reporter(directory, tensorboard=False, log_games=bound, **more)


def written(directory: Path) -> list[dict[str, Any]]:
    return rows(directory / "episodes.jsonl")


@pytest.mark.parametrize(
    ("number", "every"), [(1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (400, 4), (401, 8), (10**9, 1 << 24)]
)
def test_how_many_games_a_line_stands_for(number, every):
    assert stride(number, 100) == every


@pytest.mark.parametrize(("bound", "games"), [(100, 12_800), (64, 3_000), (1_000, 1_100)])
def test_lines_add_up_to_the_games_and_are_bounded(bound, games, tmp_path):
    said: list[str] = []
    reporter = make(tmp_path, bound, warn=said.append)
    play(reporter, games)
    reporter.close("done", 0)
    lines = written(tmp_path)
    assert sum(map(games_of, lines)) == reporter.episodes == games
    assert ["games" in line for line in lines[:bound]] == [False] * bound
    assert len(lines) <= 1.1 * bound * (1 + math.log2(games / bound) / 2) + 2 * WORKERS
    assert [line["frames"] for line in lines] == sorted(line["frames"] for line in lines)
    assert len(said) == 1
    assert f"after {bound:,} games (--log-games)" in said[0]


def test_every_lane_is_in_the_sample(tmp_path):
    """A fixed gap of 2, 4 or 8 would always meet the same one."""
    reporter = make(tmp_path, 100)
    play(reporter, 12_800)
    late = Counter(line["lane"] for line in written(tmp_path) if line["steps"] > 1_600)
    assert len(late) == WORKERS * LANES
    assert min(late.values()) > 0.25 * max(late.values())


def test_reports_and_callbacks_have_every_game(tmp_path):
    heard: list[dict[str, Any]] = []
    (tmp_path / "whole").mkdir()
    thinned, whole = make(tmp_path, 10), make(tmp_path / "whole", 10_000)
    thinned.listen = lambda file, row: heard.append(row)
    for reporter in (thinned, whole):
        play(reporter, 500)
    assert (thinned.episodes, thinned.return_mean, thinned.return_best) == (500, 449.5, 449.5)
    assert (whole.episodes, whole.return_mean, whole.return_best) == (500, 449.5, 449.5)
    assert [row["episodic_return"] for row in heard] == [float(i) for i in range(500)]
    assert not any("games" in row for row in heard)


def test_none_is_written_where_none_is_asked_for(tmp_path):
    said: list[str] = []
    reporter = make(tmp_path, 0, warn=said.append)
    play(reporter, 300)
    assert (reporter.episodes, reporter.return_mean) == (300, 249.5)
    reporter.close("done", 0)
    assert (written(tmp_path), said) == ([], [])
    again = make(tmp_path, 0, start={"frames": 300, "steps": 300, "updates": 3, "episodes": 300})
    assert again.episodes == 300


@pytest.mark.parametrize("clean", [True, False], ids=["ended", "killed"])
@pytest.mark.parametrize("at", [1_003, 1_599, 90])
def test_a_resumed_run_cuts_where_the_checkpoint_was(at, clean, tmp_path):
    """The checkpoint says how many games each worker had ended; lines and rest are of these."""
    first = make(tmp_path, 50)
    play(first, at)
    games = {f"{w * LANES}+{LANES}": sum(i % 8 // LANES == w for i in range(at)) for w in range(WORKERS)}
    play(first, 700, first=at)
    if clean:
        first.close("done", 0)
    counters = {"frames": at, "steps": at, "updates": 1, "games": games}
    rewind(tmp_path, counters, lambda text: None)
    lines = written(tmp_path)
    assert max(line["episodic_return"] for line in lines) < at, "a game that is played again"
    assert at - max(line["episodic_return"] for line in lines) < 4 * stride(at, 50) + WORKERS * LANES
    for worker, n in games.items():
        own = [line for line in lines if f"{line['lane'] // LANES * LANES}+{LANES}" == worker]
        assert sum(map(games_of, own)) == n
    again = make(tmp_path, 50, start=counters)
    assert again.episodes == at
    before = (tmp_path / "episodes.jsonl").read_bytes()
    rewind(tmp_path, counters, lambda text: None)
    assert (tmp_path / "episodes.jsonl").read_bytes() == before
    play(again, 500, first=at)
    again.close("done", 0)
    assert sum(map(games_of, written(tmp_path))) == again.episodes == at + 500


@pytest.mark.parametrize("lines", [True, False], ids=["thinned", "none written"])
def test_the_next_checkpoint_counts_the_games_of_the_last(lines, tmp_path):
    if lines:
        first = make(tmp_path, 20)
        play(first, 400)
        rewind(
            tmp_path, {"frames": 400, "steps": 400, "updates": 1, "games": {"0+4": 200, "4+4": 200}}, lambda text: None
        )
    parts: Any = SimpleNamespace()
    completer = CheckpointCompleter(tmp_path, parts, parts, 3, print, {"0+4": 200, "4+4": 200})
    assert [sum(completer.games_before[lane] for lane in range(k, k + 4)) for k in (0, 4)] == [200, 200]


def test_curves_and_the_live_page_read_what_is_there(tmp_path):
    write_json(tmp_path / "config.json", {"schema": 1, "system": "a2c", "config": {"env": "toy:catch"}, "seed": 0})
    reporter = make(tmp_path, 200)
    play(reporter, 6_400)
    reporter.report(Snapshot(6_400, 6_400, 10, memory_mb=1.0))
    reporter.close("done", 0)
    curve = read_curve(tmp_path)
    at, mean = curve.across["steps"][-1], curve.returns[-1]
    assert at == 6_399
    behind = at - mean  # of the last 100 games that are written, a span of 3,200: half of it
    assert behind == pytest.approx(1_600, rel=0.15)
    state = RunReader(tmp_path).state()
    steps, _, shown = state["curve"][-1]
    assert (steps, shown) == (at, pytest.approx(mean))
    assert state["now"]["episodes"] == 6_400


def test_a_line_that_says_nonsense_is_one_game():
    assert [games_of({"games": n}) for n in (0, -3, "many", None, True, 5)] == [1, 1, 1, 1, 1, 5]
    assert games_of({}) == 1


def test_lines_of_a_run_that_is_not_long_are_as_ever():
    thinned = ThinnedGames(5)
    games = [{"steps": i} for i in range(5)]
    assert [thinned.take(game, 0, i + 1) for i, game in enumerate(games)] == games
    assert list(thinned.rest()) == []
