from __future__ import annotations

import json
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs, masks, spaces
from polyplay.envs import pool as space_files
from polyplay.envs.spaces import Box, Conditional, Discrete, MultiDiscrete, SpaceViolation, conditional_actions

BOX = Box((1,), np.float32([-1]), np.float32([1]))
PARTS = {"unit": Discrete(5), "verb": Discrete(4), "way": MultiDiscrete((2,), (2, 3))}
USES = {"unit": (2, 3), "way": (1, 3)}
ACTION = Conditional(PARTS, USES)


def test_the_first_part_is_the_one_that_uses_leaves_out():
    made = conditional_actions(PARTS, {"way": [3, 1, 3], "unit": np.array([2, 3])}, "x: uses")
    assert made == ACTION
    assert (made.first, list(made), made.uses) == ("verb", ["verb", "unit", "way"], USES)
    assert made.used("way").tolist() == [False, True, False, True]
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != PARTS
    assert dict(made) == PARTS
    assert made != Conditional(PARTS, {**USES, "unit": (2,)})
    assert conditional_actions(PARTS, None, "x") is PARTS
    said = "verb: 4 discrete, unit: 5 discrete (verb 2, 3), way: [2] discrete of 2, 3 (verb 1, 3)"
    assert spaces.describe_actions(made) == said


@pytest.mark.parametrize(
    ("action", "uses", "says"),
    [
        (PARTS, {**USES, "unit": ()}, "unit is used by no value; allowed: some of 0…3, values of verb, or leave"),
        (PARTS, {"unit": (2,)}, "leaves out verb, way; it must leave out one part"),
        (PARTS, {"unit": (2,), "way": (1,), "verb": (0,)}, "leaves out none"),
        ({"verb": Discrete(2)}, {}, "leaves out verb; it must leave out one part, which decides on all"),
        (PARTS, {**USES, "Unit": (1,)}, "'Unit' is no part of the actions; allowed: unit, verb, way"),
        (PARTS, {**USES, "unit": (2, 4)}, "unit is used by 4; allowed: some of 0…3, values of verb"),
        (PARTS, {**USES, "unit": (-1,)}, "unit is used by -1"),
        (PARTS, {**USES, "unit": (1.5,)}, "unit is used by 1.5"),
        (PARTS, {**USES, "unit": 2}, "unit is used by 2; allowed"),
        (PARTS, {**USES, "unit": "23"}, "unit is used by '23'"),
        (PARTS, {"unit": (0,), "verb": (1,)}, r"leaves out, way, is \[2\] discrete of 2, 3; allowed: a Discrete"),
        ({"a": BOX, "b": Discrete(2)}, {"b": (0,)}, "leaves out, a, is .* real.*; allowed: a Discrete"),
        (PARTS, [("unit", 2)], "allowed: a dict, by part the values"),
        (Discrete(3), {}, "the actions are 3 discrete; allowed with a Dict"),
        ({"a": Discrete(2), "b": {"c": Discrete(2)}}, {"b": (0,)}, "parts that are no Dict or Tuple"),
    ],
)
def test_what_cannot_be_meant_is_one_line(action, uses, says):
    with pytest.raises(UserError, match=f"^x: uses.*{says}") as e:
        conditional_actions(action, uses, "x: uses")
    assert "\n" not in str(e.value)


def test_random_actions_are_legal_for_their_verb_and_0_where_unused():
    rng = np.random.default_rng(0)
    legal = {"verb": np.ones((4000, 4), bool), "unit": rng.random((4000, 4, 5)) < 0.4, "way": np.ones((4000, 5), bool)}
    legal["unit"][:, :2] = False
    legal["unit"][:, 2:, 4] = True
    made = spaces.action_sampler(ACTION, 0)(4000, legal)
    spaces.check_action(ACTION, made, 4000)
    verb, unit = made["verb"], made["unit"]
    takes = verb >= 2
    assert legal["unit"][np.arange(4000), verb, unit][takes].all()
    assert (unit[~takes] == 0).all()
    assert (made["way"][verb % 2 == 0] == 0).all()
    assert np.bincount(verb).min() > 800
    assert len(np.unique(made["way"][verb % 2 == 1], axis=0)) == 6
    aims = Conditional({"verb": Discrete(2), "aim": BOX}, {"aim": (1,)})
    made = spaces.action_sampler(aims, 0)(100)
    assert ((made["aim"][:, 0] == 0) == (made["verb"] == 0)).all()


# ------------------------------------------------------------------------------------------- masks

EACH = np.array([[0] * 5, [0] * 5, [1, 0, 0, 0, 0], [0, 0, 0, 1, 1]])


def test_masks_are_for_all_or_for_each_value_of_the_first_part():
    found = masks.mask_spec(ACTION, {"verb": [1] * 4, "unit": EACH, "way": ([1, 1], [1, 0, 0])}, "x")
    assert found == {"verb": Field((4,), "bool"), "unit": Field((4, 5), "bool"), "way": Field((5,), "bool")}
    assert masks.mask_spec(ACTION, {"unit": EACH.tolist()}, "x") == {"unit": Field((4, 5), "bool")}
    assert masks.mask_spec(ACTION, {"way": np.ones((4, 5))}, "x") == {"way": Field((4, 5), "bool")}
    for wrong in (np.ones((3, 5)), np.ones((5, 4)), np.ones(4)):
        with pytest.raises(UserError, match=r"x action_mask at 'unit' is no mask of the actions.*or \[4, 5\]"):
            masks.mask_spec(ACTION, {"unit": wrong}, "x")
    with pytest.raises(UserError, match="at 'verb'"):
        masks.mask_spec(ACTION, {"verb": np.ones((4, 4))}, "x")


