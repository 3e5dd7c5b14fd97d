from __future__ import annotations

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs, spaces
from polyplay.envs.spaces import Conditional

PARTS = {"verb": Discrete(4), "unit": Discrete(4), "offset": Discrete(3)}


def right(cue, verb):
    """What perfect play answers to a cue, for a verb."""
    return {"verb": verb, "unit": (cue + verb) % 4 if verb in (1, 3) else 0, "offset": (cue + verb) % 3 * (verb > 1)}


def returns(games, answer, rows=8):
    pool = Envs("toy:conditional", games, options={"rows": rows}).open(0)
    total = np.zeros(games)
    for _ in range(rows):
        lanes, row = pool.recv()
        total += row["reward"]
        assert not row["terminated"].any()
        pool.send(lanes, answer(row))
    total += pool.recv()[1]["reward"]
    return total, pool._rows["terminated"].copy()


def perfect(row):
    cues, verbs = row["obs"].argmax(1), row["mask"]["verb"][:, 1:].argmax(1) + 1
    each = [right(int(c), int(v)) for c, v in zip(cues, verbs, strict=True)]
    return {k: np.array([one[k] for one in each]) for k in PARTS}


def test_perfect_waiting_and_random_play():
    envs = Envs("toy:conditional", 2)
    assert envs.spec.action == Conditional(PARTS, {"unit": (1, 3), "offset": (2, 3)})
    assert envs.spec.obs == Field((4,), "float32")
    total, over = returns(50, perfect)
    assert np.allclose(total, 1)
    assert over.all()
    total, _ = returns(5, lambda row: tree.map(lambda x: x * 0, perfect(row)))
    assert (total == 0).all()
    draw = spaces.action_sampler(envs.spec.action, 0)
    total, _ = returns(400, lambda row: draw(400, row["mask"]))
    assert 0.15 < total.mean() < 0.3, "half of the time it waits, else a third to a half is right; nothing illegal"


def test_parts_that_do_not_know_the_verb_are_right_for_two_of_three():
    """The best of all choices of a unit and an offset for a cue."""
    for cue in range(4):
        shares = []
        for unit in range(4):
            for offset in range(3):
                found = [right(cue, verb) for verb in (1, 2, 3)]
                points = [unit == found[0]["unit"], offset == found[1]["offset"]]
                points.append(((unit == found[2]["unit"]) + (offset == found[2]["offset"])) / 2)
                shares.append(np.mean(points))
        assert max(shares) == pytest.approx(2 / 3)


def test_what_is_illegal_ends_the_game():
    pool = Envs("toy:conditional", 300).open(0)
    lanes, row = pool.recv()
    good, asked = perfect(row), row["mask"]["verb"][:, 1:].argmax(1) + 1
    cue = row["obs"].argmax(1)
    assert (row["mask"]["verb"].sum(1) == 2).all()
    n = np.arange(300)
    bad = {k: v.copy() for k, v in good.items()}
    bad["unit"][asked == 1] = ((cue + asked + 1) % 4)[asked == 1]
    bad["offset"][asked == 2] = ((cue + asked + 1) % 3)[asked == 2]
    bad["verb"][(asked == 3) & (n % 2 == 0)] = 1
    assert not row["mask"]["unit"][n, bad["verb"], bad["unit"]][asked == 1].any()
    assert not row["mask"]["offset"][n, bad["offset"]][asked == 2].any()
    pool.send(lanes, bad)
    _, after = pool.recv()
    fine = (asked == 3) & (n % 2 == 1)
    assert (after["reward"][~fine] == -1).all()
    assert (after["terminated"] == ~fine).all()
    assert (after["reward"][fine] > 0).all()


def test_masks_have_something_for_what_a_legal_verb_takes_and_nothing_for_others():
    _, row = Envs("toy:conditional", 200).open(1).recv()
    legal = row["mask"]
    assert (legal["unit"].sum(2) == [0, 3, 0, 3]).all()
    assert (legal["offset"].sum(1) == np.where(legal["verb"][:, 1], 0, 2)).all()


def test_a_game_needs_a_row():
    with pytest.raises(UserError, match="toy:conditional needs rows ≥ 1, got rows=0"):
        Envs("toy:conditional", 1, options={"rows": 0}).open(0)
