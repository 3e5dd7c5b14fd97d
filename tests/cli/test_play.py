"""Games against an agent that has learnt nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.cli import play as verb
from polyplay.cli.play import MoveList, resign_value
from polyplay.cli.play_session import LEAVES, PlaySession, TerminalGame, simulate
from polyplay.core import checkpoint
from polyplay.games.boards import game
from polyplay.games.records import DRAWN, GOES_ON, NEVER, WON
from polyplay.search import SearchOptions
from tests import made
from tests.search.test_policy import policy_of
from tests.verbs import free_port, refused

ABOUT = {"run": "runs/x", "system": "alphago_zero", "updates": 7, "most": 1000}


@contextmanager
def session_of(name: str, simulations: int = 32, **options: Any) -> Iterator[PlaySession]:
    session = PlaySession(policy_of(game(name), SearchOptions(simulations, **options)), simulations, ABOUT)
    try:
        yield session
    finally:
        session.close()


def wait(done: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def settle(session: PlaySession) -> None:
    """Until the agent has nothing to think of."""
    wait(lambda: not session.state()["thinking"])


CHAMPION = Path(__file__).parents[2] / "bench" / "champions" / "connect_four"


def run_of(root: Path) -> str:
    """The champion's directory without its checkpoints."""
    root.mkdir()
    shutil.copy(CHAMPION / "config.json", root)
    return str(root)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "0"], "--port: '0' given, allowed: a whole number from 1 to 65535"),
        (["--simulations", "-1"], "--simulations: '-1' given, allowed: a whole number from 0 to 100000"),
        (["--resign", "soon"], "--resign soon: must be auto, off, or a value from -1 to 0"),
        (["--resign", "0.5"], "--resign 0.5: must be auto, off, or a value from -1 to 0"),
        (["--resign", "off"], "--resign off: applies to --gtp only; add --gtp, or remove --resign"),
        (["--checkpoint", "7"], "--checkpoint: '7' given, allowed: best, none exists yet"),
        ([], "has no usable checkpoint (none found); let it run longer"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str):
    run = run_of(tmp_path / "run")
    assert says in refused(
        capsys, "play", run, "--trust", *([] if "--port" in options else ["--port", free_port()]), *options
    )


@pytest.mark.parametrize("env", ["toy:catch", "game:tic_tac_toe"])
def test_a_run_without_a_search(tmp_path: Path, env: str, capsys: pytest.CaptureFixture[str]):
    run = made.run(tmp_path / "run", env, network="mlp")
    said = refused(capsys, "play", run, "--port", free_port())
    assert f"play: {run} is a run of a2c on {env}; choose a run of alphago_zero, from polyplay train" in said


def test_a_game_whose_moves_are_no_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    player, run = SimpleNamespace(board=SimpleNamespace(placed=False, name="spiel:nim")), run_of(tmp_path / "run")
    monkeypatch.setattr(verb, "open_player", lambda directory, options: (player, 1, Path(), ""))
    said = refused(capsys, "play", run, "--port", free_port())
    assert (
        f"play: {run} plays game:spiel:nim, whose moves are not cells of a board; add --terminal, which plays all games"
        in said
    )


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    given = iter(words)

    def read(prompt: str) -> str:
        if (word := next(given, None)) is None:
            raise EOFError
        return word

    monkeypatch.setattr("builtins.input", read)


HELP = "Type a move (a3, b3, c3 …), or: undo, new, sides, help; Ctrl-D ends"


