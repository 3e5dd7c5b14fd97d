"""The protocols of board games: what they measure, what they write, and what they refuse in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.evaluation import evaluate, verify
from polyplay.evaluation.evaluate import EvaluateOptions, GamesWatch
from tests import made

CHAMPION = Path(__file__).parents[2] / "bench/champions/connect_four"


@pytest.fixture
def champion(tmp_path: Path) -> Path:
    return shutil.copytree(CHAMPION, tmp_path / "champion")


def small(tmp_path: Path, env: str = "game:three_in_a_row", **more: str) -> Path:
    return made.run(tmp_path / "run", env, network="mlp", **more)


def test_a_champion_that_comes_with_the_code_is_evaluated_and_not_written_to(capfd: pytest.CaptureFixture):
    before = sorted(CHAMPION.rglob("*"))
    asked = ["--protocol", "versus", "--against", "random", "--simulations", "0", "--episodes", "2"]
    assert main.main(["evaluate", str(CHAMPION), *asked]) == 0
    out, err = capfd.readouterr()
    assert "of 2 points" in out
    assert re.search(r"^polyplay: nothing is written to .*connect_four, which is read-only \(READ_ONLY\)$", err, re.M)
    assert sorted(CHAMPION.rglob("*")) == before


@pytest.mark.parametrize("where", [".", ".."])
def test_a_run_is_read_only_by_a_file_in_it_or_beside_it(tmp_path: Path, where: str):
    run = small(tmp_path)
    options = EvaluateOptions(protocol="versus", against="random", episodes=2)
    (run / where / "READ_ONLY").touch()
    before = sorted(tmp_path.rglob("*"))
    assert evaluate.evaluate(run, options)["episodes"] == 2
    assert sorted(tmp_path.rglob("*")) == before
    (run / where / "READ_ONLY").unlink()
    evaluate.evaluate(run, options)
    assert [*run.glob("evaluation-*.json")]


def test_a_match_counts_wins_draws_and_losses(champion: Path, capsys: pytest.CaptureFixture):
    asked = ["--protocol", "versus", "--against", "mcts:20", "--simulations", "0", "--episodes", "20"]
    assert main.main(["evaluate", str(champion), *asked]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    [file] = champion.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    assert file.stem.endswith("versus-mcts-20-0-simulations-seed0")
    assert (record["against"], record["opening_plies"], record["episodes"]) == ("mcts:20", 2, 20)
    assert record["wins"] + record["draws"] + record["losses"] == 20
    assert record["points"] == record["wins"] + record["draws"] / 2 == sum(record["returns"]) > 12
    ends = f"{record['wins']} wins, {record['draws']} draws, {record['losses']} losses"
    assert line.startswith(f"{record['points']:g} of 20 points, 95 % interval ")
    assert line.endswith(f"; {ends}; protocol versus mcts:20, 0 simulations")
    assert [finding.level for finding in verify.verify(champion)] == ["ok"] * 6


def test_a_run_against_itself_is_even_and_other_weights_are_noticed(champion: Path):
    options = EvaluateOptions(protocol="versus", against=str(champion), simulations=0, episodes=20)
    record = evaluate.evaluate(champion, options)
    assert record["points"] == 10
    assert record["against_checkpoint_sha256"] == record["checkpoint_sha256"]
    [file] = champion.glob("evaluation-*.json")
    file.write_text(file.read_text().replace('"against_checkpoint_sha256": "', '"against_checkpoint_sha256": "0'))
    [*_, found] = verify.verify(champion)
    assert (found.name, found.level) == ("returns", "failed")
    assert "has other weights than then" in found.seen


def test_a_policy_without_a_search_plays_too(tmp_path: Path):
    run = small(tmp_path)
    record = evaluate.evaluate(run, EvaluateOptions(protocol="versus", against="random", episodes=10, greedy=True))
    again = evaluate.evaluate(run, EvaluateOptions(protocol="versus", against="random", episodes=10, greedy=True))
    assert record["returns"] == again["returns"]
    assert record["actions"] == "greedy"
    assert "simulations" not in record
    sampled = evaluate.evaluate(run, EvaluateOptions(protocol="versus", against="random", episodes=10))
    assert sampled["actions"] == "sampled"


def test_an_early_end_counts_what_is_over(champion: Path):
    watch = GamesWatch()
    options = EvaluateOptions(protocol="versus", against="random", simulations=0, max_steps=1_000)
    record = evaluate.evaluate(champion, options, watch=watch)
    assert 0 < record["episodes"] < record["asked"] == 100
    assert record["ended"] == "--max-steps 1,000 are over"
    assert not [*champion.glob("evaluation-*.json")]
    short = EvaluateOptions(protocol="versus", against="random", simulations=0, max_steps=1)
    with pytest.raises(UserError, match="no game was over by then"):
        evaluate.evaluate(champion, short)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--protocol versus", "--protocol versus needs --against: random, mcts:N, perfect, gtp:COMMAND, or the"),
        ("--protocol versus --against mtcs:5", "--against mtcs:5 given, allowed: random, mcts:N with N"),
        ("--protocol versus --against mtcs:5", "or the directory of a run, did you mean 'mcts:100'?"),
        ("--protocol versus --against runs/nix", "--against runs/nix given, allowed: random, mcts:N with N"),
        ("--protocol versus --against random --episodes 5", "--episodes 5 given, but both colours play every opening"),
        ("--protocol versus --against random --episodes 20_000", "a match has 10,000 games at most"),
        ("--protocol versus --against OTHER", "it plays game:tic_tac_toe; a match is of one game"),
        ("--protocol versus --against CATCH", "plays toy:catch, and matches are of board games"),
        ("--against random", "--against random is for --protocol versus, run given"),
        ("--opening-plies 3", "--opening-plies 3 is for --protocol versus, run given"),
        ("--protocol versus --against random --video", "--video is not for --protocol versus: use --protocol run"),
        ("--protocol solver", "--protocol: 'solver' given, allowed: run, null-op"),
        (
            "--protocol null-op",
            "null-op is for Atari games, this run plays game:three_in_a_row; allowed here: run, ver",
        ),
        ("--simulations 10", "--simulations 10 given, but the policy of this run does not search"),
        ("--simulations 1000000", "--simulations: '1000000' given, allowed: a whole number from 0 to 100000"),
        ("--protocol versus --against random --opening-plies 20", "--opening-plies 20: every random game"),
    ],
)
def test_mistakes_are_one_line(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    run = small(tmp_path)
    if "OTHER" in words:
        made.run(tmp_path / "OTHER", "game:tic_tac_toe", network="mlp")
    if "CATCH" in words:
        made.run(tmp_path / "CATCH", network="mlp")
    given = [str(tmp_path / word) if word in ("OTHER", "CATCH") else word for word in words.split()]
    assert main.main(["evaluate", str(run), *given]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("env", "words", "says"),
    [
        (
            "game:tic_tac_toe",
            "versus --against perfect",
            "--against perfect given, but there is no solver for game:tic_tac_toe; other opponents: random, mcts:N, or",
        ),
        (
            "game:othello+size=6",
            "versus --against perfect",
            "there is no solver for game:othello+size=6; other opponents: random, mcts:N, or the directory of a run",
        ),
        ("toy:catch", "versus --against random", "versus is for board games (game:NAME), this run plays toy:catch"),
    ],
)
def test_games_without_a_solver_are_named(env: str, words: str, says: str, tmp_path: Path, capsys):
    assert main.main(["evaluate", str(small(tmp_path, env)), "--protocol", *words.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_policy_with_a_memory_is_refused(tmp_path: Path):
    run = small(tmp_path, core="lstm")
    with pytest.raises(UserError, match="a policy with a memory cannot be asked for a position alone"):
        evaluate.evaluate(run, EvaluateOptions(protocol="versus", against="random", episodes=2))
