"""Resignation in self-play with a network whose values lie in some games."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter

import numpy as np

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES
from polyplay.games.records import NEVER, ResignOptions, ply
from polyplay.search import SearchOptions
from tests.search.test_self_play import games_in, legal, player, take

BOARD = GAMES["tic_tac_toe"]
CLAIMS = {"wrong, sure": 0.95, "wrong": 0.8, "right, sure": 0.95, "right": 0.8}  # that the game is lost, by the loser
OPENINGS = {"wrong, sure": 1, "wrong": 9, "right, sure": 40, "right": 99}  # of 72, at least


class Liar:
    """After two free moves a game goes on by a fixed rule, so its end is known: by that end the network is right about
    who loses, or says it of who wins.
    """

    title = "a liar"

    def __init__(self) -> None:
        self.found = dict[bytes, tuple[bytes, int]]()
        openings = Counter(end for end, worth in map(self.end, opened()) if worth)
        left, self.kinds = iter(sorted(openings)), dict[bytes, str]()
        for kind, least in OPENINGS.items():
            while sum(openings[end] for end, k in self.kinds.items() if k == kind) < least:
                if (end := next(left, b"")) == b"":
                    break
                self.kinds[end] = kind
        self.share = Counter[str]()
        for end, n in openings.items():
            self.share[self.kinds[end]] += n

    def move(self, record: np.ndarray) -> int:
        moves = legal(BOARD, record)
        return int(moves[zlib.crc32(record.tobytes()) % len(moves)])

    def end(self, record: np.ndarray) -> tuple[bytes, int]:
        """The last position, and what it is worth for who is to move in the record."""
        if (known := record.tobytes()) not in self.found:
            after, sign = record.copy(), 1
            while (result := board_rules.play(BOARD.numbers, after, self.move(after))) == records.GOES_ON:
                sign = -sign
            self.found[known] = after.tobytes(), sign * int(result == records.WON)
        return self.found[known]

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, values = np.zeros((len(planes), BOARD.actions), np.float32), np.zeros(len(planes), np.float32)
        for i, record in enumerate(BOARD.records(planes)):
            if ply(record) >= 2:
                end, worth = self.end(record)
                kind = self.kinds.get(end, "right")
                logits[i, self.move(record)] = 50.0
                values[i] = CLAIMS[kind] * worth * (-1 if kind.startswith("wrong") else 1)
        return logits, values


def opened() -> list[np.ndarray]:
    found = []
    for moves in itertools.permutations(range(BOARD.actions), 2):
        found.append(BOARD.new())
        assert [board_rules.play(BOARD.numbers, found[-1], move) for move in moves] == [records.GOES_ON] * 2
    return found


def resigned(network: Liar, games: list[dict[str, np.ndarray]]) -> list[bool]:
    """Of the games that were resigned, whether by who would have won. Every outcome is checked."""
    found = []
    for game in games:
        record, moves = BOARD.new(), len(game["first"]) - 1
        results = [board_rules.play(BOARD.numbers, record, int(action)) for action in game["action"][:moves]]
        if results[-1] == records.GOES_ON:
            assert game["reward"][moves] == 1.0, "who moved last has won"
            found.append(network.end(record)[1] > 0)
        else:
            assert game["reward"][moves] == (1.0 if results[-1] == records.WON else 0.0)
    return found


def test_v_retreats_until_fewer_than_a_twentieth_of_those_who_resign_would_not_have_lost():
    """Below −0.8 one of some forty is wrong; above it one of six."""
    network, options = Liar(), SearchOptions(1, noise=0.25, noise_alpha=1.0, temperature=((0, 1.0),))
    sure = network.share["wrong, sure"] / (network.share["wrong, sure"] + network.share["right, sure"])
    lies = network.share["wrong"] + network.share["wrong, sure"]
    assert 0.0 < sure < 0.03
    assert lies / network.share.total() > 0.12
    made = player(BOARD, games=32, T=300, evaluator=network, options=options, resign=ResignOptions(played_on=0.3))
    late = list[bool]()
    while made.resignation.known < 1500:
        games = [game for slot in take(made, 1) for game in games_in(slot)]
        if made.resignation.known < 100:
            assert made.resignation.v == NEVER
            assert not resigned(network, games)
        if made.resignation.known > 600:
            assert made.resignation.v == np.float32(-0.8)
            late += resigned(network, games)
    assert len(late) > 500
    assert 0.0 < np.mean(late) < 0.05
    assert made.resignation.rate[0] < 0.05


def test_nobody_resigns_where_it_is_off():
    network, options = Liar(), SearchOptions(1, noise=0.25, noise_alpha=1.0, temperature=((0, 1.0),))
    made = player(BOARD, games=32, T=300, evaluator=network, options=options, resign=ResignOptions.parse("off"))
    assert not resigned(network, [game for slot in take(made, 20) for game in games_in(slot)])
    assert made.resignation.v < 0
