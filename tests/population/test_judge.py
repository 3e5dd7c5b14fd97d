"""The judge: only weights that win a match play, champions stay, and a lost judge or a stopped run loses none."""

from __future__ import annotations

import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row, read_lines
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES
from polyplay.population.judge import Matches
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.search import evaluators
from polyplay.workers.crew import Crew

SMALL: Any = {"env": "game:tic_tac_toe", "players": 1, "games": 16, "simulations": 12, "warm": 6, "noise_alpha": 1.0}
SMALL |= {"blocks": 1, "filters": 8, "batch": 64, "ratio": 2.0, "capacity": 4_000, "start": 400, "learning_rate": 0.02}
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
    assert best["checkpoint"] == checkpoint.champions(run.directory)[-1].name
    assert best["chosen_by"] == "match"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one thread, with matches and champions."""
    return trained(tmp_path_factory.mktemp("whole") / "run", steps=3_000, serial=True).directory


def test_matches_are_due_at_multiples_in_one_thread(whole):
    candidates = [row["candidate"] for row in matches(whole)]
    assert len(candidates) > 2
    assert candidates == list(range(20, 20 * len(candidates) + 1, 20))
    assert json.loads((whole / "summary.json").read_text())["updates"] - candidates[-1] <= 20


@pytest.mark.long
@pytest.mark.parametrize("part", [3_000, 1_700])
def test_the_best_weights_play_so_many_games_before_others_follow(part, tmp_path):
    """Also where a run goes on: games before count."""
    trained(tmp_path / "run", steps=part, serial=True, champion_games=150, gate=0.5, checkpoint_every=1e6)
    run = polyplay.resume(tmp_path / "run", steps=6_000)
    saved = [checkpoint.manifest(path)["counters"] for path in checkpoint.champions(run.directory)]
    assert len(saved) > 1
    played = [0, *(counters["games_before"] for counters in saved[1:])]
    assert np.diff(played).min() >= 150
    assert all(row["candidate"] % 20 == 0 for row in matches(run.directory))


def test_rows_have_the_version_of_the_champion_that_played(tmp_path):
    """A gate that nothing passes: the first weights play to the end."""
    run = trained(tmp_path / "run", steps=1_500, serial=True, gate=0.99)
    assert champions(run.directory) == [0]
    rows = [row for row in read_lines(run.directory / "metrics.jsonl", "updates") if row["lag_mean"] is not None]
    assert rows[-1]["lag_mean"] > rows[-1]["updates"] / 3, "all rows are of version 0"


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


def test_a_resumed_run_sets_later_champions_aside(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    there = champions(run)
    last = checkpoint.everything(run)[-1]
    arrays = checkpoint.open_checkpoint(last).arrays(checkpoint.policy_name(0))
    late = {"updates": checkpoint.update_of(last) + 1}
    checkpoint.save_champion(run, checkpoint.policy_name(0), arrays, late)
    polyplay.resume(run, steps=3_200)
    assert late["updates"] not in champions(run)
    assert champions(run)[: len(there)] == there
    assert list((run / "checkpoints").glob(f"unused-champion-{late['updates']:012d}*"))


def test_a_damaged_champion_does_not_play(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    there = checkpoint.champions(run)
    file = there[-1] / f"{checkpoint.policy_name(0)}.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + bytes(4))
    assert checkpoint.champions(run) == there[:-1]


def test_without_a_gate_there_is_no_judge(tmp_path):
    run = trained(tmp_path / "run", steps=2_000, gate=0.0)
    assert not (run.directory / "matches.jsonl").exists()
    assert champions(run.directory) == []


def test_the_figure_shows_the_way_through_the_gate():
    page = systems.load("alphago_zero")
    figure = diagram("alphago_zero", page.Config(), RunOptions())
    assert "┌─ judge × 1 ─" in figure
    assert re.search(r"learn ──► Params: [0-9,]+ weights ──► judge$", figure, re.MULTILINE)
    assert re.search(r"judge ──► Params: [0-9,]+ weights ──► self_play$", figure, re.MULTILINE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gate": 0.3}, "--gate: 0.3 given; allowed: 0 for no matches, or from 0.5 to below 1"),
        ({"gate_games": 15}, "--gate-games: 15 given; allowed: an even number"),
    ],
)
def test_a_bad_gate_is_named_before_anything_starts(settings, words, tmp_path):
    with pytest.raises(UserError, match=words):
        trained(tmp_path / "run", steps=1_000, **settings)
    assert not (tmp_path / "run").exists()


def test_the_numbers_that_auto_chose_for_matches_are_told(monkeypatch):
    monkeypatch.setattr(evaluators, "choose_backend", lambda network, batch, backend, *how: (backend, "bfloat16"))
    page, crew, said = systems.load("alphago_zero"), Crew(0), list[tuple[str, str]]()
    page.build(page.Config(**{k: v for k, v in SMALL.items() if k not in ("tensorboard", "report_every")}), crew)
    judge = next(role for role in crew.roles if role.best is not None)
    board, options, gate = (judge.settings[name] for name in ("board", "options", "gate"))
    for precision in ("auto", "float32"):
        ctx: Any = SimpleNamespace(device="cpu", precision=precision, resume=None, say=lambda *told: said.append(told))
        Matches(ctx, 2, board, judge.policy, options, gate)
    assert said == [("note", "the gate's matches: torch in bfloat16 computes the networks")]
