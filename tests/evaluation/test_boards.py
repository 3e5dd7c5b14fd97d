"""The protocols of board games: what they measure, what they write, and what they refuse in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.common.errors import UserError
from polyplay.evaluation import evaluate, verify
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.evaluation.progress import GamesWatch
from tests import made

CHAMPION = Path(__file__).parents[2] / "bench/champions/connect_four"


@pytest.fixture
def champion(tmp_path: Path) -> Path:
    return shutil.copytree(CHAMPION, tmp_path / "champion")


def small(tmp_path: Path, env: str = "game:three_in_a_row", **more: str) -> Path:
    return made.run(tmp_path / "run", env, network="mlp", **more)


def test_the_committed_champion_is_as_strong_as_the_docs_say(champion: Path, capsys: pytest.CaptureFixture):
    assert main.main(["evaluate", str(champion), "--protocol", "solver", "--simulations", "0"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    [file] = champion.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    assert file.stem == "evaluation-000000016287-steps-1401926-solver-0-simulations-seed0"
    assert record["episodic_return_mean"] == pytest.approx(0.780, abs=0.01)
    assert record["random_move"] == pytest.approx(0.346, abs=0.001)
    assert (record["episodes"], set(record["returns"])) == (1000, {0.0, 1.0})
    low, high = record["interval"]
    assert line == (
        f"{100 * record['episodic_return_mean']:.1f} % of moves keep the value, 95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f}; 1,000 positions, a random move keeps 34.6 %; protocol solver, 0 simulations"
    )
    assert [finding.level for finding in verify.verify(champion)] == ["ok"] * 6
    assert evaluate.read_scores(champion)["snapshots"][file.stem]["simulations"] == 0


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


def test_moves_in_othello_are_counted_too(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = small(tmp_path, "game:othello+size=6")
    assert main.main(["evaluate", str(run), "--protocol", "solver"]) == 0
    [file] = run.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    assert (record["episodes"], set(record["returns"])) == (1000, {0.0, 1.0})
    assert record["random_move"] == pytest.approx(0.462, abs=0.001)
    assert record["episodic_return_mean"] == pytest.approx(0.462, abs=0.06), "it has not learnt anything"
    assert "1,000 positions, a random move keeps 46.2 %; protocol solver" in capsys.readouterr().out


def test_a_search_keeps_the_value_more_often(champion: Path):
    kept = [
        evaluate.evaluate(champion, EvaluateOptions(protocol="solver", simulations=n, episodes=100))
        for n in (0, 64, None)
    ]
    assert kept[0]["episodic_return_mean"] < kept[1]["episodic_return_mean"]
    assert kept[1]["returns"] == kept[2]["returns"], "64 are the run's own"
    assert [k["simulations"] for k in kept] == [0, 64, 64]
    assert [k["label"] for k in kept] == ["solver, 0 simulations", "solver, 64 simulations", "solver"]


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


def test_against_perfect_play_moves_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = small(tmp_path)
    assert main.main(["evaluate", str(run), "--protocol", "versus", "--against", "perfect", "--episodes", "20"]) == 0
    [file] = run.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    assert record["opening_plies"] == 5, "a quarter of the board"
    assert 0 < record["moves_kept"] < record["moves"]
    assert record["games_held"] < 20
    assert record["points"] < 20
    judged = f"{record['moves_kept']} of {record['moves']} moves in positions that are not lost keep the value"
    said = f"{judged}; it holds {record['games_held']} of 20 games"
    assert capsys.readouterr().out.splitlines()[1] == said


def test_against_perfect_play_of_othello_games_begin_late(tmp_path: Path):
    options = EvaluateOptions(protocol="versus", against="perfect", episodes=10)
    record = evaluate.evaluate(small(tmp_path, "game:othello+size=6"), options)
    assert record["opening_plies"] == 14
    assert 0 < record["moves_kept"] < record["moves"]
    assert record["games_held"] < 10


def test_an_early_end_counts_what_is_over(champion: Path):
    watch = GamesWatch()
    options = EvaluateOptions(protocol="solver", simulations=0, max_steps=200)
    record = evaluate.evaluate(champion, options, watch=watch)
    assert (record["episodes"], record["asked"]) == (200, 1000)
    assert record["ended"] == "--max-steps 200 are over"
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
        ("--protocol solver --opening-plies 3", "--opening-plies 3 is for --protocol versus, solver given"),
        ("--protocol solver --video", "--video is not for --protocol solver: use --protocol run"),
        ("--protocol solver", "--protocol solver is for game:connect_four and game:othello+size=6, this run"),
        (
            "--protocol null-op",
            "null-op is for Atari games, this run plays game:three_in_a_row; allowed here: run, sol",
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
            "solver",
            "game:tic_tac_toe has no solver, its stones do not fall; allowed here: run, versus",
        ),
        (
            "game:tic_tac_toe",
            "versus --against perfect",
            "--against perfect given, but game:tic_tac_toe has no solver, its stones do not fall; allowed: random",
        ),
        (
            "game:connect:6x6x4",
            "versus --against perfect --opening-plies 1",
            "--against perfect given, but perfect play of game:connect:6x6x4 may take hours before ply 2, ply 1 given",
        ),
        (
            "game:othello",
            "solver",
            "game:othello has no solver, a side of 8 cells is more than 6; allowed here: run, versus",
        ),
        (
            "game:othello+size=4",
            "solver",
            "this run plays game:othello+size=4: use --protocol versus --against perfect",
        ),
        (
            "game:othello+size=6",
            "versus --against perfect --opening-plies 13",
            "but perfect play of game:othello+size=6 may take hours before ply 14, ply 13 given; allowed: random",
        ),
        ("toy:catch", "solver", "solver is for board games (game:NAME), this run plays toy:catch; allowed here: run"),
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
