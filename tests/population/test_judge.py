"""The judge and its gate: only weights that win a match play. The rater: what it plays is rated once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polyplay
from polyplay.core import checkpoint, files
from polyplay.core.errors import UserError
from polyplay.core.files import Row, read_lines
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES
from polyplay.nets import NetworkFactory
from polyplay.population import ratings
from polyplay.population.judge import BATCH, RATING_METRIC, Gate, rater
from polyplay.population.ratings import RATINGS, REFERENCES, rate_lines
from polyplay.weights.params import FlatParams, Params
from tests.systems.settings import BOARD

SMALL: Any = {**BOARD, "players": 1}

SMALL |= {"learners": 1, "leaves": 1, "tensorboard": False, "report_every": 0.5}

SMALL |= {"evaluator": "torch", "gate": 0.5, "gate_games": 16, "gate_every": 20, "champion_games": 0}

BOARD = GAMES["tic_tac_toe"]


def trained(path: Path, **settings: Any) -> Any:
    return polyplay.train("alphago_zero", run=str(path), **{**SMALL, "precision": "float32", **settings})


def matches(run: Path) -> list[Row]:
    return list(read_lines(run / "matches.jsonl", "candidate"))


def champions(run: Path) -> list[int]:
    return [int(checkpoint.manifest(path)["counters"]["updates"]) for path in checkpoint.champions(run)]


def games_of(run: Path, match: Row) -> list[float]:
    """The candidate's points in the games of a match, each of which is written down once, moves and result."""
    lines = [row for row in read_lines(run / "games.jsonl") if row["name"].startswith(f"gate-{match['candidate']}-")]
    assert len({row["name"] for row in lines}) == len(lines)
    points = []
    for row in lines:
        assert sorted((row["black"], row["white"])) == [match["champion"], match["candidate"]]
        record, names = BOARD.new(), [BOARD.move_name(action) for action in range(BOARD.actions)]
        results = [board_rules.play(BOARD.numbers, record, names.index(move)) for move in row["moves"]]
        assert set(results[:-1]) == {records.GOES_ON}
        last = {records.WON: 1, records.DRAWN: 0}[results[-1]]
        assert row["outcome"] == last * (-1) ** (len(results) - 1)
        assert [value is None for value in row["values"]] == [ply < 3 for ply in range(len(results))], "openings"
        points.append((1 + row["outcome"] * (1 if row["black"] == match["candidate"] else -1)) / 2)
    return points


def agree(run: Path) -> None:
    """Champions, matches, games and checkpoints tell one story."""
    played, plays = matches(run), 0
    assert played
    for row in played:
        assert row["champion"] == plays, "each match is against the last that passed"
        assert row["wins"] + row["draws"] + row["losses"] == row["games"] <= 16
        assert row["points"] == row["wins"] + row["draws"] / 2
        assert row["passed"] is (row["points"] > 8)
        points = games_of(run, row)
        assert [points.count(x) for x in (1, 0.5, 0)] == [row["wins"], row["draws"], row["losses"]]
        plays = row["candidate"] if row["passed"] else plays
    assert champions(run) == [0, *(row["candidate"] for row in played if row["passed"])]


@pytest.mark.long
@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, {"serial": True}])
def test_what_plays_has_won_a_match(how, tmp_path):
    run = trained(tmp_path / "run", steps=6_000, **how)
    for steps in (12_000, 24_000):  # on a busy machine few matches are played beside training
        if len(champions(run.directory)) == 1:
            polyplay.resume(run.directory, steps=steps)
    agree(run.directory)
    assert len(champions(run.directory)) > 1
    assert polyplay.evaluate(run.directory, episodes=64)["episodic_return_mean"] > 0.5, "against random moves"
    best = polyplay.evaluate(run.directory, checkpoint="best", episodes=64)
    assert (best["checkpoint"], best["chosen_by"]) == (checkpoint.champions(run.directory)[-1].name, "match")


@pytest.mark.long
def test_the_best_weights_play_so_many_games_before_others_follow(tmp_path):
    """Also where a run goes on: games before count."""
    trained(tmp_path / "run", steps=1_700, serial=True, champion_games=150, gate=0.5, checkpoint_every=1e6)
    run = polyplay.resume(tmp_path / "run", steps=6_000)
    saved = [checkpoint.manifest(path)["counters"] for path in checkpoint.champions(run.directory)]
    assert len(saved) > 1
    played = [0, *(counters["games_before"] for counters in saved[1:])]
    assert np.diff(played).min() >= 150
    assert all(row["candidate"] % 20 == 0 for row in matches(run.directory))


