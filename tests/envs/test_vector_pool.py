"""Vector environments that reset in the same step: last rows from info, first rows as they were returned."""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import polyplay
from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.envs import Envs
from polyplay.envs.base_pool import UnitPool
from polyplay.envs.build import autoreset_mode, build_vector
from polyplay.envs.pool import lane_seeds
from polyplay.envs.vector_pool import VectorPool
from polyplay.runs.plan import episodes
from tests.envs import faulty, vectors
from tests.envs.faulty import FINE, RAISE
from tests.envs.vectors import NEXT, OFF, SAME, Counting


def test_the_same_rows_as_with_processes():
    """CartPole under the same seed and actions, to the bit."""
    actions = np.random.default_rng(0).integers(0, 2, (80, 3))
    pools = Envs("CartPole-v1", 3, inline=True).open(7), Envs("CartPole-v1", 3, workers=2).open(7)
    assert all(same(x, y) for x, y in zip(*(walk(pool, actions) for pool in pools), strict=True))


def test_steps_in_this_process_and_restarts_lanes():
    pool = Envs(faulty.Obedient, 2, inline=True, at_once=2).open(0)
    lanes, row = pool.recv()
    assert row["obs"][:, 2].tolist() == [os.getpid()] * 2
    pool.send(lanes, np.array([FINE, RAISE]))
    lanes, row = pool.recv()
    assert row["first"].tolist() == [False, True]
    assert pool.restarts == 1
    assert "boom" in pool.faults[0]
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()


FLAGS = ("first", "terminated", "truncated", "over")


def opened(name, lanes=3, groups=1, seed=7, lane=0, **options):
    return Envs(name, lanes, groups, inline=True, options=options).open(seed, lane)


def walk(pool, actions):
    """Rows of a pool of one group, as copies."""
    rows = []
    for action in actions:
        lanes, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        pool.send(lanes, action)
    pool.close()
    return rows


def same(a, b):
    return all(
        ((x == y).all() and x.dtype == y.dtype) for (_, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


def of_gymnasium(kind):
    def make(num_envs: int = 4):
        return kind([vectors.Pair] * num_envs, autoreset_mode=SAME)

    return make


POLES, REAL = np.random.default_rng(0).integers(0, 2, (40, 4)), np.random.default_rng(1).normal(size=(12, 4, 2))
ALIKE = [  # a vector environment, the single one, actions
    (vectors.poles, Envs("CartPole-v1", 4, inline=True, options={"max_episode_steps": 9}), POLES),
    (of_gymnasium(SyncVectorEnv), Envs(vectors.Pair, 4, inline=True), REAL.astype(np.float32)),
    (of_gymnasium(AsyncVectorEnv), Envs(vectors.Pair, 4, inline=True), REAL.astype(np.float32)),
]


@pytest.mark.parametrize(("make", "single", "actions"), ALIKE)
def test_gymnasium_s_own_give_the_rows_of_single_environments_to_the_bit(make, single, actions):
    """In NEXT_STEP, and in SAME_STEP."""
    pools = opened(make, 4, lane=2), single.open(7, 2)
    assert [type(pool) for pool in pools] == [VectorPool, UnitPool]
    assert all(same(x, y) for x, y in zip(*(walk(pool, actions) for pool in pools), strict=True))


def test_groups_are_vectors_of_their_own_with_seeds_of_their_own():
    pool, whole = opened(vectors.poles, 6, groups=2), opened(vectors.poles, 6)
    every = whole.recv()[1]["obs"].copy()
    assert len({tuple(row) for row in every}) == 6
    for group in (slice(0, 3), slice(3, 6), slice(0, 3), slice(3, 6)):
        lanes, row = pool.recv()
        assert lanes == group
        if row["first"].all():
            assert (row["obs"] == every[group]).all()
        pool.send(lanes, np.zeros(3, np.int64))


@pytest.mark.parametrize("make", [Counting, lambda num_envs: vectors.obedient(num_envs, OFF)])
def test_where_it_does_not_reset_we_do_and_rows_are_the_convention(make):
    """Lanes of 2, 3 and 4 steps: ends fall together in all ways. Both insist that none is stepped beyond its end."""
    rows = walk(opened(make, 3), [np.zeros(3, np.int64)] * 30)
    for lane in range(3):
        length = 2 + lane
        for t, row in enumerate(rows):
            step = t % (length + 1)
            assert row["obs"][lane, 0] == step, "the last row is the real last observation, the first a reset's"
            assert row["reward"][lane] == step
            end = step == length
            assert [bool(row[k][lane]) for k in FLAGS] == [step == 0, end, False, end]


def test_seeds_are_one_per_lane_or_one_for_all():
    seeds = lane_seeds(7, 5, 3).tolist()
    pool = opened(Counting, 3, lane=5)
    assert pool._groups[0].env.seeds == seeds
    assert opened(vectors.OneSeed, 3, lane=5)._groups[0].env.seeds == seeds[0]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (1, r"lanes 4–6: step failed: ValueError: boom \(vectors.py:\d+\); a vector environment's lanes can't be rest"),
        (2, r"lanes 4–6: observation breaks its declared space: declared float32 \[3, 2\], given float32 \[3, 1\]"),
        (3, r"lanes 4–6: step failed: ValueError: reward, terminated, truncated must be \[3\], given \[\]"),
    ],
)
def test_what_it_does_wrong_ends_the_pool_in_one_line(action, says):
    pool = opened(Counting, 3, lane=4)
    lanes, _ = pool.recv()
    env = pool._groups[0].env
    with pytest.raises(EnvFailure, match=says) as e:
        pool.send(lanes, np.array([0, 0, action]))
    assert len(str(e.value).split("\n")[0]) < 250
    assert env.closed
    with pytest.raises(Closed):
        pool.recv()


