"""The protocols of board games: what they measure, what they write, and what they refuse in one line."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.acting.play import PlayOptions, choose_with_value, match
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.envs.pool import Envs
from polyplay.evaluation import evaluate, matches, verify
from polyplay.evaluation.evaluate import EvaluateOptions, GamesWatch
from polyplay.evaluation.matches import both_colors, openings, policy_moves
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.board_pool import Opponent, opponent
from polyplay.games.boards import GAMES, Game
from polyplay.search import SearchOptions
from tests import made
from tests.search.test_policy import GO, OLD, after, legal, policy_of, positions, preferring, shown
from tests.verbs import refused

CHAMPION = Path(__file__).parents[2] / "bench/champions/connect_four"


@pytest.fixture
def champion(tmp_path: Path) -> Path:
    return shutil.copytree(CHAMPION, tmp_path / "champion")


def small(tmp_path: Path, env: str = "game:three_in_a_row", **more: str) -> Path:
    return made.run(tmp_path / "run", env, network="mlp", **more)


@pytest.mark.parametrize("where", [".", ".."])
def test_a_run_is_read_only_by_a_file_in_it_or_beside_it(tmp_path: Path, where: str, capfd):
    run = small(tmp_path)
    (run / where / "READ_ONLY").touch()
    before = sorted(tmp_path.rglob("*"))
    assert evaluate.evaluate(run, EvaluateOptions(protocol="versus", against="random", episodes=2))["episodes"] == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert capfd.readouterr().err == f"polyplay: nothing is written to {run}, which is read-only (READ_ONLY)\n"


def test_a_match_counts_wins_draws_and_losses(champion: Path, capsys: pytest.CaptureFixture):
    asked = ["--protocol", "versus", "--against", "mcts:20", "--simulations", "0", "--episodes", "10"]
    assert main.main(["evaluate", str(champion), *asked]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    [file] = champion.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    assert file.stem.endswith("versus-mcts-20-0-simulations-seed0")
    assert (record["against"], record["opening_plies"], record["episodes"]) == ("mcts:20", 2, 10)
    assert record["wins"] + record["draws"] + record["losses"] == 10
    assert record["points"] == record["wins"] + record["draws"] / 2 == sum(record["returns"]) > 5
    ends = f"{record['wins']} wins, {record['draws']} draws, {record['losses']} losses"
    assert line.startswith(f"{record['points']:g} of 10 points, 95 % interval ")
    assert line.endswith(f"; {ends}; protocol versus mcts:20, 0 simulations")
    assert [finding.level for finding in verify.verify(champion)] == ["ok"] * 6


def test_a_run_against_itself_is_even_and_other_weights_are_noticed(champion: Path):
    options = EvaluateOptions(protocol="versus", against=str(champion), simulations=0, episodes=6)
    record = evaluate.evaluate(champion, options)
    assert (record["points"], record["against_checkpoint_sha256"]) == (3, record["checkpoint_sha256"])
    [file] = champion.glob("evaluation-*.json")
    file.write_text(file.read_text().replace('"against_checkpoint_sha256": "', '"against_checkpoint_sha256": "0'))
    [*_, found] = verify.verify(champion)
    assert (found.name, found.level) == ("returns", "failed")
    assert "has other weights than when recorded" in found.seen


def test_a_policy_without_a_search_plays_too(tmp_path: Path):
    run, asked = small(tmp_path), EvaluateOptions(protocol="versus", against="random", episodes=10, greedy=True)
    record = evaluate.evaluate(run, asked)
    assert (record["returns"], record["actions"]) == (evaluate.evaluate(run, asked)["returns"], "greedy")
    assert "simulations" not in record


def test_an_early_end_counts_what_is_over(champion: Path):
    watch = GamesWatch()
    options = EvaluateOptions(protocol="versus", against="random", simulations=0, max_steps=1_000)
    record = evaluate.evaluate(champion, options, watch=watch)
    assert 0 < record["episodes"] < record["asked"] == 100
    assert record["ended"] == "--max-steps 1,000 are over"
    assert not [*champion.glob("evaluation-*.json")]
    short = EvaluateOptions(protocol="versus", against="random", simulations=0, max_steps=1)
    with pytest.raises(UserError, match="no game has finished"):
        evaluate.evaluate(champion, short)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--protocol versus", "--protocol versus needs --against: random, mcts:N, perfect, gtp:COMMAND, or the"),
        ("--protocol versus --against mtcs:5", "--against mtcs:5 given, allowed: random, mcts:N with N"),
        ("--protocol versus --against mtcs:5", "or the directory of a run, did you mean 'mcts:100'?"),
        ("--protocol versus --against random --episodes 5", "--episodes 5 given, but both colors play every opening"),
        ("--protocol versus --against random --episodes 20_000", "a match has at most 10,000 games"),
        ("--protocol versus --against OTHER", "it plays game:tic_tac_toe; give a run of game:"),
        ("--protocol versus --against CATCH", "plays toy:catch, but matches need board games"),
        ("--against random", "--against random is for --protocol versus, but run is set"),
        ("--opening-plies 3", "--opening-plies 3 is for --protocol versus, but run is set"),
        ("--protocol versus --against random --video", "--video is not for --protocol versus: use --protocol run"),
        ("--protocol null-op", "null-op is for Atari games, this run plays game:three_in_a_row; allowed here: run"),
        ("--simulations 10", "--simulations 10 given, but this run's policy does not search"),
        ("--simulations 1000000", "--simulations: '1000000' given, allowed: a whole number from 0 to 100000"),
        ("--protocol versus --against random --opening-plies 20", "--opening-plies 20: every random game"),
        ("CATCH --protocol versus --against random", "versus is for board games (game:NAME), this run plays toy:catch"),
        ("MEMORY --protocol versus --against random", "matches need a policy without recurrent state, but that of"),
    ],
)
def test_mistakes_are_one_line(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch):
    monkeypatch.setattr(matches, "TRIES", 50)
    others: dict[str, Any] = {"OTHER": {"env": "game:tic_tac_toe"}, "CATCH": {}}
    others["MEMORY"] = {"env": "game:three_in_a_row", "core": "lstm"}
    for name in set(others) & set(words.split()):
        made.run(tmp_path / name, network="mlp", **others[name])
    given = [str(tmp_path / word) if word in others else word for word in words.split()]
    assert says in refused(capsys, "evaluate", *([] if words[0] != "-" else [small(tmp_path)]), *given)


BOARD = GAMES["tic_tac_toe"]


def first_legal(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    room = np.zeros(BOARD.actions, np.int16)
    return np.array([room[: board_rules.legal(BOARD.numbers, record, room)][0] for record in records[at]], np.int64)


def test_openings_have_their_plies_and_go_on():
    found, again = (np.stack([*islice(openings(BOARD, 3, seed=1), 50)]) for _ in range(2))
    assert {kernels.ply(record) for record in found} == {3}
    assert len({record.tobytes() for record in found}) > 20
    assert np.array_equal(found, again)


def test_every_opening_is_played_with_both_colors():
    starts = both_colors(BOARD, 40, 1, seed=3)
    assert np.array_equal(starts.records[:20], starts.records[20:])
    assert starts.begins.tolist() == [True] * 20 + [False] * 20
    seen: dict[bool, set[int]] = {True: set(), False: set()}

    def watched(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        for lane in at.tolist():
            seen[lane < 20].add(kernels.mover(records[lane]))
        return first_legal(records, random, at)

    match(BOARD, watched, opponent("random", BOARD), starts, seed=3)
    assert seen == {True: {1}, False: {0}}, "after one ply the second player moves next"


def test_a_stronger_player_gets_the_points_and_equals_the_same_both_ways():
    starts, strong = both_colors(BOARD, 40, 1, seed=3), opponent("mcts:400", BOARD)
    points = match(BOARD, strong, opponent("random", BOARD), starts, seed=3)
    assert set(points) <= {0.0, 0.5, 1.0}
    assert min(points[:20].sum(), points[20:].sum()) > 15
    assert points.tolist() == match(BOARD, strong, opponent("random", BOARD), starts, seed=3).tolist()
    points = match(BOARD, first_legal, first_legal, both_colors(BOARD, 60, 2, seed=5))
    assert (points[:30] + points[30:] == 1).all(), "the second game of a pair is the first with colors changed"
    assert {0.0, 1.0} <= set(points)


def player(board: Game, policy: Any, how: PlayOptions = PlayOptions(0)) -> Opponent:
    return policy_moves(board, Envs(f"game:{board.name}", 1).spec, policy, how)


@pytest.mark.parametrize("simulations", [0, 40])
def test_a_search_knows_repetitions_however_old(simulations, monkeypatch):
    records, at = np.stack([after(GO, moves) for moves, _ in OLD]), np.array([2, 0])
    policy, asked = preferring(GO, {repeats: 6.0 for _, repeats in OLD}, simulations), list[np.ndarray]()
    expected, choose = policy.choose(records[at])[0], policy.choose
    monkeypatch.setattr(policy, "choose", lambda records: (asked.append(records.copy()), choose(records))[1])
    moves = player(GO, policy)(records, np.zeros(3, np.uint64), at)
    assert [found.tolist() for found in asked] == [records[at].tolist()]
    assert moves.tolist() == expected.tolist()
    assert all(move in legal(GO, record) for move, record in zip(moves.tolist(), records[at], strict=True))


@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_a_policy_acts_as_in_an_environment(epsilon: float, greedy: bool, searches: bool):
    """It sees the same planes and mask, and takes the same random moves."""
    records, at = positions(BOARD, 30), np.arange(30)
    search = policy_of(BOARD, SearchOptions(10))
    policy, mask = search if searches else search.network, np.zeros((30, BOARD.actions), bool)
    for record, moves in zip(records, mask, strict=True):
        moves[legal(BOARD, record)] = True
    off, reward = np.zeros(30, bool), np.zeros(30, np.float32)
    step = {"obs": shown(BOARD, records), "mask": mask, "reward": reward, "first": off}
    how = PlayOptions(0, seed=3, greedy=greedy, epsilon=epsilon)
    here = player(BOARD, policy, how)
    for act in range(2):
        there = choose_with_value(Envs("game:tic_tac_toe", 1).spec, policy, how, at, step, {}, act)[0]
        assert here(records, np.zeros(30, np.uint64), at).tolist() == there.tolist()
        assert mask[at, there].all()
        assert not searches or (there == search.choose(records)[0]).all() == (epsilon == 0)
