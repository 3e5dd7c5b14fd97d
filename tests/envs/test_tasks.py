"""Several environments in one pool: rows against those of each by itself, what can't be joined, state, faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs, tasks
from polyplay.envs.atari import actions_of, atari57, atari_preset
from polyplay.envs.pool import lane_seeds, spec_from_json, spec_to_json, task_order, task_words
from polyplay.envs.spaces import Discrete


class Picture(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((8, 8, 3), np.uint8), {}


FULL: dict[str, Any] = {**atari_preset("impala"), "full_actions": True}
BOTH = "CartPole-v1,Acrobot-v1"


class Frail(gymnasium.Env):
    """Raises in its third step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("it broke")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("given", "words", "order"),
    [
        ("CartPole-v1", [], ()),
        ("envpool:Pong-v5", [], ()),
        ("a,b", [("a", 1), ("b", 1)], (0, 1)),
        (" a , b:2 ,", [("a", 1), ("b", 2)], (1, 0, 1)),
        ("module:make,b:3", [("module:make", 1), ("b", 3)], (1, 0, 1, 1)),
        ("a:0,b,c", [("b", 1), ("c", 1)], (0, 1)),
        (lambda: None, [], ()),
        ("game:spiel:mnk(m=4,n=5,k=3)", [], ()),
        ("game:spiel:mnk(m=4,n=5):2,b", [("game:spiel:mnk(m=4,n=5)", 2), ("b", 1)], (0, 1, 0)),
    ],
)
def test_a_list_names_tasks_and_weights(given, words, order):
    assert task_words(given) == words
    assert task_order(words) == order


def test_the_57_games_of_the_literature_by_one_name():
    words = task_words("@atari57")
    assert [name for name, _ in words] == atari57()
    assert len(words) == 57
    assert ("ALE/MsPacman-v5", 1) in words
    assert task_words("@atari57,ALE/Adventure-v5")[-1] == ("ALE/Adventure-v5", 1)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a,b,a", "--env: a given twice; write a:2"),
        ("@nowhere", "--env: @nowhere is not a list of tasks; allowed: @atari57, @FILE, @module:function"),
        ("a:0,b:0", "--env: a:0,b:0 given, whose weights are 0"),
        ("CartPole-v1,Nowhere-v0", "--env: unknown environment 'Nowhere-v0'"),
        (
            "CartPole-v1,Pendulum-v1",
            "Pendulum-v1 given beside CartPole-v1: actions are .* and 2 discrete; allowed: the",
        ),
        ("CartPole-v1,toy:rps", "toy:rps given among several tasks, but it has 2 players; allowed: one"),
        (
            f"CartPole-v1,{__name__}:Picture",
            "uint8 .*; allowed among several tasks: the same .images",
        ),
        ("FrozenLake-v1,FrozenLake8x8-v1", "FrozenLake-v1 shows numbers of 16 values, FrozenLake8x8-v1 of 64; allowed"),
        ("ALE/Pong-v5,CartPole-v1", "a step has 1 and 4 frames"),
        ("ALE/Pong-v5,ALE/Nowhere-v5", "unknown Atari game 'ALE/Nowhere-v5'"),
    ],
)
def test_what_cannot_be_joined_is_one_line(name, error):
    with pytest.raises(UserError, match=error) as refused:
        Envs(name, 2, options=FULL if name.startswith("ALE/Pong-v5,ALE") else {}).spec  # noqa: B018
    assert "\n" not in str(refused.value)


def test_lanes_that_come_as_they_are_ready_are_refused():
    with pytest.raises(UserError, match="several tasks need lanes that step in turn"):
        Envs(BOTH, 2, at_once=1).spec  # noqa: B018


def test_vectors_are_padded_and_actions_masked():
    spec = Envs(BOTH, 4).spec
    assert (spec.obs, spec.action, spec.mask) == (Field((6,), "float32"), Discrete(3), Field((3,), "bool"))
    assert (spec.tasks, spec.order) == (("CartPole-v1", "Acrobot-v1"), (0, 1))
    assert [spec.task_of(lane) for lane in (0, 1, 7)] == ["CartPole-v1", "Acrobot-v1", "Acrobot-v1"]
    again = spec_from_json(spec_to_json(spec), "spaces.json")
    assert (again.tasks, again.order, again.obs, again.mask) == (spec.tasks, spec.order, spec.obs, spec.mask)


