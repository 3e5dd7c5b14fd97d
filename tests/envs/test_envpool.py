from __future__ import annotations

import sys

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Box, Discrete, Envs
from polyplay.envs.pool import lane_seeds
from tests.envs import fakepool

FLAGS = ("first", "terminated", "truncated", "over")


@pytest.fixture(autouse=True)
def made(monkeypatch):
    return fakepool.install(monkeypatch)


def lane_rows(pool, turns):
    """Per lane: (elapsed steps, reward, *FLAGS) of every row; answers what it gets, with action 0."""
    rows = [[] for _ in range(pool.lanes)]
    for _ in range(turns):
        lanes, row = pool.recv()
        seen = row["obs"]["at"] if isinstance(row["obs"], dict) else row["obs"]
        for k, lane in enumerate(np.arange(pool.lanes)[lanes].tolist()):
            rows[lane].append((int(seen[k, 0]), float(row["reward"][k]), *(bool(row[f][k]) for f in FLAGS)))
        shape = getattr(pool.spec.action, "shape", ())
        kind = np.float32 if shape else np.int64
        pool.send(lanes, np.zeros((len(row["reward"]), *shape), kind))
    return rows


FIRST, GOES = (True, False, False, False), (False, False, False, False)
ENDS, EPISODE_CUT, LIFE = (False, True, False, True), (False, False, True, True), (False, True, False, False)


@pytest.mark.parametrize("how", [{}, {"groups": 2}, {"at_once": 2}])
def test_rows_are_the_convention_under_every_rule(how):
    rows = lane_rows(Envs("envpool:Count-v1", 4, **how).open(0), 40)
    for lane, seen in enumerate(rows):
        length = 3 + lane % 2
        want = [(t % (length + 1)) for t in range(len(seen))]
        assert len(seen) > 10
        assert [s[:2] for s in seen] == [(t, t) for t in want]
        assert [s[2:] for s in seen] == [FIRST if t == 0 else ENDS if t == length else GOES for t in want]


LIVES = [  # a task, its options, the flags of its rows
    ("Count-v1", {"max_episode_steps": 2}, [FIRST, GOES, EPISODE_CUT, FIRST, GOES, EPISODE_CUT, FIRST]),
    ("Lives-v5", {}, [FIRST, GOES, GOES, GOES, GOES, GOES, ENDS, FIRST]),
    ("Lives-v5", {"episodic_life": True}, [FIRST, GOES, GOES, LIFE, FIRST, GOES, GOES, ENDS, FIRST]),
    ("Lives-v5", {"max_episode_steps": 6}, [FIRST, GOES, GOES, GOES, GOES, GOES, ENDS, FIRST]),  # both: the end is real
]


@pytest.mark.parametrize(("task", "options", "flags"), LIVES)
def test_lost_lives_and_time_limits(task, options, flags):
    """A lost life ends an episode where asked, but never the game; elapsed steps go on, without a reward."""
    seen = lane_rows(Envs(f"envpool:{task}", 1, options=options).open(0), len(flags))[0]
    assert [s[2:] for s in seen] == flags
    if "episodic_life" in options:
        assert [s[0] for s in seen] == [0, 1, 2, 3, 3, 4, 5, 6, 0]
        assert seen[4][1] == 0


def test_lanes_may_be_answered_later_one_by_one():
    """As when rollouts are parked: fewer lanes are out than recv gives at most."""
    pool = Envs("envpool:Count-v1", 4, at_once=3).open(0)
    lanes, _ = pool.recv()
    assert len(lanes) == 3
    more, _ = pool.recv()
    assert sorted([*lanes, *more]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()
    pool.send(lanes[1:2], np.array([2]))
    assert pool.recv()[0].tolist() == [lanes[1]]
    pool.send(lanes[:1], np.array([0]))
    pool.send(more, np.array([0]))
    assert sorted(pool.recv()[0]) == sorted([lanes[0], *more])


def test_seeds_threads_and_groups_reach_it(made):
    envs = Envs("envpool:Count-v1", 6, groups=2, workers=3)
    pool = envs.open(5, lane=12)
    seeds = lane_seeds(5, 12, 6)
    assert [p.seeds for p in made] == [seeds[:3].tolist(), seeds[3:].tolist()]
    assert [(p.batch, p.config.num_threads) for p in made] == [(3, 3)] * 2
    lanes, row = pool.recv()
    assert lanes == slice(0, 3)
    assert (row["obs"][:, 1] == seeds[:3] % 1000).all()
    assert pool.recv()[0] == slice(3, 6)
    pool.send(slice(3, 6), np.array([0, 1, 2]))
    assert made[1].sent[0].tolist() == [1, 2, 3], "Discrete actions that start at 1"
    Envs("envpool:Count-v1", 6, at_once=4).open(5)
    assert made[2].batch == 1
    assert 1 <= made[2].config.num_threads <= 6


def test_bounds_that_were_never_set_do_not_clip(made):
    envs = Envs("envpool:Real-v1", 1)
    assert envs.spec.action == Box((2,), np.array([-np.inf, -1], np.float32), np.array([np.inf, 1], np.float32))
    assert envs.spec.obs == {"at": Field((2,), "float32"), "n": Field((), "int64")}
    assert envs.spec.classes == {"n": 9}
    pool = envs.open(0)
    lanes, row = pool.recv()
    assert row["obs"]["n"].dtype == np.int64
    assert row["obs"]["n"].tolist() == [0]
    pool.send(lanes, np.array([[-70.0, -70.0]], np.float32))
    assert made[0].sent[0].tolist() == [[-70.0, -1.0]]


def test_what_is_told_before_a_run():
    spec = Envs("envpool:Lives-v5", 2).spec
    assert (spec.frames_per_step, spec.action) == (4, Discrete(4))
    assert spec.describe["options"] == "episodic_life False, reward_clip False, frame_skip 4, scale 1.0"
    assert spec.describe["time limit"] == "100 steps"
    other = Envs("envpool:Real-v1", 2).spec
    assert other.frames_per_step == 1, "physics substeps are no frames"
    assert other.describe["options"] == "EnvPool's defaults"
    assert other.describe["time limit"] == "the environment's own"


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("Cuont-v1", {}, r"EnvPool has no such task, did you mean 'Count-v1'\? \(one of 5\)"),
        ("Two-v1", {}, "is a game of 2 players; one is supported"),
        ("Both-v1", {}, "actions Dict.* are not supported with EnvPool; supported are Discrete and Box of floats"),
        ("Lives-v5", {"reward_clip": True}, "option reward_clip=True loses the score; leave it out, the learner"),
        ("Lives-v5", {"seed": 3}, "option 'seed' cannot be set: Polyplay sets it"),
        ("Lives-v5", {"frame_skp": 3}, r"unknown option 'frame_skp', did you mean 'frame_skip'\?; allowed"),
        ("Lives-v5", {"episodic_life": 1}, "option episodic_life=1 must be of type bool"),
        ("Count-v1", {"max_episode_steps": 0}, "could not be described: ValueError: too short"),
    ],
)
def test_mistakes_are_one_line(task, options, says):
    with pytest.raises(UserError, match=f"^(--env(-kwargs)?: )?envpool:{task}: {says}") as e:
        Envs(f"envpool:{task}", 2, options=options).spec  # noqa: B018
    assert "\n" not in str(e.value)


def test_without_envpool_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"^envpool: environments need EnvPool .*: pip install .*\[envpool\]'$"):
        Envs("envpool:Pong-v5", 2).spec  # noqa: B018
