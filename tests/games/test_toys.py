"""Toys: their rows and states, what perfect and random play score, and bots of matches."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs, spaces
from polyplay.envs.spaces import Conditional
from polyplay.games.toys import Catch, Skirmish, Toy
from tests.toys import MADE

CONDITIONAL = "tests.toys:ConditionalGame"
PARTS = {"verb": Discrete(4), "unit": Discrete(4), "offset": Discrete(3)}
ALONE = ["catch", "memory", *MADE]  # the others: test_matches.py


def policy(pool, rng, n):
    action = pool.spec.action
    if isinstance(action, Discrete):
        return rng.integers(0, action.n, n)
    if isinstance(action, dict):
        return tree.map(lambda leaf: rng.integers(0, leaf.n, n), action)
    return rng.normal(0, 2, (n, *action.shape)).astype(np.float32)


def width(pool, lanes):
    return len(np.arange(pool.lanes)[lanes])


def play(pool, turns, rng):
    """Copies of what `turns` recvs gave, answered at random."""
    seen = []
    for _ in range(turns):
        lanes, row = pool.recv()
        seen.append((np.arange(pool.lanes)[lanes], tree.map(np.copy, row)))
        pool.send(lanes, policy(pool, rng, width(pool, lanes)))
    return seen


@pytest.mark.parametrize("name", ALONE)
def test_rows_follow_the_convention(name):
    pool = Envs(f"toy:{name}", 6).open(1)
    seen = play(pool, 450, np.random.default_rng(0))
    rows = {k: np.stack([row[k] for _, row in seen]) for k in ("first", "terminated", "truncated", "over", "reward")}
    over = rows["terminated"] | rows["truncated"]
    assert rows["first"][0].all()
    assert (rows["first"][1:] == over[:-1]).all()
    assert (rows["over"] == over).all()
    assert over.any()
    assert not (rows["terminated"] & rows["truncated"]).any()
    assert (rows["reward"][rows["first"]] == 0).all()
    assert rows["truncated"].any() == (name.endswith(("Pendulum", "Still")))
    assert seen[0][1]["obs"].dtype == np.dtype(pool.spec.obs.dtype)
    assert seen[0][1]["obs"].shape == (6, *pool.spec.obs.shape)


def test_the_action_on_a_final_row_goes_nowhere():
    def run(say):
        pool, rng, seen = Envs("toy:catch", 3).open(1), np.random.default_rng(0), []
        for _ in range(40):
            lanes, row = pool.recv()
            seen.append(row["obs"].copy())
            pool.send(lanes, np.where(row["over"], say, rng.integers(0, 3, 3)))
        return np.stack(seen)

    assert (run(0) == run(2)).all()


def scores(name, answer, lanes=200, turns=60, **options):
    """Returns of whole episodes, of lanes that are answered so: a function of the row, which also has the `cue` that
    its episode began with.
    """
    pool = Envs(f"toy:{name}", lanes, options=options).open(3)
    total, found, cue = np.zeros(lanes), [], None
    for _ in range(turns):
        numbers, row = pool.recv()
        cue = row["obs"].copy() if cue is None else np.where(row["first"][:, None], row["obs"], cue)
        total = np.where(row["first"], 0, total + row["reward"])
        found.append(total[row["over"]])
        pool.send(numbers, answer({**row, "cue": cue}))
    return np.concatenate(found)


def catches(row):
    board = row["obs"].reshape(-1, 10, 5)
    return 1 + np.sign(board[:, :9].max(1).argmax(1) - board[:, 9].argmax(1))


def remembers(row):
    return row["cue"][:, :4].argmax(1)


def right(row):
    """The right unit and offset for the verb that is legal besides waiting; 0 where it takes none."""
    cue, verb = row["obs"].argmax(1), row["mask"]["verb"][:, 1:].argmax(1) + 1
    return {"verb": verb, "unit": (cue + verb) % 4 * (verb % 2), "offset": (cue + verb) % 3 * (verb > 1)}


def drawn(name):
    draw = spaces.action_sampler(Envs(f"toy:{name}", 1).spec.action, 0)
    return lambda row: draw(len(row["over"]), row.get("mask"))


@pytest.mark.parametrize(
    ("name", "options", "answer", "least", "most"),
    [
        ("catch", {}, catches, 1, 1),
        ("catch", {}, drawn("catch"), -0.7, -0.5),
        ("memory", {"cues": 4}, remembers, 1, 1),
        ("memory", {"cues": 4}, lambda row: (remembers(row) + 1) % 4, -1, -1),
        (CONDITIONAL, {}, right, 1, 1),
        (CONDITIONAL, {}, lambda row: tree.map(lambda x: x * 0, right(row)), 0, 0),
        (CONDITIONAL, {}, drawn(CONDITIONAL), 0.15, 0.3),  # half of the time it waits
    ],
)
def test_what_perfect_and_random_play_score(name, options, answer, least, most):
    found = scores(name, answer, **options)
    assert len(found) > 200
    assert least - 1e-6 <= found.mean() <= most + 1e-6
    assert least < most or np.ptp(found) < 1e-6


def test_what_a_memory_shows():
    """The cue once, and a light where the answer is due."""
    pool, rows = Envs("toy:memory", 200, options={"cues": 4, "delay": 2}).open(0), []
    assert pool.spec.action == Discrete(4)
    for _ in range(16):
        lanes, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        pool.send(lanes, np.zeros(200, np.int64))
    for t, row in enumerate(rows):
        assert row["first"].all() == (t % 4 == 0)
        assert (row["obs"][:, :4].sum(1) == (t % 4 == 0)).all()
        assert (row["obs"][:, 4] == (t % 4 == 2)).all()
    assert len({*rows[0]["obs"][:, :4].argmax(1)}) == 4


def test_what_is_illegal_ends_the_game():
    pool = Envs(f"toy:{CONDITIONAL}", 300).open(0)
    assert pool.spec.action == Conditional(PARTS, {"unit": (1, 3), "offset": (2, 3)})
    lanes, row = pool.recv()
    assert (row["mask"]["verb"].sum(1) == 2).all()
    good, n = right(row), np.arange(300)
    bad, asked, cue = {k: v.copy() for k, v in good.items()}, good["verb"], row["obs"].argmax(1)
    bad["unit"][asked == 1] = ((cue + asked + 1) % 4)[asked == 1]
    bad["offset"][asked == 2] = ((cue + asked + 1) % 3)[asked == 2]
    bad["verb"][(asked == 3) & (n % 2 == 0)] = 1
    assert not row["mask"]["unit"][n, bad["verb"], bad["unit"]][asked == 1].any()
    assert not row["mask"]["offset"][n, bad["offset"]][asked == 2].any()
    pool.send(lanes, bad)
    _, after = pool.recv()
    fine = (asked == 3) & (n % 2 == 1)
    assert (after["terminated"] == ~fine).all()
    assert (after["reward"] == np.where(fine, 1 / 8, -1)).all()


@pytest.mark.parametrize(
    ("name", "theirs", "state"), [("Pendulum", "Pendulum-v1", "th thdot"), ("CartPole", "CartPole-v1", "x")]
)
def test_it_is_gymnasiums(name, theirs, state):
    env, pool = gymnasium.make(theirs).unwrapped, Envs(f"toy:tests.toys:{name}", 5).open(2)
    rng = np.random.default_rng(1)
    (lanes, row), over = pool.recv(), []
    env.reset()
    env.state = np.hstack([pool._states[k][3] for k in state.split()])
    while not any(over):
        action = policy(pool, rng, 5)
        pool.send(lanes, action)
        lanes, row = pool.recv()
        obs, reward, terminated, *_ = env.step(action[3])
        assert row["obs"][3].tolist() == obs.tolist()
        assert (row["reward"][3], row["terminated"][3]) == (np.float32(reward), terminated)
        over.append(row["over"][3])
    assert len(over) == 200 if name == "Pendulum" else row["terminated"][3]


def test_catch_lasts_rows_and_comes_as_bytes():
    pool = Envs("toy:catch", 2, options={"rows": 4, "columns": 3, "dtype": "uint8"}).open(0)
    assert pool.spec.obs == Field((12,), "uint8")
    seen = play(pool, 9, np.random.default_rng(0))
    assert [bool(row["over"][0]) for _, row in seen] == [False, False, False, True] * 2 + [False]
    assert sorted(set(seen[0][1]["obs"][0])) == [0, 255]


def test_the_best_answer_beats_the_bot():
    """In the first match of each of n pairs of teams; either side in turn."""
    n, pool = 1500, Envs("toy:skirmish", 4 * 1500).open(1)
    mine = (np.arange(n)[:, None] + np.array([0, 0, 1, 1])) % 2 == 0
    points, goes_on = np.zeros(n), np.ones(n, bool)
    while goes_on.any():
        lanes, row = pool.recv()
        points += np.where(goes_on, (row["reward"].reshape(n, 4) * np.where(mine, 1, -1)).sum(1), 0)
        goes_on &= pool._states["here"].any(1)
        pool.send(lanes, np.where(mine.reshape(-1), Skirmish.focus(row["obs"]), Skirmish.opposite(row["obs"])))
    assert 0.975 < (points > 0).mean() < 0.995
    assert (points == 0).any()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("catsh", {}, "unknown toy 'toy:catsh', did you mean 'toy:catch'"),
        ("skirmisch", {}, "did you mean 'toy:skirmish'"),
        ("catch", {"row": 3}, "unknown option 'row', did you mean 'rows'"),
        ("catch", {"rows": 1}, "rows ≥ 2"),
        ("catch", {"dtype": "int8"}, "'float32' or 'uint8'"),
        ("memory", {"cues": 1}, "cues ≥ 2"),
        ("rps", {"rounds": 0}, "rounds ≥ 1, got rounds=0"),
        ("skirmish", {"health": 0}, "health ≥ 1"),
        ("skirmish", {"accuracy": 0.0}, "0 < accuracy ≤ 1"),
        ("skirmish", {"late": 8}, "0 ≤ late < health, got health=8"),
        ("skirmish", {"lanes": 6}, "--lanes 6: must be a multiple of the 4 seats of a match"),
        ("skirmish", {"lanes": 4, "groups": 2}, "--groups 2 of 4 lanes have 2 each"),
        ("rps", {"lanes": 6, "agents": 4, "groups": 1}, "--lanes 6 given; allowed: multiples of --players 4"),
    ],
)
def test_mistakes(name, options, says):
    kw = {k: v for k, v in options.items() if k in ("lanes", "agents", "groups")}
    with pytest.raises(UserError, match=says):
        Envs(f"toy:{name}", **{"lanes": 4, **kw}, options={k: v for k, v in options.items() if k not in kw}).open(0)


class Broken(Catch):
    def see(self, s):
        raise KeyError("ball")


class Narrow(Catch):
    def see(self, s):
        return super().see(s)[:, 1:]


class Rough(Catch):
    def step(self, s, action, draw):
        after, reward, end, _ = super().step(s, action, draw)
        return after, reward, end, 0.5 * end


class Short(Catch):
    def step(self, s, action, draw):
        return super().step(s, action, draw)[:3]


class Unseated(Skirmish):
    def reset(self, draw, n):
        return {k: v for k, v in super().reset(draw, n).items() if k != "here"}


@dataclass
class Blind(Toy):
    action = Catch.action
    reset, step = Catch.reset, Catch.step


class Whole(Catch):
    def see(self, s):
        return super().see(s).astype(np.int64)


class Masked(Catch):
    legality = Field((3,), "bool")


@dataclass
class Stranger:
    rows: int = 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Broken", r"Broken\.see\(\) raised KeyError: 'ball' \(test_toys\.py:\d+\)"),
        ("Narrow", r"Narrow\.see\(\) returned float32 \[2, 49\]; must be float32 \[2, 50\]"),
        ("Whole+dtype=uint8", r"Whole\.see\(\) returned int64 \[2, 50\]; must be uint8 \[2, 50\]"),
        ("Rough", r"Rough\.step\(\) returned .*, truncated float64 \[2\]; must be .*, truncated bool \[2\]"),
        ("Short", r"Short\.step\(\) returned tuple; must be a tuple: states, reward, terminated, truncated"),
        ("Unseated", r"Unseated\.reset\(\) returned health .*; must be health .*, here bool \[2, 4\]"),
        ("Blind", r"Blind lacks obs, see, which polyplay\.games\.toys\.Toy declares: define it"),
        ("Masked", r"Masked has a legality, but no legal\(\)"),
        ("Stranger", r"Stranger must be a dataclass that inherits polyplay\.games\.toys\.Toy"),
        ("policy", r"policy must be a dataclass"),
    ],
)
def test_a_toy_of_ones_own_that_is_none_is_refused(name, says):
    with pytest.raises(UserError, match=f"^--env: .*{says}"):
        Envs(f"toy:{__name__}:{name}", 4).spec  # noqa: B018