def played(envs: Envs, lane: int, turns: int, seed: int = 3) -> list[Any]:
    """Copies of all rows, in turn; actions by lane and turn."""
    found, pool = [], envs.open(seed, lane)
    try:
        for turn in range(turns * envs.groups):
            lanes, rows = pool.recv()
            numbers = np.arange(envs.lanes)[lanes]
            found.append((numbers, tree.map(np.copy, rows)))
            pool.send(lanes, (numbers + turn) % 2)
    finally:
        pool.close()
    return found


@pytest.mark.parametrize(("groups", "lane"), [(1, 0), (2, 0), (2, 6), (3, 3)])
def test_rows_are_those_of_each_task_by_itself(groups: int, lane: int):
    """Lane l of the run plays order[l mod 3]; lanes of one pool have their seeds in order."""
    envs = Envs("CartPole-v1,Acrobot-v1:2", 6, groups)
    order = (1, 0, 1)
    begun = lane
    seen = {int(i): [] for i in range(6)}
    for numbers, rows in played(envs, lane, 30):
        for k, i in enumerate(numbers.tolist()):
            seen[i].append(tree.at(rows, k))
    for group in np.split(np.arange(6), groups):
        task = np.array([order[(lane + i) % 3] for i in group])
        for k in np.unique(task):
            own = group[task == k]
            alone = Envs(("CartPole-v1", "Acrobot-v1")[k], len(own))
            pool = alone.open(3, begun)
            begun += len(own)
            for turn in range(30):
                _, rows = pool.recv()
                for j, i in enumerate(own.tolist()):
                    row = seen[i][turn]
                    size = rows["obs"].shape[1]
                    np.testing.assert_array_equal(row["obs"][:size], rows["obs"][j])
                    assert not row["obs"][size:].any()
                    assert (row["task"], row["reward"], row["first"]) == (k, rows["reward"][j], rows["first"][j])
                    assert row["mask"].tolist() == [True, True, bool(k)]
                pool.send(slice(0, len(own)), (own + turn * groups + group[0] // (6 // groups)) % 2)
            pool.close()


@pytest.mark.parametrize(("groups", "alone"), [(2, False), (1, True)])
@pytest.mark.parametrize("life_loss", ["terminate", "ignore"])
def test_rows_of_games_that_are_made_at_once_are_those_of_their_own_pools(life_loss: str, groups: int, alone: bool):
    """Games end by lives, by points and by the limit of frames, two lanes each in two groups, or four in one."""
    options = FULL | {"life_loss": life_loss, "max_frames": 400}
    envs = Envs("ALE/Breakout-v5,ALE/Skiing-v5", 8, groups, options=options, alone=alone)
    draw, pools = np.random.default_rng(0), [envs.open(3, 0) for _ in range(2)]
    pools[1]._native = []
    ends = set[str]()
    for _ in range(300):
        (lanes, ours), (_, theirs) = (pool.recv() for pool in pools)
        for key, found in tree.leaves(ours):
            np.testing.assert_array_equal(found, dict(tree.leaves(theirs))[key])
        ends |= {key for key in ("terminated", "truncated", "over") if ours[key].any()}
        action = (draw.random(ours["mask"].shape) * ours["mask"]).argmax(1)
        for pool in pools:
            pool.send(lanes, action)
    assert ends >= {"truncated", "over"} | ({"terminated"} if life_loss == "terminate" else set())
    for pool in pools:
        pool.recv()
        with pytest.raises(ValueError, match="actions of ALE/Skiing-v5 must be allowed by its mask, got"):
            pool.send(slice(0, 8 // groups), np.full(8 // groups, 17))
        pool.close()


def test_each_lane_of_a_run_has_a_seed_of_its_own():
    seeds = lane_seeds(0, 0, 12)
    assert len({*seeds.tolist()}) == 12
    first = played(Envs(BOTH, 6), 0, 1)[0][1]["obs"]
    second = played(Envs(BOTH, 6), 6, 1)[0][1]["obs"]
    starts = np.concatenate([first[::2], second[::2]])
    assert len(np.unique(starts[:, 0])) == 6


def test_only_one_task_is_played_by_all_lanes():
    envs = Envs(BOTH, 3).share(only=1)
    ((_, rows),) = played(envs, 1, 1)
    assert rows["task"].tolist() == [1, 1, 1]
    assert rows["mask"].all()


def test_all_18_actions_but_in_skiing_and_fire_only_where_a_game_has_it():
    spec = Envs("ALE/Pong-v5,ALE/Skiing-v5,ALE/Freeway-v5", 3, options=FULL).spec
    assert spec.action == Discrete(18)
    assert spec.mask == Field((18,), "bool")
    assert ["with FIRE first" in part.describe["no-ops"] for part in spec.parts] == [True, False, False]
    pool = Envs("ALE/Pong-v5,ALE/Skiing-v5,ALE/Freeway-v5", 3, options=FULL).open(0)
    lanes, rows = pool.recv()
    every, skiing = actions_of("pong", True), actions_of("skiing", True)
    shown = [tuple(name for name, here in zip(every, mask, strict=True) if here) for mask in rows["mask"]]
    assert shown == [every, skiing, every], "an action is the same button in each game"
    assert len(np.unique(rows["obs"][:, -1].reshape(3, -1), axis=0)) == 3
    pool._most_stepping = 3  # whatever the number of cores
    sent: dict[str, list[int]] = {}
    for part in pool._of_group[0]:  # type: ignore[attr-defined]
        sent[part.title] = []
        part.play = lambda group, action, of=sent[part.title]: of.extend(action.tolist())
    pool.send(lanes, np.full(3, every.index("DOWNLEFT")))
    assert sent == {"ALE/Pong-v5": [9], "ALE/Skiing-v5": [skiing.index("DOWNLEFT")], "ALE/Freeway-v5": [9]}
    pool.close()
    pool = Envs("ALE/Pong-v5,ALE/Skiing-v5,ALE/Freeway-v5", 3, options=FULL).open(0)
    lanes, _ = pool.recv()
    with pytest.raises(ValueError, match=r"actions of ALE.Skiing-v5 must be allowed by its mask, got .1."):
        pool.send(lanes, np.full(3, every.index("FIRE")))
    pool.close()


def test_pools_that_step_one_after_the_other_give_the_same_rows():
    names = ["toy:catch", *(f"toy:catch+rows={n}" for n in (6, 7, 8))]
    envs = Envs(",".join(names), 4, workers=1)
    few, every, other = (envs.open(seed) for seed in (0, 0, 1))
    assert few._most_stepping == 2
    every._most_stepping = 4
    for turn in range(31):
        (lanes, rows), (_, theirs) = few.recv(), every.recv()
        tree.map(np.testing.assert_array_equal, rows, theirs)
        for pool in (few, every):
            pool.send(lanes, np.full(4, turn % 3))
    assert [len(pool._actions[0]) for pool in (few, every)] == [2, 0]
    other.load(few.state())
    assert not few._actions[0], "a state is of pools that have stepped"
    tree.map(np.testing.assert_array_equal, other.recv()[1], every.recv()[1])


@pytest.mark.parametrize("name", [BOTH, "toy:catch,toy:catch+rows=6"])
def test_a_pool_goes_on_from_its_state(name: str):
    envs = Envs(name, 4, 2, inline=True)
    pool, other = envs.open(0), envs.open(1)

    def turns(of: Any, n: int) -> list[Any]:
        found = []
        for _ in range(n):
            lanes, rows = of.recv()
            found.append(tree.map(np.copy, rows))
            of.send(lanes, np.zeros(2, np.int64))
        return found

    turns(pool, 25)
    other.load(pool.state())
    for mine, theirs in zip(turns(pool, 40), turns(other, 40), strict=True):
        tree.map(np.testing.assert_array_equal, mine, theirs)


def test_atari_games_on_the_native_path_say_why_they_have_no_state():
    pool = Envs("ALE/Pong-v5,ALE/Freeway-v5", 2, options=FULL).open(0)
    assert pool.state() is None
    assert pool.unsaved == "only the plain pipeline saves games"
    pool.close()
    pool.close()


def test_a_task_that_raises_is_begun_anew_and_named():
    pool = Envs(f"{__name__}:Frail,{__name__}:Calm", 2, max_restarts=3).open(0)
    for _ in range(5):
        lanes, _rows = pool.recv()
        pool.send(lanes, np.zeros(2, np.int64))
    assert pool.restarts == 1
    assert f"{__name__}:Frail" in pool.faults[0]
    pool.close()


def test_a_task_that_raises_too_often_ends_the_pool():
    pool = Envs(f"{__name__}:Frail,{__name__}:Calm", 2, max_restarts=2).open(0)

    def turns() -> None:
        for _ in range(12):
            lanes, _ = pool.recv()
            pool.send(lanes, np.zeros(2, np.int64))

    with pytest.raises(EnvFailure, match=r"environments failed 3 times .*Frail.* it broke"):
        turns()
    pool.close()


class Calm(Frail):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_returns_of_tasks_are_normalized_where_all_are_games_of_the_literature():
    games = tasks.TaskReturns(("ALE/Pong-v5", "ALE/Freeway-v5"), fewest=2)
    games.returns["ALE/Pong-v5"].extend([14.6, 14.6])
    assert games.score() is None
    assert "human_normalized" not in games.row()
    games.returns["ALE/Freeway-v5"].extend([0.0, 0.0])
    assert games.score() == pytest.approx(50.0)
    median, low, high = games.row()["human_normalized"]["median"]
    assert (median, low, high) == pytest.approx((50.0, 50.0, 50.0))
    plain = tasks.TaskReturns(("CartPole-v1", "ALE/Pong-v5"), fewest=1)
    plain.returns["CartPole-v1"].append(10.0)
    plain.returns["ALE/Pong-v5"].append(-20.0)
    assert (plain.score(), plain.ends) == (-5.0, {})


def test_returns_of_an_evaluation_are_of_all_its_games():
    found = tasks.TaskReturns(("a", "b"), fewest=1, window=None)
    found.add("a", *[1.0] * 150, *[0.0] * 150)
    found.add("b", 3.0)
    assert found.row() == {"task_return_means": {"a": 0.5, "b": 3.0}, "task_episodes": {"a": 300, "b": 1}}
    assert found.score() == 1.75


def test_another_number_of_lanes_keeps_what_lanes_play():
    envs = Envs("CartPole-v1,Acrobot-v1,MountainCar-v0", 2)
    for lane in range(5):
        ((_, rows),) = played(replace(envs, lanes=2), lane, 1)
        assert rows["task"].tolist() == [lane % 3, (lane + 1) % 3]


@pytest.mark.parametrize("how", ["onehot", "embedding"])
def test_observations_may_tell_the_task(how: str):
    envs = Envs(BOTH, 3, task_input=how)
    assert envs.spec.obs == {"seen": Field((6,), "float32"), "task": Field((), "int64")}
    assert (envs.spec.classes, envs.spec.task_input) == ({"task": 2}, how)
    ((_, rows),) = played(envs, 0, 1)
    assert rows["obs"]["task"].tolist() == rows["task"].tolist() == [0, 1, 0]
    plain = played(Envs(BOTH, 3), 0, 1)[0][1]
    np.testing.assert_array_equal(rows["obs"]["seen"], plain["obs"])
    again = spec_from_json(spec_to_json(envs.spec), "spaces.json")
    assert (again.obs, again.classes, again.task_input) == (envs.spec.obs, envs.spec.classes, how)


def test_one_environment_has_no_task_to_tell():
    with pytest.raises(UserError, match="--task-input: onehot given, but --env CartPole-v1 is one environment"):
        Envs("CartPole-v1", 1, task_input="onehot").spec  # noqa: B018