def test_a_game_in_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A wrong move, one taken back, sides changed, a game to its end."""
    typed(monkeypatch, "b2", "z9", "help", "undo", "a1", "sides", "new", *[f"{c}{r}" for c in "abc" for r in "123"] * 2)
    game_ = TerminalGame(policy_of(game("tic_tac_toe"), SearchOptions(16)), 16)
    game_.run()
    said = capsys.readouterr().out
    assert said.startswith(f"tic tac toe. 3 in a row win. You move first.\n{HELP}")
    assert said.count("or: undo, new, sides, help; Ctrl-D ends") == 2
    assert "'z9' is not a legal move; legal: " in said
    assert said.count("The agent plays ") >= 4
    assert game_.person == 1
    assert game_.game.result != GOES_ON
    assert "legal: none, the game is over" in said
    assert any(end in said for end in ("You win", "The agent wins", "A draw"))


def test_a_run_is_played_in_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    typed(monkeypatch, "d", "undo", "4", "undo", "8")
    assert main.main(["play", str(CHAMPION), "--terminal", "--simulations", "8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("connect four. 4 in a row win. ")
    assert said.count("The agent plays ") == 2, "d and 4 are the same column"
    assert "'8' is not a legal move; legal: a b c d e f g" in said
    assert refused(capsys, "play", CHAMPION, "--terminal", "--gtp").endswith("remove one of them")


@pytest.mark.parametrize(
    ("champion", "given", "value"),
    [
        ("go9", "auto", -0.83),
        ("go5", "auto", -0.86),
        ("connect_four", "auto", NEVER),
        ("go9", "off", NEVER),
        ("go9", "-0.5", -0.5),
    ],
)
def test_a_champion_resigns_as_it_learned_to(champion: str, given: str, value: float):
    (found,) = checkpoint.everything(CHAMPION.parent / champion)
    assert resign_value(given, found) == value


@pytest.mark.parametrize(
    ("name", "moves", "winner", "line"),
    [
        ("connect_four", (0, 6, 1, 6, 2, 6, 3), 0, [35, 36, 37, 38]),
        ("connect_four", (0, 1, 0, 1, 0, 1, 0), 0, [14, 21, 28, 35]),
        ("connect_four", (0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3), 0, [17, 23, 29, 35]),
        ("connect_four", (0, 6, 1, 6, 2, 5, 4, 5, 3), 0, [35, 36, 37, 38, 39]),
        ("tic_tac_toe", (0, 1, 2, 4, 8, 3, 6, 7), 1, [1, 4, 7]),
        ("tic_tac_toe", (1, 3, 2, 5, 4, 7, 8, 6, 0), 0, [0, 1, 2, 4, 8]),  # two at once
        ("tic_tac_toe", (0, 1, 2, 4, 3, 5, 7, 6, 8), None, []),
    ],
)
def test_the_cells_of_the_line_that_won(name: str, moves: tuple[int, ...], winner: int | None, line: list[int]):
    found = MoveList(game(name))
    for move in moves:
        found.play(move)
    assert (found.result, found.winner) == (DRAWN if winner is None else WON, winner)
    assert (found.line(), found.legal) == (line, [])
    found.undo(2)
    assert (found.result, found.moves, found.mover) == (GOES_ON, list(moves[:-2]), len(moves) % 2)
    assert len(found.records) == len(moves) - 1


def test_the_agent_answers_and_every_position_has_a_search():
    with session_of("tic_tac_toe") as session:
        session.move(4, 0)
        settle(session)
        state = session.state()
        assert (len(state["moves"]), state["mover"], state["person"]) == (2, 0, 0)
        assert state["moves"][1] in state["before"]["legal"]
        assert state["before"]["visits"][state["moves"][1]] == max(state["before"]["visits"])
        for search, plies in ((state["before"], 1), (state["now"], 2)):
            assert (search["asked"], search["done"], search["over"]) == (32, 32, True)
            assert (sum(search["visits"]), search["mover"]) == (32, plies % 2)
            assert search["variation"][0] == int(np.argmax(search["visits"]))
            assert sum(search["priors"]) == pytest.approx(1, abs=1e-3)
        assert None not in state["values"][1:], "the first, where the person did not wait for it"


def test_a_game_to_its_end_and_back():
    with session_of("tic_tac_toe", 8) as session:
        session.restart(1)
        while not session.state()["over"]:
            settle(session)
            state = session.state()
            if not state["over"]:
                session.move(state["legal"][0], len(state["moves"]))
        state = session.state()
        assert (state["legal"], state["thinking"]) == ([], False)
        result = {None: 0.0, 0: 1.0, 1: -1.0}[state["winner"]]
        assert (state["values"][-1], bool(state["line"])) == (result, state["winner"] is not None)
        with pytest.raises(ValueError, match="not your turn"):
            session.move(0, len(state["moves"]))
        session.undo()
        after = session.state()
        assert (after["over"], after["mover"]) == (False, 1)
        assert state["moves"][: len(after["moves"])] == after["moves"]


def test_undo_takes_back_both_moves_and_only_the_agents_first_stays():
    with session_of("tic_tac_toe", 4) as session:
        session.move(4, 0)
        settle(session)
        session.undo()
        assert session.state()["moves"] == []
        session.restart(1)
        wait(lambda: len(session.state()["moves"]) == 1)
        assert not session.state()["undo"]


def test_a_search_grows_and_a_new_number_begins_it_again():
    with session_of("connect_four", 1000) as session:
        wait(lambda: session.state()["now"])
        seen = []
        wait(lambda: seen.append(session.state()["now"]["done"]) or not session.state()["thinking"])
        assert seen == sorted(seen)
        session.simulate(0)
        wait(lambda: session.state()["now"]["asked"] == 0)
        settle(session)
        now = session.state()["now"]
        assert (now["done"], sum(now["visits"]), now["variation"]) == (0, 0, [])
        assert now["value"] == now["raw"]


def test_a_network_that_answers_nan_is_said_until_something_changes():
    with session_of("tic_tac_toe", 4) as session:
        settle(session)
        good = session.policy.weights.copy()
        session.policy.weights[:] = np.nan
        session.simulate(5)
        wait(lambda: session.state()["trouble"])
        state = session.state()
        assert "NaN or infinity to the position .../.../..., x to move" in state["trouble"]
        assert not state["thinking"]
        session.policy.weights[:] = good
        session.simulate(6)
        settle(session)
        assert (session.state()["trouble"], session.state()["now"]["done"]) == ("", 6)


def test_a_search_that_fails_says_so(monkeypatch, capsys):
    with session_of("tic_tac_toe", 5) as session:
        settle(session)
        monkeypatch.setattr(session.policy, "grow", lambda records: 1 / 0)
        session.simulate(6)
        wait(lambda: session.state()["trouble"])
        assert session.state()["trouble"] == "the search failed with ZeroDivisionError: division by zero"
        assert not session.state()["thinking"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_every_move_of_connect_four_has_a_verdict():
    with session_of("tic_tac_toe", 0) as session:
        found = session.state()["solver"]
        assert found == {"why_not": "there is no solver for game:tic_tac_toe", "verdicts": {}}
    pytest.importorskip("bitbully")
    with session_of("connect_four", 0) as session:
        found = session.state()["solver"]
        assert (found["why_not"], found["verdicts"][3]) == ("", (1, 41)), "the first player wins with its last stone"
        assert [found["verdicts"][column][0] for column in range(7)] == [-1, -1, 0, 1, 0, -1, -1]


def test_leaves_are_never_more_than_a_sixteenth_of_the_simulations_but_for_one():
    policy, found = policy_of(game("tic_tac_toe"), SearchOptions(8)), []
    for n in (0, 1, 31, 32, 64, 800):
        simulate(policy, n)
        found.append(policy.options.leaves)
    assert found == [1, 1, 1, 2, 4, LEAVES]


pytest.importorskip("httpx")
testclient = pytest.importorskip("starlette.testclient")
server = pytest.importorskip("polyplay.cli.pages")
OWN = {"X-Polyplay": "play"}


@pytest.fixture
def page() -> Iterator[testclient.TestClient]:
    with session_of("tic_tac_toe", 4) as session:
        yield testclient.TestClient(server.play_application(session), base_url="http://127.0.0.1:8766")


def test_a_page_from_elsewhere_changes_nothing(page):
    """A browser sends no header of this name for a foreign page without asking first, which nothing here allows."""
    assert page.get("/state", headers={"Host": "example.com:8766"}).status_code == 400
    assert page.post("/game/move", json={"action": 4, "ply": 0}).status_code == 403
    asked = {"Origin": "http://example.com", "Access-Control-Request-Method": "POST"}
    reply = page.options("/game/move", headers={**asked, "Access-Control-Request-Headers": "x-polyplay"})
    assert reply.status_code == 405
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert page.get("/state").json()["moves"] == []


def test_moves_undo_sides_and_a_new_game(page):
    def ask(what: str, **given: int):
        return page.post(f"/game/{what}", headers=OWN, json=given)

    assert "text/html" in page.get("/").headers["content-type"]
    assert ask("move", action=4, ply=0).json()["moves"][0] == 4
    assert ask("simulations", simulations=9).json()["simulations"] == 9
    assert ask("undo").json()["moves"] == []
    assert ask("sides", person=1).json()["person"] == 1
    new = ask("new", person=0).json()
    assert (new["moves"], new["person"]) == ([], 0)


@pytest.mark.parametrize(
    ("what", "given", "says"),
    [
        ("move", {"action": 9, "ply": 0}, "action 9: must be a whole number from 0 to 8"),
        ("move", {"action": "4", "ply": 0}, "action '4': must be a whole number from 0 to 8"),
        ("move", {"action": 4, "ply": 1}, "it is not your turn"),
        ("undo", {}, "you have no move to take back"),
        ("simulations", {"simulations": 1001}, "simulations 1001: must be a whole number from 0 to 1000"),
        ("simulations", {"simulations": True}, "simulations True: must be a whole number from 0 to 1000"),
        ("new", [1], "person None: must be a whole number from 0 to 1"),
        ("resign", {}, "allowed: move, undo, new, sides, simulations"),
    ],
)
def test_what_cannot_be_done_says_why(page, what: str, given: object, says: str):
    reply = page.post(f"/game/{what}", headers=OWN, json=given)
    assert (reply.status_code, reply.json()) == (404 if what == "resign" else 409, {"answer": says})