def written(given, last=False, spec=None):
    rows = tree.zeros(spec or masks.mask_spec(ACTION, given, "x"), (1,))
    masks.mask_writer(ACTION, rows, 0, inside=False)({}, {masks.KEY: given}, last)
    return tree.map(lambda x: x[0].astype(int).tolist(), rows)


def test_a_used_part_of_a_legal_value_needs_something_legal():
    assert written({"verb": [1, 0, 1, 1], "unit": EACH}) == {"verb": [1, 0, 1, 1], "unit": EACH.tolist()}
    assert written({"verb": [1, 1, 0, 0], "unit": [0] * 5})["unit"] == [0] * 5, "nobody uses it"
    assert written({"verb": [1, 0, 1, 0], "way": [0] * 5})["way"] == [0] * 5
    nothing = np.zeros((4, 5), int)
    lacks = EACH * np.array([1, 1, 1, 0])[:, None]
    for given, says in (
        ({"verb": [1, 0, 0, 1], "unit": lacks}, "at 'unit': nothing of it is legal for verb 3, which is legal"),
        ({"verb": [1, 0, 1, 1], "unit": nothing}, "'unit': nothing of it is legal for verb 2"),
        ({"verb": [1, 1, 0, 0], "way": [1, 0, 0, 0, 0]}, "'way': nothing of it is legal for verb 1"),
        ({"unit": nothing}, "'unit': nothing of it is legal for verb 2"),
        ({"verb": [0, 0, 0, 0], "unit": EACH}, "at 'verb': no action is legal"),
    ):
        with pytest.raises(SpaceViolation, match=says) as e:
            written(given)
        assert "\n" not in str(e.value)
    assert written({"verb": [0] * 4, "unit": nothing}, last=True) == {"verb": [1] * 4, "unit": [[1] * 5] * 4}


def test_a_mask_keeps_its_form_but_one_for_all_may_stand_for_each():
    spec = {"unit": Field((4, 5), "bool")}
    assert written({"unit": [0, 1, 0, 0, 0]}, spec=spec) == {"unit": [[0, 1, 0, 0, 0]] * 4}
    with pytest.raises(SpaceViolation, match=r"at 'unit': declared \[5\] at first, given \[4, 5\]"):
        written({"unit": EACH}, spec={"unit": Field((5,), "bool")})


# --------------------------------------------------------------------------------------- Gymnasium


class Order(gymnasium.Env):
    """Right: verb 1 and way 2; verb 0 takes nothing. What arrives is kept."""

    observation_space = gym.Box(-1, 1, (1,))
    action_space = gym.Dict({"verb": gym.Discrete(3, start=5), "way": gym.Discrete(4)})
    action_uses = {"way": (1, 2)}  # noqa: RUF012
    breaks = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return self.see()

    def see(self):
        each = np.zeros((3, 4), bool)
        each[1, 2] = True
        each[2, 3] = not (self.breaks and self.taken)
        return np.zeros(1, np.float32), {"action_mask": {"verb": [1, 1, 1], "way": each}}

    def step(self, action):
        self.taken.append((int(action["verb"]), int(action["way"])))
        assert self.taken[-1] in {(5, 0), (6, 2), (7, 3)}
        obs, info = self.see()
        return obs, float(self.taken[-1] == (6, 2)), len(self.taken) == 4, False, info


class Broken(Order):
    breaks = True


class Wrong(Order):
    action_uses = {"way": (5,)}  # noqa: RUF012


class Plain(gymnasium.Wrapper):
    """A wrapper that makes one number of the action and leaves out masks, and says so."""

    action_space = gym.Discrete(3)
    action_uses = None

    def reset(self, **given):
        return self.env.reset(**given)[0], {}


def test_a_gymnasium_environment_declares_it_by_an_attribute():
    wrapped = lambda: gymnasium.wrappers.TimeLimit(Order(), 50)  # noqa: E731
    envs = Envs(wrapped, 3, inline=True)
    assert envs.spec.action == Conditional({"verb": Discrete(3), "way": Discrete(4)}, {"way": (1, 2)})
    assert envs.spec.mask == {"verb": Field((3,), "bool"), "way": Field((3, 4), "bool")}
    assert envs.spec.describe["actions"] == "verb: 3 discrete, way: 4 discrete (verb 1, 2)"
    again = space_files.spec_from_json(json.loads(json.dumps(space_files.spec_to_json(envs.spec))), "it")
    assert (again.action, again.mask) == (envs.spec.action, envs.spec.mask)
    pool, draw = envs.open(0), spaces.action_sampler(envs.spec.action, 0)
    rewards = []
    for _ in range(20):
        lanes, row = pool.recv()
        rewards.append(row["reward"].copy())
        pool.send(lanes, draw(3, row["mask"]))  # the environment asserts that they fit
    pool.close()
    assert 0 < np.mean(rewards) < 1


def test_what_a_gymnasium_environment_does_wrong_is_one_line():
    with pytest.raises(UserError, match=r"Wrong: action_uses: way is used by 5; allowed: some of 0…2"):
        Envs(Wrong, 1, inline=True).open(0)
    assert Envs(lambda: Plain(Order()), 1, inline=True).spec.action == Discrete(3)
    pool = Envs(Broken, 1, inline=True).open(0)
    lanes, _ = pool.recv()
    wait = {"verb": np.zeros(1, np.int64), "way": np.zeros(1, np.int64)}
    with pytest.raises(EnvFailure, match=r"action_mask at 'way': nothing of it is legal for verb 2") as e:
        pool.send(lanes, wait)
    assert "(rule mask;" in str(e.value)
    pool.close()
