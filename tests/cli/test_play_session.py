from __future__ import annotations

import numpy as np
import pytest

from polyplay.cli.play import legal_moves
from polyplay.cli.play_session import LEAVES, leaves_of, verdicts
from polyplay.games import board_rules, records
from polyplay.games.boards import Game, game
from tests.cli.play_sessions import session_of, settle, wait


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
            assert sum(search["visits"]) == 32
            assert search["mover"] == plies % 2
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
        assert state["values"][-1] == result
        assert bool(state["line"]) == (state["winner"] is not None)
        with pytest.raises(ValueError, match="not your turn"):
            session.move(0, len(state["moves"]))
        session.undo()
        after = session.state()
        assert (after["over"], after["mover"]) == (False, 1)
        assert state["moves"][: len(after["moves"])] == after["moves"]


def test_undo_takes_back_both_moves_and_only_the_agents_first_stays():
    with session_of("tic_tac_toe", 4) as session:
        with pytest.raises(ValueError, match="no move of yours"):
            session.undo()
        session.move(4, 0)
        settle(session)
        session.undo()
        assert session.state()["moves"] == []
        session.restart(1)
        wait(lambda: len(session.state()["moves"]) == 1)
        assert not session.state()["undo"]


def test_who_takes_the_other_side_lets_the_agent_move():
    with session_of("tic_tac_toe", 4) as session:
        session.take_side(1)
        wait(lambda: len(session.state()["moves"]) == 1)
        settle(session)
        assert (session.state()["mover"], session.state()["person"]) == (1, 1)


def test_no_move_out_of_turn_twice_or_onto_a_stone():
    with session_of("tic_tac_toe", 4) as session:
        session.move(4, 0)
        settle(session)
        for action, ply, why in ((0, 0, "not your turn"), (0, 1, "not your turn"), (4, 2, "not legal")):
            with pytest.raises(ValueError, match=why):
                session.move(action, ply)
        assert len(session.state()["moves"]) == 2


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


def test_the_strength_comes_back_with_the_simulations():
    with session_of("othello+size=6", 40, root="gumbel", considered=8) as session:
        settle(session)
        before = session.state()["now"]["visits"]
        for simulations in (0, 3, 40):
            session.simulate(simulations)
            settle(session)
        assert session.state()["now"]["visits"] == before


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

        def grow(records):
            raise RuntimeError("out of luck")

        with monkeypatch.context() as patch:
            patch.setattr(session.policy, "grow", grow)
            session.simulate(6)
            wait(lambda: session.state()["trouble"])
        assert session.state()["trouble"] == "the search failed with RuntimeError: out of luck"
        assert not session.state()["thinking"]
    assert "RuntimeError" in capsys.readouterr().err


def test_a_game_without_a_solver_says_why():
    with session_of("tic_tac_toe", 0) as session:
        found = session.state()["solver"]
        assert found == {"why_not": "there is no solver for game:tic_tac_toe", "verdicts": {}}


def test_every_move_of_connect_four_has_a_verdict():
    pytest.importorskip("bitbully")
    with session_of("connect_four", 0) as session:
        found = session.state()["solver"]
        assert (found["why_not"], sorted(found["verdicts"])) == ("", [*range(7)])
        assert found["verdicts"][3] == (1, 41), "the first player wins with its last stone"
        assert [found["verdicts"][column][0] for column in range(7)] == [-1, -1, 0, 1, 0, -1, -1]


def plain(board: Game, record: np.ndarray, known: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    """(outcome for the mover, plies until the end) of perfect play that wins soon and loses late, by recursion."""
    if record.tobytes() not in known:
        found = []
        for action in legal_moves(board, record):
            after = record.copy()
            result = board_rules.play(board.numbers, after, action)
            goes_on = result == records.GOES_ON
            outcome, plies = plain(board, after, known) if goes_on else (-int(records.WORTH[result]), 0)
            found.append((-outcome, plies + 1))
        known[record.tobytes()] = max(found, key=lambda f: (f[0], -f[0] * f[1]))
    return known[record.tobytes()]


def test_verdicts_are_those_of_plain_recursion():
    pytest.importorskip("bitbully")
    board, rng, seen = game("connect_four"), np.random.default_rng(0), set[int]()
    while seen != {-1, 0, 1}:
        record, result = board.new(), records.GOES_ON
        while result == records.GOES_ON and records.ply(record) < 34:
            result = board_rules.play(board.numbers, record, int(rng.choice(legal_moves(board, record))))
        if result == records.GOES_ON:
            found = max(verdicts(record).values(), key=lambda f: (f[0], -f[0] * f[1]))
            assert found == plain(board, record, {})
            seen.add(found[0])


def test_leaves_are_never_more_than_a_sixteenth_of_the_simulations_but_for_one():
    assert [leaves_of(n) for n in (0, 1, 31, 32, 64, 800)] == [1, 1, 1, 2, 4, LEAVES]
