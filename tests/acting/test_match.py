"""A match: both colours from each opening, every game to its end, in batches, and no game that is not needed."""

from __future__ import annotations

import numpy as np

from polyplay.acting.match import MatchScore, draw_openings, play_match
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES

BOARD = GAMES["tic_tac_toe"]
START = np.stack([BOARD.new()])


def legal(record: np.ndarray) -> list[int]:
    room = np.zeros(BOARD.actions, np.int16)
    return room[: kernels.legal(BOARD.numbers, record, room)].tolist()


def first_legal(records: np.ndarray) -> np.ndarray:
    return np.array([legal(record)[0] for record in records])


def mixed(records: np.ndarray) -> np.ndarray:
    """Some move, the same for the same position."""
    moves = [legal(record) for record in records]
    return np.array(
        [m[int(record @ np.arange(len(record))) % len(m)] for m, record in zip(moves, records, strict=True)]
    )


def one_by_one(openings, players) -> MatchScore:
    """The plain twin: one game after the other."""
    score = MatchScore()
    for game in range(2 * len(openings)):
        record, side, result = openings[game // 2].copy(), game % 2, kernels.GOES_ON
        while result == kernels.GOES_ON:
            result = kernels.play(BOARD.numbers, record, int(players[side](record[None])[0]))
            side = 1 - side
        if result == kernels.DRAWN:
            score.draws += 1
        elif side == 1:
            score.wins += 1
        else:
            score.losses += 1
    return score


def random_openings(n: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return draw_openings(BOARD, n, 3, lambda records: np.array([rng.choice(legal(r)) for r in records]))


def test_a_match_in_batches_equals_games_one_by_one():
    openings, players = random_openings(30), (first_legal, mixed)
    expected = one_by_one(openings, players)
    assert min(expected.wins, expected.draws, expected.losses) > 0
    for at_once in (1, 7, 64):
        assert play_match(BOARD, openings, players, at_once) == expected
    assert expected.games == 60
    assert expected.points == expected.wins + expected.draws / 2


def test_the_second_player_has_the_move_in_every_other_game():
    asked = []

    def noting(records):
        asked.append(len(records))
        return first_legal(records)

    play_match(BOARD, START, (noting, first_legal), 2)
    assert sum(asked) == 4 + 3, "tic-tac-toe by the first legal moves ends after 7: once with the move, once without"


def test_a_match_ends_when_it_is_certain():
    seen = []

    def certain(score):
        seen.append(score.games)
        return score.games >= 10

    found = play_match(BOARD, random_openings(30), (first_legal, mixed), 4, certain)
    assert 10 <= found.games < 14, "games that end at the same turn count"


def test_openings_are_positions_that_go_on():
    found = random_openings(50)
    plies = (found[:, kernels.CELLS :] != 0).sum(1)
    assert set(plies.tolist()) == {3}
    deep = draw_openings(BOARD, 5, 9, first_legal)
    assert (deep[:, kernels.CELLS :] != 0).sum(1).tolist() == [6] * 5, "the seventh move ends the game"
    assert (START[0] == BOARD.new()).all()