def test_a_reset_outside_the_space_is_told():
    def low(num_envs):
        env = Counting(num_envs)
        env.see -= 5
        return env

    with pytest.raises(EnvFailure, match=r"at 'lane 0' -4 at \[1\] is not in \[-1, 99\]; widen low and high"):
        opened(low, 2)


def test_systems_train_and_play_with_them(tmp_path):
    settings = dict(network="mlp", lanes=6, groups=2, replicas=1, unroll=4, steps=600, tensorboard=False)
    run = polyplay.train("a2c", env=vectors.poles, serial=True, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean"] == 9
    assert run.evaluate(5)["episodic_length_mean"] == 9


def test_factories_are_asked_for_lanes_and_for_next_step():
    assert build_vector(vectors.poles, 5).num_envs == 5
    assert autoreset_mode(build_vector(vectors.poles, 2)) is NEXT
    assert autoreset_mode(build_vector(vectors.obedient, 2)) is NEXT
    assert autoreset_mode(build_vector(partial(vectors.poles, vectorization_mode="vector_entry_point"), 2)) is NEXT
    assert build_vector(vectors.three, 5).num_envs == 3
    assert isinstance(build_vector(vectors.misled, 5), faulty.Obedient)
    assert build_vector(vectors.misled, 5).length == 4

    def choosy(num_envs, autoreset_mode=SAME):
        if autoreset_mode is NEXT:
            raise ValueError("not in this mode")
        return vectors.obedient(num_envs, autoreset_mode)

    assert autoreset_mode(build_vector(choosy, 2)) is OFF


UNSEEN = (
    "its own, in the same step: a lane that ends while others continue makes the first step of its next episode unseen"
)
RESETS = [
    (vectors.Batched, UNSEEN),
    (vectors.Listed, UNSEEN),
    (vectors.same, "its own, in the next step"),
    (vectors.recorded, "its own, in the same step: a lane that ends while others continue is reset once more"),
    (vectors.Older, UNSEEN),
    (vectors.ManiSkill, UNSEEN),
    (vectors.IsaacLab, UNSEEN),
    (Counting, "by us, lane by lane"),
    (vectors.poles, "its own, in the next step"),
]


@pytest.mark.parametrize(("make", "says"), RESETS)
def test_a_spec_says_that_it_is_of_a_vector_and_what_is_unseen(make, says):
    envs = Envs(make, 6, 2, inline=True)
    assert (envs.spec.vector, envs.spec.width, envs.spec.describe["resets"]) == (True, 0, says)
    assert episodes(envs).endswith(f"value of the last observation; resets: {says}")


def test_a_spec_is_of_one_lane():
    assert Envs(vectors.poles, 6, inline=True).spec.describe["time limit"] == "9 steps"
    assert Envs(vectors.three, 6, 2, inline=True).spec.width == 3
    assert Envs(Counting, 6, 2).spec == Envs(Counting, 6, 2, inline=True).spec, "in a process of its own"


class Pooled(Counting):
    __module__ = "envpool.made.up"


REFUSED = [
    (vectors.Unknown, {}, "Unknown: Unknown says autoreset_mode 'sometimes', allowed: NEXT_STEP, SAME"),
    (
        vectors.NeverResets,
        {},
        "NeverResets: .* says autoreset_mode .*DISABLED.*, allowed: NEXT_STEP, SAME_STEP$",
    ),
    (Pooled, {}, "Pooled: is an EnvPool, .* give --env envpool:TASK"),
    (vectors.three, {}, "three: makes 3 environments, but a group of the pool has lanes=4: give the function a para"),
    (Counting, {"at_once": 2}, r"Counting: .* steps all its lanes at once, without at_once=2"),
]


@pytest.mark.parametrize(("make", "how", "says"), REFUSED)
def test_others_are_refused_in_one_line(make, how, says):
    with pytest.raises(UserError, match=f"^{says}") as e:
        Envs(make, 4, inline=True, **how).spec  # noqa: B018
    assert "\n" not in str(e.value)


def test_an_id_of_which_there_are_only_vectors(monkeypatch):
    gymnasium.register("OnlyMany-v0", vector_entry_point=Counting)
    monkeypatch.setitem(gymnasium.registry, "OnlyMany-v0", gymnasium.registry["OnlyMany-v0"])
    assert Envs("OnlyMany-v0", 4, inline=True).open(0).recv()[1]["obs"].shape == (4, 2)


def columns(rows, lane):
    """(steps, episode, reward, first, over) of each row of a lane of `Counting`."""
    return [
        (*r["obs"][lane].astype(int).tolist(), int(r["reward"][lane]), bool(r["first"][lane]), bool(r["over"][lane]))
        for r in rows
    ]


LAYOUTS = [vectors.Batched, vectors.Listed, vectors.Older, vectors.ManiSkill]


@pytest.mark.parametrize("make", LAYOUTS)
def test_lanes_that_end_together_are_the_convention_without_a_step_between(make):
    """Each lane ends after 2 steps, for 1 and 2 points."""
    rows = walk(opened(make, 3, spread=1), np.zeros((7, 3), np.int64))
    for lane in range(3):
        want = [(step, episode, step, step == 0, step == 2) for episode in (1, 2, 3) for step in (0, 1, 2)]
        assert columns(rows, lane) == want[:7]


@pytest.mark.parametrize("make", LAYOUTS)
def test_where_others_go_on_a_lane_makes_a_step_unseen_whose_reward_is_not_lost(make):
    rows = walk(opened(make, 2, spread=2), np.zeros((7, 2), np.int64))
    assert columns(rows, 1)[:4] == [(step, 1, step, step == 0, step == 3) for step in range(4)]
    assert columns(rows, 1)[4] == (0, 2, 0, True, False)
    assert columns(rows, 0)[2:5] == [(2, 1, 2, False, True), (0, 2, 0, True, False), (2, 2, 3, False, True)]
    for lane in (0, 1):
        for before, after in pairwise(rows):
            assert after["first"][lane] == before["over"][lane]


class Uneven(vectors.Pair):
    """Ends at random."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, bool(self.np_random.random() < 0.4) or self.n == 3, info


def test_of_gymnasium_s_own_in_a_wrapper_no_step_is_missing_where_others_go_on():
    def make(num_envs: int = 4):
        return RecordEpisodeStatistics(SyncVectorEnv([Uneven] * num_envs, autoreset_mode=SAME, copy=False))

    rows = walk(opened(make, 4), np.zeros((60, 4, 2), np.float32))
    assert 5 < sum(r["over"].sum() for r in rows[:-1]) < 200
    for before, after in pairwise(rows):
        assert (after["first"] == before["over"]).all()
        assert (after["obs"]["n"] == np.where(before["over"], 0, before["obs"]["n"] + 1)).all()


def ended_rows(rows, lane):
    """(its observation, the observation before it, the next row's) of each last row of a lane."""
    seen = [r["obs"]["policy"][lane].tolist() if isinstance(r["obs"], dict) else r["obs"][lane].tolist() for r in rows]
    return [(seen[t], seen[t - 1], seen[t + 1]) for t in range(1, len(rows) - 1) if rows[t]["over"][lane]]


def test_isaac_lab_gives_last_observations_of_all_lanes_where_it_is_asked_for_them():
    pool = opened(vectors.IsaacLab, 3)
    rows = walk(pool, np.zeros((9, 3, 1), np.float32))
    assert pool.remarks == []
    for lane in range(3):
        (last, before, first), *_ = ended_rows(rows, lane)
        assert (last, before, first) == ([2 + lane, 1], [1 + lane, 1], [0, 2])


LOSING = [(vectors.Cut, {}, (6, 3)), (vectors.IsaacLab, {"compute_final_obs": False}, (6, 3, 1))]


@pytest.mark.parametrize(("make", "options", "shape"), LOSING)
def test_a_last_observation_that_is_lost_is_the_one_before_it_never_the_reset_s(make, options, shape):
    pool = opened(make, 3, **options)
    rows = walk(pool, np.zeros(shape, np.int64 if len(shape) == 2 else np.float32))
    for lane in range(3):
        for last, before, first in ended_rows(rows, lane):
            assert last == before
            assert first == [0, last[1] + 1], "of the next episode"
    (said,) = pool.remarks
    assert "gives no info['final_obs'] when an episode ends, so after a truncation learning uses" in said
    assert "states no reset mode" not in said
    assert "(rule final-observation" in said
    assert "\n" not in said


def test_an_episode_that_terminates_needs_no_last_observation():
    pool = opened(vectors.Same, 3)
    walk(pool, np.zeros((6, 3), np.int64))
    assert pool.remarks == []


def test_one_that_does_not_say_how_it_resets_and_loses_last_observations_is_told_so():
    """It may well be one of NEXT_STEP, whose rows then are wrong."""
    pool = opened(vectors.Silent, 3)
    walk(pool, np.zeros((6, 3), np.int64))
    (said,) = pool.remarks
    assert "it states no reset mode, so SAME_STEP is assumed: set its metadata['autoreset_mode']" in said


@pytest.mark.parametrize("said", [SAME, "SameStep", "same_step", "SAME_STEP", None])
def test_a_mode_is_an_enum_or_a_text_and_same_step_where_there_is_none(said):
    env = Counting(2)
    env.metadata = {} if said is None else {"autoreset_mode": said}
    assert autoreset_mode(env) is SAME


def test_what_ale_py_writes_into_the_metadata_of_all_vector_environments_is_not_theirs(monkeypatch):
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", NEXT)
    assert autoreset_mode(vectors.ManiSkill(2)) is SAME


MODES = [(kind, mode) for kind in ("sync", "async") for mode in (NEXT, SAME, OFF)]


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_gymnasium_s_own_are_the_convention_in_every_mode(kind, mode):
    """CartPoles end at different times. DISABLED draws more resets; the others have the same rows to the bit."""

    def make(num_envs: int = 4):
        return gymnasium.make_vec("CartPole-v1", num_envs, kind, {"autoreset_mode": mode}, max_episode_steps=30)

    rows = walk(opened(make, 4), POLES_LONG)
    for before, after in pairwise(rows):
        assert (after["first"] == before["over"]).all()
        assert (after["reward"][after["first"]] == 0).all()
        assert (np.abs(after["obs"][after["first"]]) <= 0.05).all(), "a reset's"
    assert sum(r["over"].sum() for r in rows) > 8
    if mode is not OFF:
        single = walk(Envs("CartPole-v1", 4, inline=True, options={"max_episode_steps": 30}).open(7), POLES_LONG)
        assert all(same(x, y) for x, y in zip(rows, single, strict=True))


POLES_LONG = np.random.default_rng(3).integers(0, 2, (90, 4))


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_ale_py_s_own_is_the_convention_in_every_mode(mode):
    """Games of 12 steps at most. Its batch of last observations has no mask; every game begins with a stack of frames
    that is mostly zeros.
    """
    from ale_py.vector_env import AtariVectorEnv

    def make(num_envs: int = 2):
        return AtariVectorEnv("pong", num_envs, max_num_frames_per_episode=48, noop_max=3, autoreset_mode=mode)

    rows = walk(opened(make, 2), np.zeros((30, 2), np.int64))
    ends = [(t, lane) for t, r in enumerate(rows[:-1]) for lane in np.flatnonzero(r["over"])]
    assert len(ends) >= 4
    for before, after in pairwise(rows):
        assert (after["first"] == before["over"]).all()
    for t, lane in ends:
        assert rows[t]["truncated"][lane]
        assert not rows[t + 1]["obs"][lane, 0].any(), "a reset's oldest frame is zero"
        assert rows[t]["obs"][lane, 0].any(), "a last observation's is not"


@pytest.mark.long
@pytest.mark.parametrize("system", ["a2c", "ppo"])
def test_same_step_and_next_step_give_the_same_losses_to_the_bit(system, tmp_path):
    def losses(mode):
        def make(num_envs: int = 4):
            return gymnasium.make_vec("CartPole-v1", num_envs, "sync", {"autoreset_mode": mode}, max_episode_steps=30)

        settings = dict(network="mlp", lanes=4, replicas=1, unroll=16, steps=2000, serial=True, trace=True)
        run = polyplay.train(system, env=make, run=str(tmp_path / mode.value), tensorboard=False, **settings)
        assert run.exit_code == 0
        return (tmp_path / mode.value / "updates.jsonl").read_text()

    found = losses(AutoresetMode.SAME_STEP)
    assert len(found.splitlines()) > 20
    assert found == losses(AutoresetMode.NEXT_STEP)


HELD = {  # what the page says of each library, and the tests of this file that hold it
    "Gymnasium, `SyncVectorEnv` and `AsyncVectorEnv`": "gymnasium_s_own",
    "Gymnasium before 1.0": "lanes_that_end_together",  # Older
    "ale-py, `AtariVectorEnv`": "ale_py_s_own",
    "ManiSkill": "where_others_go_on",
    "Isaac Lab": "isaac_lab_gives",
    "Brax, in a `VectorEnv`": "a_last_observation_that_is_lost",  # Cut
}


def test_every_library_of_the_page_has_a_test():
    page = Path(__file__).parents[2] / "docs" / "guides" / "vector_environments.md"
    table = page.read_text().partition("## Libraries")[2].partition("\n## ")[0]
    named = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert named[1:] == [*HELD, "EnvPool"], "EnvPool: tests/envs/test_envpool.py"
    for words in HELD.values():
        assert any(name.startswith("test_") and words in name for name in globals())
