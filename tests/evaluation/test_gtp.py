"""Go programs as players: what they are told, who wins, and by whose fault; mistakes are one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from polyplay.acting.play import MatchStarts
from polyplay.cli import main
from polyplay.core import machine
from polyplay.evaluation import gtp
from polyplay.evaluation.gtp import GtpPlayer, programs_running
from polyplay.evaluation.matches import BoardPlayer, both_colors, named_player, play_match
from polyplay.evaluation.verify import VerificationFailed, _compare
from polyplay.games.boards import Go, game
from tests import made
from tests.games.test_board_rules import legal_of
from tests.verbs import refused

pytest.importorskip("sgfmill")
FAKE = Path(__file__).with_name("fake_gtp.py")
CHAMPION = Path(__file__).parents[2] / "bench" / "champions" / "go9"


def command(*words: str) -> str:
    """The name of a fake program: see fake_gtp."""
    return f"gtp:{shlex.join([sys.executable, '-I', str(FAKE), *words])}"


def go(size: int = 5, more: str = "+komi=0.5") -> Go:
    board = game(f"go+size={size}{more}")
    assert isinstance(board, Go)
    return board


def player(*words: str, board: Go | None = None) -> BoardPlayer:
    return named_player(command(*words), board or go(), "")


def last_legal(board: Go, at_random: float = 0.0) -> BoardPlayer:
    """It plays the last legal cell, or one at random, while there are three; else it passes."""
    rng = np.random.default_rng(0)

    def moves(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        found = [[a for a in legal_of(board, records[i]) if a < board.cells] for i in at.tolist()]
        cells = [rng.choice(some) if some and rng.random() < at_random else max(some, default=0) for some in found]
        return np.array([cell if len(some) > 2 else board.cells for cell, some in zip(cells, found, strict=True)])

    return BoardPlayer("last", board, moves, {})


def meet(one: BoardPlayer, two: BoardPlayer, games: int, plies: int = 2) -> np.ndarray:
    with programs_running([one.moves, two.moves]):
        return play_match(one, two, both_colors(one.board, games, plies, seed=1), seed=0)


def faults_of(found: BoardPlayer) -> list[tuple[int, str]]:
    assert isinstance(found.moves, GtpPlayer)
    lines = [re.fullmatch(r".* lost game (\d+) against \S+ at move \d+: (.*)", line) for line in found.moves.faults]
    return [(int(line[1]), line[2]) for line in lines if line]


BOARDS = [go(5, "+komi=4"), go(4, "+komi=2"), go(3, "+komi=0")]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_games_end_without_a_fault_and_programs_agree_on_winners(board: Go):
    one = player(board=board)
    points = meet(one, last_legal(board, 0.3), 10)
    assert isinstance(one.moves, GtpPlayer)
    assert one.moves.faults == []
    assert one.moves.scored > 5
    assert one.moves.agreed == one.moves.scored
    assert {0.0, 1.0} <= set(points.tolist())


def test_a_program_is_told_the_moves_it_lacks(tmp_path: Path):
    log = tmp_path / "log"
    meet(player("--log", str(log)), last_legal(go()), 4, plies=9)
    games = log.read_text().split("clear_board\n")
    assert games[0] == "boardsize 5\nkomi 0.5\n"
    assert len(games) == 5, "one after the other"
    for told in games[1:]:
        lines = told.splitlines()
        opening, after = lines[:9], [line for line in lines[9:] if not line.startswith(("final_score", "quit"))]
        assert [line.split()[:2] for line in opening] == [["play", ("black", "white")[i % 2]] for i in range(9)]
        own = next(line.split()[1] for line in lines if line.startswith("genmove"))
        other = {"black": "white", "white": "black"}[own]
        turns = [f"genmove {own}", f"play {other}"]
        first = 0 if after[0].startswith("genmove") else 1
        assert [" ".join(line.split()[:2]) for line in after] == [turns[(i + first) % 2] for i in range(len(after))]


MISTAKES = {
    "genmove:2:= resign": None,
    "genmove:2:= A1": "illegal move: it answered genmove black with 'A1'",  # a stone is there
    "genmove:2:= D9": "illegal move: it answered genmove black with 'D9'",
    "genmove:2:= ": "illegal move: it answered genmove black with nothing",
    "genmove:2:? I am lost": r"illegal move: it answered genmove black with '\? I am lost'",
    "play:5:? why": r"illegal move: it answered play white [A-E]\d with '\? why'",
    "genmove:2:die": "crash: it answered genmove black with nothing",
    "genmove:2:hang": r"timeout: it answered genmove black with nothing in 0\.5 seconds",
    "genmove:2:chatter": "crash: it answered genmove black with 'thinking …'",
    "genmove:2:number": "crash: it answered genmove black with '=99 A1'",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_loses_that_game_by_name_and_the_next_goes_on(mistake: str, monkeypatch: pytest.MonkeyPatch):
    """Who resigns loses without a fault. A program that was started again makes its mistake again."""
    monkeypatch.setattr(gtp, "SECONDS", 0.5 if "hang" in mistake else 20.0)
    one = player(mistake)
    with programs_running([one.moves]):
        starts = MatchStarts(np.stack([go().new()] * 2), np.ones(2, bool))
        assert play_match(one, last_legal(go()), starts, 0)[0] == 0
    found, says = faults_of(one), MISTAKES[mistake]
    again = says and not says.startswith("illegal move")
    assert [game for game, _ in found] == ([1, 2] if again else [1] if says else [])
    assert says is None or re.fullmatch(says, found[0][1])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_our_engine_meets_gnu_go_without_a_fault_and_both_agree_on_every_result(monkeypatch: pytest.MonkeyPatch):
    """20 games on 9×9 at the komi of the champion, by the command line of the docs. Each program is a process of its
    own.
    """
    path = shutil.which("gnugo", path=f"{os.environ.get('PATH', '')}:/usr/games")
    if path is None:
        pytest.skip("needs GNU Go")
    guide = (Path(__file__).parents[2] / "docs/guides/board_games.md").read_text()
    [flags] = {*re.findall(r'"gtp:gnugo (.*?) --level \d+"', guide)}
    monkeypatch.setattr(gtp, "SECONDS", 300.0)  # to start on a busy machine
    board, other = go(9, "+komi=7"), f"gtp:{path} {flags} --level 0 --seed 1"
    words = [sys.executable, "-m", "polyplay", "play", str(CHAMPION), "--gtp", "--simulations", "8"]
    one, two = (named_player(name, board, "") for name in (f"gtp:{shlex.join(words)}", other))
    points = meet(one, two, 20)
    assert np.isin(points, (0.0, 0.5, 1.0)).all()
    for found in (one.moves, two.moves):
        assert isinstance(found, GtpPlayer)
        assert (found.faults, found.scored, found.agreed) == ([], 20, 20)


ERRORS = {
    "gtp:x": "gtp:x given, but a Go program plays game:go, not game:tic_tac_toe",
    "gtp:": "--against gtp: given, allowed: gtp:COMMAND, as in 'gtp:gnugo --mode gtp'",
    "gtp:gnugo '--mode": "--against gtp:gnugo '--mode given, allowed: gtp:COMMAND, as in 'gtp:gnugo --mode gtp'",
    "gtp:/no/such/go --gtp": "--against gtp:/no/such/go --gtp: /no/such/go cannot be started: No such file",
    "REFUSES boardsize:1:? 19 only": "it answered boardsize 5 with '? 19 only'; give a program that speaks GTP and",
    "REFUSES komi:1:? whole ones": "it answered komi 7.5 with '? whole ones'; give a program that speaks GTP and plays",
    "REFUSES boardsize:1:die": "it answered boardsize 5 with nothing; give a program that speaks GTP",
    "REFUSES boardsize:1:chatter": "it answered boardsize 5 with 'thinking …'; give a program that speaks GTP",
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_are_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = made.run(tmp_path / "run", "game:tic_tac_toe" if name == "gtp:x" else "game:go+size=5", network="mlp")
    given = command(name.partition(" ")[2]) if name.startswith("REFUSES") else name
    assert ERRORS[name] in refused(
        capsys, "evaluate", run, "--protocol", "versus", "--against", given, "--episodes", "2"
    )


def test_a_program_that_can_not_be_started_again_loses_all_its_games(tmp_path: Path):
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable} -I\n{FAKE.read_text()}")
    program.chmod(0o755)
    one, two = named_player(f"gtp:{program} genmove:1:die", go(), "--against "), last_legal(go())
    with programs_running([one.moves]):
        program.unlink()
        points = play_match(one, two, both_colors(go(), 2, 2, seed=1), seed=0)
    assert points.tolist() == [0, 0]
    assert len(faults_of(one)) == 2
    assert "cannot be started: No such file" in str(faults_of(one)[1])


def test_nothing_is_left_of_a_program_that_does_not_quit():
    program = GtpPlayer(command("quit:1:hang"), go())
    program.start()
    pid = program._process.pid
    program.close(0.1)
    program.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_evaluate_and_tournament_say_who_did_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = made.run(tmp_path / "run", "game:go+size=5+komi=0.5", network="mlp")
    name, other = command("genmove:2:= A9"), command()
    asked = ["--protocol", "versus", "--against", name, "--episodes", "4"]
    assert main.main(["evaluate", str(run), *asked]) == 0
    out = capsys.readouterr().out
    [file] = run.glob("evaluation-*.json")
    record = json.loads(file.read_text())
    [program] = record["programs"]
    assert len(file.name) < 220
    assert record["label"] == f"versus {name}"
    [fault] = program["faults"]
    assert fault.startswith(f"{name} lost game 1 against run at move ")
    assert f"{name}: agreed on {program['agreed']} of {program['scored']} winners, lost 1 game by its own fault" in out
    assert f"{name} lost game 1 against run at move " in out
    assert main.main(["evaluate", str(run), "--verify"]) == 0
    file.write_text(json.dumps({**record, "against": f"gtp:touch {tmp_path}/ran"}))
    assert f"would execute the command touch {tmp_path}/ran" in refused(capsys, "evaluate", run, "--verify")
    assert not (tmp_path / "ran").exists()

    assert main.main(["tournament", str(run), name, "--anchor", other, "--matches", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [row["name"] for row in found["players"]] == [str(run), name, other]
    assert [row["program"] for row in found["programs"]] == [name, other]
    assert f"{name} lost game 1 against {run} at move" in err
    assert len(err.splitlines()) == 4, "three matches, one fault"
    assert main.main(["tournament", str(run), other, "--matches", "2"]) == 0
    assert f"{other}: agreed on 2 of 2 winners" in "".join(capsys.readouterr().out.split("\n"))


def test_an_evaluation_against_a_go_program_is_verified_by_its_mean():
    record = {**machine.stamp(), "against": "gtp:gnugo", "returns": [1.0, 0.0, 1.0, 0.0]}
    now = {"device": "cpu", "returns": [0.0, 1.0, 1.0, 0.0]}
    assert "no difference within its 95 % bootstrap interval; a Go program's moves differ" in _compare(record, now)
    with pytest.raises(VerificationFailed, match="game 0 returned 0 now, 1 recorded"):
        _compare(record | {"against": "random"}, now)
