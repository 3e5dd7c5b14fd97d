"""AlphaGo Zero learns tic-tac-toe, goes on to the bit, outlives its players, and loses no game."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import open_checkpoint
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game
from polyplay.runs.options import RunOptions, parse
from polyplay.runs.run import diagram
from polyplay.search import evaluators, self_play
from polyplay.search.search import SearchPolicy
from polyplay.systems import _presets
from polyplay.workers.crew import Crew
from tests.faults import injected
from tests.systems.settings import BOARD
from tests.verbs import refused

SMALL: Any = {**BOARD, "players": 2}

SMALL |= {"learners": 1, "leaves": 1, "evaluator": "torch", "tensorboard": False, "report_every": 0.5}


def trained(path: Path, **settings: Any) -> Any:
    return polyplay.train("alphago_zero", run=str(path), **{**SMALL, "precision": "float32", **settings})


def player_of(run: Path, simulations: int) -> SearchPolicy:
    page = systems.load("alphago_zero")
    config = polyplay.load(run).config["config"]
    wired = page.build(page.Config(**config | {"simulations": simulations}), Crew(0))
    player = play.load_player(wired, checkpoint.everything(run)[-1])
    assert isinstance(player, SearchPolicy)
    return player


def outcomes(board: Game, player: SearchPolicy, side: int) -> dict[str, int]:
    """Of every line of an opponent that tries all its moves; positions that several lines reach are played once."""
    found, room = {"won": 0, "drawn": 0, "lost": 0}, np.zeros(board.actions, np.int16)
    level = [board.new()]
    while level:
        mine = level[0][0] == side
        if mine:
            moves = [[move] for move in player.choose(np.stack(level))[0].tolist()]
        else:
            moves = [room[: board_rules.legal(board.numbers, record, room)].tolist() for record in level]
        behind = dict[bytes, np.ndarray]()
        for record, tried in zip(level, moves, strict=True):
            for move in tried:
                after = record.copy()
                result = board_rules.play(board.numbers, after, move)
                if result == records.GOES_ON:
                    behind[after.tobytes()] = after
                else:
                    found["drawn" if result == records.DRAWN else "won" if mine else "lost"] += 1
        level = list(behind.values())
    return found


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}])
def test_it_learns_from_its_own_games(how, tmp_path):
    run = trained(tmp_path / "run", steps=6_000, **how)
    rows = list(read_lines(run.directory / "metrics.jsonl", "updates"))
    assert run.reason == "done"
    assert run.summary["updates"] > 100
    assert run.summary["episodes"] > 500
    assert rows[-1]["steps"] >= 6_000
    games = [row["name"] for row in read_lines(run.directory / "games.jsonl")]
    assert len(set(games)) == len(games) > 64
    score = polyplay.evaluate(run.directory, episodes=64)
    assert score["episodic_return_mean"] > 0.6, "against random moves, both sides"
    with pytest.raises(UserError, match="--checkpoint: 'best' given, allowed: "):
        polyplay.evaluate(run.directory, checkpoint="best")


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_it_never_loses_tic_tac_toe(seed, tmp_path):
    run = polyplay.train("alphago_zero", preset="tic_tac_toe", seed=seed, run=str(tmp_path / "run"), tensorboard=False)
    assert run.summary["wall_seconds"] < 300, "ten core-minutes"
    for simulations in (0, 25, 100):
        player = player_of(run.directory, simulations)
        assert [outcomes(GAMES["tic_tac_toe"], player, side)["lost"] for side in (0, 1)] == [0, 0]


def stopped_and_whole(tmp_path: Path, part: int, whole: int, **more: Any) -> list[list[str]]:
    """The updates of a run that stops and is resumed, and of one that does not stop."""
    settings: Any = {"serial": True, "trace": True, "checkpoint_every": 1e6, "anneal": "constant", **more}
    trained(tmp_path / "whole", steps=whole, **settings)
    run = trained(tmp_path / "parts", steps=part, **settings)
    polyplay.resume(run.directory, steps=whole)
    return [(tmp_path / name / "updates.jsonl").read_text().splitlines() for name in ("parts", "whole")]


def test_a_run_in_one_thread_goes_on_to_the_bit(tmp_path):
    stopped, whole = stopped_and_whole(tmp_path, 1_500, 3_000)
    assert stopped == whole
    assert len(whole) > 50
    files = (tmp_path / name / "games.jsonl" for name in ("parts", "whole"))
    parts, games = ([row | {"wall_seconds": 0} for row in read_lines(file)] for file in files)
    assert parts == games
    assert len(games) > 100


def test_openvino_is_needed_for_self_play_alone(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "openvino" else find(name, *more)
    )
    with pytest.raises(UserError, match=r"--evaluator openvino: needs the package openvino"):
        trained(tmp_path / "run", steps=100, evaluator="openvino")
    assert not (tmp_path / "run").exists()
    page = systems.load("alphago_zero")
    settings = {k: v for k, v in SMALL.items() if k not in ("tensorboard", "report_every")}
    assert page.build(page.Config(**settings | {"evaluator": "openvino"}), Crew(0)).player


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_a_resumed_player_computes_as_the_saved_one(precision, tmp_path, monkeypatch, capfd):
    """Measured again, `auto` could choose another backend or other numbers, and other bits. Both times it is told."""
    settings: Any = {"serial": True, "trace": True, "checkpoint_every": 1e6, "anneal": "constant", "evaluator": "auto"}
    chosen, numbers = list[tuple[str, str]](), "float32" if precision == "float32" else "bfloat16"

    def choose(network: Any, batch: int, backend: str, precision: str, threads: int) -> tuple[str, str]:
        chosen.append((backend, precision))
        return "torch", numbers

    monkeypatch.setattr(evaluators, "choose_backend", choose)
    monkeypatch.setattr("polyplay.nets.device.choose_precision", lambda how: how)
    run = trained(tmp_path / "run", steps=1_000, precision=precision, **settings)
    assert chosen == [("auto", precision)] * 2, "one for each player"
    saved = checkpoint.open_checkpoint(checkpoint.everything(run.directory)[-1])
    assert [saved.arrays(f"workers/self_play-{i}")["computed"].tolist() for i in (0, 1)] == [
        [0, evaluators.PRECISIONS.index(numbers)]
    ] * 2
    text = f"self-play: torch in {numbers} computes the network, "
    assert capfd.readouterr().out.count(f"{text}the fastest way on this machine") == 1
    polyplay.resume(run.directory, steps=1_200)
    assert len(chosen) == 2, "a resumed player measures nothing"
    assert f"{text}as before" in capfd.readouterr().out


def chosen(line: str) -> tuple[str, str]:
    """The evaluator and the precision that options lead to."""
    settings, options, _ = parse(systems.load("alphago_zero"), line.split())
    return settings.evaluator, options.precision


@pytest.mark.parametrize(
    "words",
    [
        *(f"--preset {name}" for name in ("quick", "tic_tac_toe", "go5", "othello6", "go9")),
        *("--env game:connect_four", "--env game:go+size=13", "--env game:connect:5x5x4 --players 1"),
    ],
)
def test_presets_for_small_machines_take_the_fastest_there_is(words: str):
    assert chosen(words) == ("auto", "auto")
    assert chosen(f"{words} --evaluator torch") == ("torch", "auto")
    assert chosen(f"{words} --serial") == ("torch", "float32"), "which repeats to the bit on any machine"


@pytest.mark.parametrize("words", ["--preset paper", "--preset paper40", "--preset alphazero", "--env game:go"])
def test_settings_of_a_paper_are_computed_as_before(words: str):
    assert chosen(words) == ("torch", "float32")


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the extra openvino")
def test_openvino_plays_and_goes_on_to_the_bit(tmp_path):
    stopped, whole = stopped_and_whole(tmp_path, 1_000, 1_500, evaluator="openvino")
    assert stopped == whole
    assert len(whole) > 20


@pytest.mark.long
def test_a_lost_player_is_replaced_and_the_run_goes_on(tmp_path):
    with injected("kill=self_play:1"):
        run = trained(tmp_path / "run", steps=8_000)
    assert run.reason == "done"
    assert run.summary["restarts"] >= 1


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        (None, "quick"),
        ("game:go", "paper"),
        ("game:go+size=5+komi=24.5", "go5"),
        ("game:go+size=6", "go5"),
        ("game:go+size=9+komi=6.5", "go9"),
        ("game:go+komi=6.5", "paper"),
        ("game:connect_four", "quick"),
        ("game:tic_tac_toe", "tic_tac_toe"),
        ("game:othello+size=6", "othello6"),
        ("game:spiel:hex", "quick"),
    ],
)
def test_a_game_has_a_preset(env, preset):
    assert _presets.choose(systems.load("alphago_zero"), env) == preset


def test_its_metrics_are_reported(tmp_path, capfd):
    """All that docs/reference/metrics.md names for self-play; positions drawn too often are told."""
    run = trained(tmp_path / "run", steps=2_500, ratio=8.0, serial=True)
    reports = list(read_lines(run.directory / "metrics.jsonl"))
    named = {name for row in reports for name, value in row.items() if value is not None}
    assert named >= {*self_play.SEARCH_METRICS, "simulations_per_second", "games_per_hour", "replay_ratio"}
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    assert all(f"`{name}`" in page for name in self_play.SEARCH_METRICS)
    assert capfd.readouterr().out.count("each position is drawn") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--simulations 0", "--simulations: '0' given, allowed: a whole number from 1"),
        ("--noise-alpha 0", "--noise-alpha: '0' given, allowed: a number above 0"),
        (
            "--simulations 8 --leaves 1 --fast-simulations 9",
            "--fast-simulations: must be from 0 to its 8 simulations",
        ),
        ("--simulations 8 --leaves 9", "--leaves: must be at most its 8 simulations, got 9"),
        ("--root gumbel --simulations 8", "--gumbel-actions: must be from 1 to its 8 simulations, got 16; gumb"),
        ("--root forced", "--root: 'forced' given, allowed: puct, gumbel, gumbel_mctx"),
        ("--evaluator winograd", "--evaluator: 'winograd' given, allowed: torch, openvino, auto"),
        ("--noise 1.5", "--noise: '1.5' given, allowed: a number from 0 to 1"),
        ("--batch 64 --capacity 63 --learning-starts 9", "--capacity: 63 given, allowed: at least --batch, which"),
        ("--capacity 500 --batch 64 --learning-starts 501", "start=501 is more than capacity=500"),
        ("--env game:connect:4x4x5", "game:connect:4x4x5: 5 in a row; a 4x4 board allows 2 to 4"),
        ("--env game:conect_four", "did you mean connect_four?"),
        ("--env ALE/Pong-v5", "--env ALE/Pong-v5: must be a board game, whose rules are known: game:tic_tac_toe, "),
        ("--env CartPole-v1", "--env CartPole-v1: must be a board game, whose rules are known: game:tic_tac_toe, "),
    ],
)
def test_what_it_cannot_play_is_one_line(words, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capfd, "train", "alphago_zero", *words.split())
    assert list(tmp_path.iterdir()) == []


def replayed(found: Path, player: int) -> np.ndarray:
    """[n, 2] number of the game and move of each row of a player in the replay, the oldest first."""
    folder = found / "replay/learn-0"
    files = json.loads((folder / "replay.json").read_text())["files"]
    columns = []
    for key in ("game", "action"):
        pieces = [load_file(folder / f["name"]) for f in files if (f["part"], f["key"]) == ("rows", key)]
        columns.append(pieces[player]["rows"])  # a piece for each lane
    return np.stack(columns, 1)


def ended(found: Path, player: int) -> tuple[list[int], int]:
    """The numbers of a player's games wherever a checkpoint has them, and how many it says have ended."""
    saved = tree.nest(open_checkpoint(found).arrays(f"workers/self_play-{player}"))
    flight = saved.get("flight", {})
    slots = [flight[str(i)]["rows"]["game"][:, 0] for i in range(len(flight))]
    rest = [saved["finished"]["game"]] if "finished" in saved else []
    games = np.concatenate([replayed(found, player)[:, 0], *slots, *rest])
    begins = np.flatnonzero(np.diff(games, prepend=-1))
    return [int(n) for n in games[begins] if n >= 0], int(saved["number"])