@pytest.mark.parametrize("stop", [1_500, 3_000])
@pytest.mark.long
def test_a_run_in_one_thread_goes_on_to_the_bit(stop, tmp_path):
    """The second stops at an update whose weights are a candidate."""
    settings: Any = {"serial": True, "trace": True, "checkpoint_every": 1e6, "anneal": "constant"}
    trained(tmp_path / "whole", steps=4_000, **settings)
    run = trained(tmp_path / "parts", steps=stop, **settings)
    assert (run.summary["updates"] % 20 == 0) is (stop == 3_000)
    polyplay.resume(run.directory, steps=4_000)
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("whole", "parts"))
    assert one.count("\n") > 50
    assert one == two
    story = [
        [{k: v for k, v in row.items() if k in ("candidate", "champion", "points", "games")} for row in rows]
        for rows in (matches(tmp_path / "whole"), matches(tmp_path / "parts"))
    ]
    assert story[0] == story[1]
    agree(tmp_path / "parts")


def test_a_lost_judge_is_replaced_and_no_torn_champion_plays(tmp_path):
    """Two are killed, each once a match has been played."""
    directory, before = tmp_path / "run", list[int]()
    over = threading.Event()

    def kill() -> None:
        while len(before) < 2 and not over.wait(0.02):
            if len(matches(directory)) > (before[-1] if before else 0) and (judges := _judges(directory.name)):
                before.append(len(matches(directory)))
                judges[0].kill()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            run = trained(directory, steps=8_000, on="process")
            for steps in (16_000, 32_000, 64_000):  # on a busy machine few matches are played beside training
                if len(before) < 2 or len(matches(directory)) == before[-1]:
                    run = polyplay.resume(directory, steps=steps)
        finally:
            over.set()
        killing.result(10)
    assert run.reason == "done"
    assert len(matches(directory)) > before[1] > before[0] > 0
    agree(directory)


def _judges(name: str) -> list[psutil.Process]:
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "judge" in (words := " ".join(process.cmdline())) and name in words:
                found.append(process)
    return found


def test_a_resumed_run_sets_later_and_damaged_champions_aside(tmp_path):
    run = trained(tmp_path / "run", steps=1_700, serial=True, gate_every=15, gate_games=8).directory
    assert any(row["passed"] for row in matches(run))
    there, last = champions(run), checkpoint.everything(run)[-1]
    arrays = checkpoint.open_checkpoint(last).arrays(checkpoint.policy_name(0))
    network = SimpleNamespace(state_dict=lambda: {name: torch.from_numpy(x) for name, x in arrays.items()})
    late = checkpoint.update_of(last) + 1
    for update in (late, late + 1):
        checkpoint.save_weights(run, checkpoint.CHAMPION, network, {"updates": update})
    file = checkpoint.champions(run)[-1] / f"{checkpoint.policy_name(0)}.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + bytes(4))
    assert champions(run) == [*there, late], "a damaged one does not play"
    polyplay.resume(run, steps=1_900)
    assert late not in champions(run)
    assert champions(run)[: len(there)] == there
    assert list((run / "checkpoints").glob(f"unused-champion-{late:012d}*"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gate": 0.3}, "--gate 0.3: must be 0 for no matches, or from 0.5 to below 1"),
        ({"gate_games": 15}, "--gate-games 15: must be an even number"),
    ],
)
def test_a_bad_gate_is_named_before_anything_starts(settings, words, tmp_path):
    with pytest.raises(UserError, match=words):
        trained(tmp_path / "run", steps=1_000, **settings)
    assert not (tmp_path / "run").exists()


def gate(games: int = 400, share: float = 0.55) -> Gate:
    return Gate(share, games, 1_000, 8)


@given(st.sampled_from([0.5, 0.55, 0.57, 0.6]), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=40, max_size=40))
def test_an_early_verdict_is_the_verdict_of_the_whole_match(share, results):
    found = [gate(40, share).verdict(sum(results[:n]), n) for n in range(41)]
    whole = round(2 * sum(results)) > round(2 * share * 40, 6)
    assert found[-1] is whole
    first = next(i for i, verdict in enumerate(found) if verdict is not None)
    assert set(found[first:]) == {whole}, "once certain it stays"
    if first:
        before, left = sum(results[: first - 1]), 41 - first
        assert before + left > share * 40 >= before, "before its last game either end was open"


def test_a_match_of_400_needs_221_points_and_the_next_is_at_the_next_multiple():
    found = [gate().verdict(*of) for of in ((220.0, 400), (220.5, 400), (221.0, 300), (0.0, 179), (0.0, 180))]
    assert found == [False, True, True, None, False]
    assert [gate().due_after(n) for n in (0, 999, 1_000, 1_001)] == [1_000, 1_000, 2_000, 2_000]


RATED = Envs("toy:skirmish+health=2", 4)

POLICY = NetworkFactory("mlp", RATED.spec, {"hidden": (4,)})

BOTS, EVERY, MATCHES = ("opposite", "focus"), 10, 2 * BATCH + 4


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ratings, "MATCHES", 8)
        yield


