from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from polyplay.cli.play.moves import legal_moves
from polyplay.cli.play.solving import SolverProcess, verdicts
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game, game
from polyplay.envs.boards.solver import RowSolver, solver_of
from tests.acting.search.test_policy import positions
from tests.cli.play.sessions import wait


def plain(board: Game, record: np.ndarray) -> tuple[int, int]:
    """(outcome for the mover, plies until the end) of perfect play that wins soon and loses late, by recursion."""
    found = []
    for action in legal_moves(board, record):
        after = record.copy()
        result = kernels.play(board.numbers, after, action)
        outcome, plies = (int(result == kernels.WON), 0) if result != kernels.GOES_ON else plain(board, after)
        found.append((outcome if result != kernels.GOES_ON else -outcome, plies + 1))
    return max(found, key=lambda f: (f[0], -f[0] * f[1]))


@pytest.mark.long
def test_verdicts_are_those_of_plain_recursion():
    board = game("connect:3x4x3")
    solver = RowSolver(board, 1 << 12)
    for record in positions(board, 20):
        for action, outcome, plies in verdicts(solver, record):
            after = record.copy()
            if kernels.play(board.numbers, after, action) == kernels.GOES_ON:
                theirs, n = plain(board, after)
                assert (outcome, plies) == (-theirs, n + 1 if theirs else plies)


def test_verdicts_of_othello_say_who_wins_and_a_last_move_may_lose():
    """And not how soon, which nobody counts."""
    board, rng, last = game("othello+size=6"), np.random.default_rng(0), set[int]()
    solver = solver_of(board)
    for _ in range(20):
        record, result, found = board.new(), kernels.GOES_ON, dict[int, int]()
        while result == kernels.GOES_ON:
            if np.count_nonzero(record[kernels.CELLS :] == 0) < 9:
                found = solver.outcomes(record)
                assert [*verdicts(solver, record)] == [(action, outcome, None) for action, outcome in found.items()]
            action = int(rng.choice(legal_moves(board, record)))
            result = kernels.play(board.numbers, record, action)
        if found:
            assert found[action] == kernels.WORTH[result]
            last.add(found[action])
    assert last >= {-1, 1}


def test_a_process_solves_othello():
    board, record = game("othello+size=4"), game("othello+size=4").new()
    process = SolverProcess(board.name, 20.0)
    process.ask(record)
    wait(lambda: not process.state(record)["solving"])
    process.close()
    assert process.state(record)["verdicts"] == dict.fromkeys([1, 4, 11, 14], (-1, None)), "the second player wins"


@pytest.fixture
def process() -> Iterator[SolverProcess]:
    made = SolverProcess("connect_four", 1.0)
    yield made
    made.close()


def after(*moves: int) -> np.ndarray:
    board = game("connect_four")
    record = board.new()
    for move in moves:
        kernels.play(board.numbers, record, move)
    return record


LATE = after(*[0, 1] * 3, *[1, 0] * 3, *[2, 3] * 3, 3, 2)  # 20 stones


def test_every_move_gets_its_verdict_and_is_not_asked_again(process: SolverProcess):
    process.ask(LATE)
    assert process.state(LATE)["solving"]
    wait(lambda: not process.state(LATE)["solving"])
    expected = {action: (outcome, plies) for action, outcome, plies in verdicts(RowSolver(game("connect_four")), LATE)}
    assert process.state(LATE)["verdicts"] == expected
    assert len(expected) == 5
    process.ask(LATE)
    assert not process.state(LATE)["solving"]


def test_a_position_that_takes_too_long_ends_unsolved_and_the_next_is_solved(process: SolverProcess):
    start = after()
    process.ask(start)
    wait(lambda: not process.state(start)["solving"])
    assert len(process.state(start)["verdicts"]) < 7
    process.ask(start)
    assert not process.state(start)["solving"], "it is not tried again"
    process.ask(LATE)
    wait(lambda: not process.state(LATE)["solving"])
    assert len(process.state(LATE)["verdicts"]) == 5


def test_a_new_question_ends_the_one_before(process: SolverProcess):
    process.seconds = 60.0
    process.ask(after())
    first = process.process
    process.ask(LATE)
    assert process.process is not first
    wait(lambda: len(process.state(LATE)["verdicts"]) == 5)
    assert first is not None
    assert first.wait(10) == -9