def hold_every_game_once(run: Path) -> Path:
    found = checkpoint.everything(run)[-1]
    for player in range(2):
        numbers, count = ended(found, player)
        assert numbers == list(range(count))
        assert count > 10
    return found


@pytest.mark.long
@pytest.mark.parametrize("faults", ["hang=self_play:5:1", "kill=learn:3"])
def test_no_game_is_lost_or_learnt_from_twice(faults: str, tmp_path: Path):
    """Where a run ends, or its learner is killed, it goes on with every game that its players had begun."""
    run, given = tmp_path / "run", {"capacity": 100_000, "checkpoint_every": 1.0, "on": "process"}
    with injected(faults):
        if faults.startswith("kill"):
            with pytest.raises(WorkerLost):
                trained(run, steps=10**7, **given)
        else:
            trained(run, steps=4_000, **given)
    before = hold_every_game_once(run)
    kept = [replayed(before, player) for player in range(2)]
    polyplay.resume(run, steps=int(before.name.rpartition("-")[2]) + 2_000)
    after = hold_every_game_once(run)
    for player in range(2):
        assert np.array_equal(replayed(after, player)[: len(kept[player])], kept[player])


@pytest.mark.parametrize("on", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_it_learns_with_two_learners(on: str, tmp_path: Path):
    settings = {**SMALL, "precision": "float32", "learners": 2, "batch": 128, "ratio": 4.0}
    run = polyplay.train("alphago_zero", run=str(tmp_path / "run"), **settings, steps=6_000, on=on)
    assert run.reason == "done"
    page = systems.load("alphago_zero")
    config = page.Config(**{k: v for k, v in settings.items() if k not in ("tensorboard", "report_every", "precision")})
    assert "AllReduce(sgd) of 2" in diagram(systems.load("alphago_zero"), config, RunOptions())
    assert run.summary["updates"] > 100
    assert polyplay.evaluate(run.directory, episodes=64)["episodic_return_mean"] > 0.6, "against random moves"
    again = polyplay.resume(run.directory, steps=7_000)
    assert again.summary["steps"] >= 7_000