class Run:
    """A learner that publishes weights of zeros, which choose at random, and its rater."""

    def __init__(self, directory: Path, seed: int = 3, **more: Any):
        directory.mkdir(exist_ok=True)
        self.directory, self.heard = directory, list[tuple[str, str]]()
        self.params, self.counters = Params.of(POLICY), Counters(1, (RATING_METRIC,))
        net = POLICY()
        self.vector = FlatParams(net)
        torch.nn.init.zeros_(self.vector.flat)
        self.ctx = WorkerContext("rater", 0, 1, 0, seed, self.counters, RunControl(), directory, patience=0.0)
        self.ctx.log = lambda kind, text: self.heard.append((kind, text))
        self.asked = {"references": BOTS, "every": EVERY, "matches": MATCHES, **more}
        self.employ()

    def employ(self) -> None:
        self.turns: Iterator[None] = rater(self.ctx, games=RATED, policy=POLICY, params=self.params, **self.asked)

    def publish(self, version: int) -> None:
        self.params.publish(self.vector, version, version)
        self.ctx.counters.set("steps", 100.0 * version)

    def work(self, turns: int = 5000, until: int = 10**6) -> None:
        """Until so many lines are there, or so many turns were taken."""
        for _ in range(turns):
            next(self.turns)
            if len(self.lines) >= until:
                return

    @property
    def lines(self) -> list[dict]:
        return list(read_lines(self.directory / RATINGS))


def after_two(directory: Path) -> Run:
    """Versions 0 and 12 were rated."""
    run = Run(directory)
    for n, version in ((3, 0), (6, 12)):
        run.publish(version)
        run.work(until=n)
        run.work(2)
    return run


@pytest.fixture(scope="module")
def rated_run(few: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return after_two(tmp_path_factory.mktemp("runs") / "whole")


def told(run: Run) -> list[dict]:
    """Lines without the clock."""
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in run.lines]


def test_versions_are_rated_once_every_so_many_updates(tmp_path):
    run = after_two(tmp_path / "run")
    assert [(line["version"], len(line["points"])) for line in run.lines] == [
        *[(0, 16), (0, 16), (0, 4)],
        *[(12, 16), (12, 16), (12, 4)],
    ]
    rated = rate_lines(run.lines)
    assert [(version.matches, version.steps) for version in rated] == [(MATCHES, 0), (MATCHES, 1200)]
    assert [(line["mu"], line["sigma"]) for line in run.lines[2::3]] == [version.skill for version in rated]
    for mu, sigma in (version.skill for version in rated):
        assert abs(mu) < 3.5 * sigma < 8, "it plays at random, which is 0"
    total, n = run.counters.metrics.sum(0)[0]
    assert (total, n) == (pytest.approx(sum(version.skill[0] for version in rated)), 2)
    run.publish(21)
    run.work(50)
    assert len(run.lines) == 6, "9 updates later"
    run.publish(22)
    run.work(until=7)
    assert (run.lines[6]["version"], run.lines[6]["steps"]) == (22, 2200)


def test_a_rater_that_is_lost_anywhere_plays_the_same_again(rated_run, tmp_path):
    """At each turn of its own: while references meet, in a batch, after a line, which is torn."""
    run = Run(tmp_path / "lost")
    for version in (0, 12):
        run.publish(version)
        for turns in (7, 25, 40, 90, 130, 600):
            run.work(turns)
            run.turns.close()
            with open(run.directory / RATINGS, "ab") as file:
                file.write(b'{"version": 0, "mu"')
            run.employ()
            next(run.turns)
    assert told(run) == told(rated_run)
    assert (run.directory / REFERENCES).read_bytes() == (rated_run.directory / REFERENCES).read_bytes()


def test_a_version_that_was_left_half_rated_is_left_where_newer_weights_are_there(tmp_path):
    run = Run(tmp_path / "run")
    run.publish(4)
    run.work(until=1)
    run.turns.close()
    run.publish(5)
    run.employ()
    run.work(60)
    assert [line["version"] for line in run.lines] == [4]
    run.publish(14)
    run.ctx.resume = tmp_path / checkpoint.directory_name(40, {"steps": 900})  # which was removed since
    run.employ()
    run.work(until=2)
    assert [(line["version"], line["steps"]) for line in run.lines] == [(4, 400), (14, 900 + 1400)]


def test_while_the_disk_is_full_nothing_is_lost_and_it_is_said_once(rated_run, tmp_path, monkeypatch):
    run = Run(tmp_path / "full")
    run.publish(0)
    run.work(until=1)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(files.os, "write", full)
        run.work(100)
        assert len(run.lines) == 1
    run.work(until=3)
    assert told(run) == told(rated_run)[:3]
    (said,) = run.heard
    assert said[1].startswith(f"{RATINGS}: No space left on device; the disk is full")


@pytest.mark.parametrize(
    ("games", "more", "words"),
    [
        (RATED, {"references": ("focus", "level9")}, "unknown bots: level9; allowed: random, opposite, focus"),
        (Envs("toy:catch", 1), {"references": ()}, "ratings need two teams of the same kind"),
        (RATED, {"matches": 7}, "must be even and at least 2, half on each side; got 7"),
    ],
)
def test_what_cannot_be_rated_is_said(games, more, words, tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match=words):
        next(rater(run.ctx, games=games, policy=POLICY, params=run.params, **{**run.asked, **more}))
    assert not (run.directory / RATINGS).exists()
