"""When a player gives a game up, with games whose values are made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyplay.core.checkpoint import write_arrays
from polyplay.games.records import NEVER, ResignOptions
from polyplay.search.self_play import ENOUGH, GRID, Resignation, learned_value

MOVES = 20


def played(made: Resignation, rng: np.random.Generator, lie: float) -> tuple[bool, bool]:
    """A game in lane 0, whose loser's values fall to −1; with the chance `lie` it is the winner's that fall. Whether
    somebody resigned, and was not the loser.
    """
    loser, liar = int(rng.integers(2)), rng.random() < lie
    falls, at = 1 - loser if liar else loser, np.array([0])
    for ply in range(MOVES):
        value = -ply / MOVES if ply % 2 == falls else ply / MOVES
        if made.decide(at, np.array([ply]), np.array([value]), np.array([value - 0.01]))[0]:
            made.begin(at)
            return True, liar
    made.ended(0, MOVES, -1.0 if loser == 0 else 1.0)
    made.begin(at)
    return False, False


def player(**options: object) -> Resignation:
    return Resignation(ResignOptions(**options), 1, MOVES, seed=3, first_lane=0)  # type: ignore[arg-type]


def test_a_tenth_is_played_on_and_nobody_resigns_before_enough_is_known():
    made, rng, first = player(), np.random.default_rng(0), 0
    played_on = 0
    for game in range(4000):
        resigned, _ = played(made, rng, lie=0.0)
        first = first or (game if resigned else 0)
        played_on += made.played_on[0]
        if made.known < ENOUGH:
            assert not resigned
            assert made.v == NEVER
    assert abs(played_on / 4000 - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5
    assert first > 5 * ENOUGH
    assert made.v > -0.2, "where values never lie, one may resign early"
    assert made.rate == (0.0, pytest.approx(0.0, abs=0.03))


def test_v_is_the_greatest_with_fewer_wrong_than_asked():
    made, rng = player(played_on=1.0), np.random.default_rng(2)
    for _ in range(300):  # a winner's value dips to −0.5 in one game of five
        dips, worth = rng.random() < 0.2, 1.0 if rng.random() < 0.5 else -1.0
        values = np.where(np.arange(MOVES) % 2 == (0 if worth < 0 else 1), -np.linspace(0, 1, MOVES), 0.5)
        if dips:
            values[1 if worth < 0 else 0] = -0.5
        made.values[0, :MOVES] = values
        made.ended(0, MOVES, worth)
    would, wrong = made.would.sum(0), made.wrong.sum(0)
    at = int(np.flatnonzero(made.v == GRID)[0])
    assert wrong[at] < 0.05 * would[at]
    assert wrong[at + 1] >= 0.05 * would[at + 1]
    assert made.v == pytest.approx(-0.5)


def test_a_fixed_value_and_none_at_all():
    at, ply, low = np.array([0]), np.array([3]), np.array([-0.95])
    fixed, off = player(v=-0.9, played_on=0.0), player(played_on=1.0)
    assert fixed.decide(at, ply, low, low)[0]
    assert not fixed.decide(at, ply, low, low + 0.2)[0], "its best child is better"
    assert not fixed.decide(at, ply * 0, low, low)[0], "not before the first move"
    assert not off.decide(at, ply, low, low)[0]


@pytest.mark.parametrize(("given", "v", "share"), [("auto", None, 0.1), ("off", None, 1.0), ("-0.9", -0.9, 0.1)])
def test_what_is_said_of_it(given, v, share):
    assert ResignOptions.parse(given) == ResignOptions(v, share)


@pytest.mark.parametrize(
    ("learned", "value"), [([-0.86, -0.83], -0.86), ([NEVER, -0.83], -0.83), ([NEVER, NEVER], NEVER), ([], NEVER)]
)
def test_what_players_learned_is_in_their_checkpoint(tmp_path: Path, learned: list[float], value: float):
    """The most careful of those that know enough."""
    found = tmp_path / "checkpoints/000000000007-steps-70"
    found.mkdir(parents=True)
    for i, v in enumerate(learned):
        made = player()
        made.v[...] = v
        (found / "workers").mkdir(exist_ok=True)
        write_arrays(
            found / f"workers/self_play-{i}.safetensors", {f"resignation/{k}": x for k, x in made.arrays.items()}
        )
    assert learned_value(found) == value
    alone = tmp_path / "checkpoints/champion-000000000005-steps-50"
    alone.mkdir()
    assert learned_value(alone) == value, "weights alone: as in the run's newest checkpoint"
