from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs, masks, spaces
from polyplay.envs.lane import observation_writer
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete, SpaceViolation, action_sampler
from polyplay.nets import factory
from tests.envs import drawn
from tests.envs.picky import Picky

BOX = Box((1,), np.float32([-1]), np.float32([1]))
MANY = MultiDiscrete((2,), (2, 3))


def legal(action, given, last=False):
    return masks.read_mask(action, given, last).astype(int).tolist()


def test_forms_of_a_mask():
    assert legal(Discrete(3), np.int8([0, 1, 1])) == [0, 1, 1]
    assert legal(Discrete(3), [True, False, False]) == [1, 0, 0]
    assert legal(Discrete(2), np.float32([0, 1])) == [0, 1]
    for form in ((np.int8([0, 1]), np.int8([1, 1, 0])), [[0, 1], [1, 1, 0]], np.array([0, 1, 1, 1, 0])):
        assert legal(MANY, form) == [0, 1, 1, 1, 0]
    nested = MultiDiscrete((2, 1), (2, 2))
    for form in (((np.int8([1, 0]),), (np.int8([1, 1]),)), np.array([[[1, 0]], [[1, 1]]]), [1, 0, 1, 1]):
        assert legal(nested, form) == [1, 0, 1, 1]
    assert legal(MultiBinary((3,)), np.int8([0, 1, 2])) == [1, 0, 0, 1, 1, 1]
    assert legal(MultiBinary((2,)), [True, False, True, True]) == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("action", "given", "says"),
    [
        (Discrete(3), [0, 0, 0], "no action is legal"),
        (MANY, [1, 0, 0, 0, 0], "no action is legal for number 1"),
        (Discrete(3), [1, 1], r"declared \[3\], given \[2\]"),
        (Discrete(3), [1, 2, 0], "of 0 and 1, given .1 2 0."),
        (MANY, (np.ones(2),), r"declared a tuple of arrays, or \[5\], given \[1, 2\]"),
        (MANY, np.ones((2, 3)), r"tuple of arrays, or \[5\]"),
        (Discrete(2), [[1], [1, 0]], "list that is not an array"),
        (MultiBinary((2,)), [0, 3], "of 0, 1 and 2"),
        (MultiBinary((2,)), [0, 0, 1, 1], "for number 0"),
        (BOX, [1], "a Box has no mask"),
    ],
)
def test_what_is_no_mask_says_so_on_one_line(action, given, says):
    with pytest.raises(SpaceViolation, match=says) as e:
        masks.read_mask(action, given)
    assert "\n" not in str(e.value)


def test_masks_of_composite_actions():
    action = {"a": Discrete(2), "b": {"0": BOX, "1": MANY}}
    found = {"a": Field((2,), "bool"), "b": {"1": Field((5,), "bool")}}
    assert masks.mask_spec(action, {"a": [1, 1], "b": (None, [1, 0, 1, 0, 0])}, "x") == found
    assert masks.mask_spec(action, {"b": {"1": [1] * 5}}, "x") == {"b": found["b"]}
    assert masks.mask_spec(action, {"a": None, "b": None}, "x") is None
    for wrong, says in (
        ({"A": [1, 1]}, r"declared parts a, b, given keys \['A'\]"),
        ([1, 1], "given list"),
        ({"b": ([1], None)}, r"x action_mask at 'b/0' does not fit the actions, .*a Box has no mask"),
        ({"b": (None,)}, "declared one part for each of 0, 1"),
    ):
        with pytest.raises(UserError, match=says):
            masks.mask_spec(action, wrong, "x")


def test_the_mask_is_no_observation():
    space = gym.Dict({"x": gym.Box(0, 1, (2,)), "action_mask": gym.MultiBinary(3)})
    assert masks.without_mask(space) == gym.Dict({"x": gym.Box(0, 1, (2,))})
    assert masks.without_mask(space["x"]) is space["x"]
    assert masks.declared_mask(Discrete(3), space, "x") == Field((3,), "bool")
    assert masks.declared_mask(Discrete(3), space["x"], "x") is None
    with pytest.raises(UserError, match=r"observation's action_mask does not fit the actions, 4 discrete: declared"):
        masks.declared_mask(Discrete(4), space, "x")
    with pytest.raises(UserError, match="does not fit the actions"):
        masks.declared_mask(Discrete(4), gym.Dict({"action_mask": gym.Text(3)}), "x")


# ------------------------------------------------------------------- as Gymnasium's own sample(mask)


def gymnasiums(space, rng):
    """A mask as Gymnasium takes it."""

    def some(n):
        return rng.permutation(np.int8([1] + [0] * int(rng.integers(n)) + [1] * n)[:n])

    if isinstance(space, gym.Box):
        return None
    if isinstance(space, gym.Discrete):
        return some(space.n)
    if isinstance(space, gym.MultiBinary):
        return rng.integers(0, 3, space.shape).astype(np.int8)
    if isinstance(space, gym.MultiDiscrete):
        nest = lambda n: some(n) if np.ndim(n) == 0 else tuple(nest(m) for m in n)  # noqa: E731
        return nest(space.nvec)
    if isinstance(space, gym.Tuple):
        return tuple(gymnasiums(s, rng) for s in space.spaces)
    return {k: gymnasiums(s, rng) for k, s in space.spaces.items()}


def taken(leaf, value):
    """bool [number of all values]: those that an action counted from 0 takes."""
    flat = np.reshape(value, -1)
    return np.concatenate([flat[i] == np.arange(n) for i, n in enumerate(leaf.classes)])


@pytest.mark.parametrize("seed", range(30))
def test_what_gymnasium_samples_with_a_mask_is_legal_by_ours(seed):
    rng = np.random.default_rng(seed)
    space = drawn.draw(rng, acting=True)
    action, given = spaces.action(space, "x"), gymnasiums(space, rng)
    found = masks.mask_spec(action, given, "x")
    ours = tree.zeros(found, (2,)) if found is not None else None
    masks.mask_writer(action, ours, 1, inside=False)({}, {"action_mask": given}, False)
    into = tree.zeros(spaces.observation(space, "x"), (1,))
    space.seed(seed)
    for _ in range(5):
        observation_writer(space, into, 0)(space.sample(mask=given))
        for path, mask in dict(tree.leaves(ours) if ours is not None else ()).items():
            leaf = dict(tree.leaves(action))[path]
            assert mask[1][taken(leaf, dict(tree.leaves(into))[path][0])].all()
            assert not mask[0].any()


# ------------------------------------------------------------------------------------------- in pools

MASK = {"pick": Field((4,), "bool"), "rest": {"0": Field((5,), "bool"), "1": Field((4,), "bool")}}


@pytest.mark.parametrize(("source", "inline"), [("info", False), ("observation", True)])
def test_policies_obey_masks_and_environments_get_what_their_space_contains(source, inline):
    """Picky raises at any action that is not in its space or not legal; a pool would count that as a fault."""
    envs = Envs(Picky, 4, inline=inline, workers=2, options={"source": source})
    assert envs.spec.mask == MASK
    assert set(envs.spec.obs) == {"who", "bits"}
    assert envs.spec.classes == {"who/0": 3, "who/1": (2, 4)}
    assert envs.spec.describe["action mask"] == f"from {'info' if source == 'info' else 'the observation'}"
    policy = factory.make("mlp", envs.spec, "gru", 8, previous=True, init="torch")
    pool, state, rng, ends = envs.open(3), policy.initial(4), np.random.default_rng(0), 0
    try:
        for _ in range(25):
            lanes, row = pool.recv()
            ends += row["truncated"].sum()
            assert row["mask"]["pick"][row["over"]].all(), "all is legal on a last row"
            assert (row["mask"]["pick"][~row["over"]].sum(1) == 2).all()
            heard = {k: row[k] for k in ("obs", "mask", "reward", "first")}
            heard["noise"] = rng.random((4, policy.noise), np.float32)
            with torch.no_grad():
                out, state = policy.act(tree.map(torch.from_numpy, heard), state)
            pool.send(lanes, tree.map(lambda x: x.numpy(), out["action"]))
        assert pool.faults == []
        assert ends == 16
    finally:
        pool.close()


def test_a_part_that_gets_its_mask_later_is_told():
    action = {"a": Discrete(2), "b": Discrete(2)}
    into = tree.zeros(masks.mask_spec(action, {"a": [1, 1], "b": None}, "x"), (1,))
    write = masks.mask_writer(action, into, 0, inside=False)
    write(None, {"action_mask": {"a": [0, 1]}}, False)
    assert into == {"a": pytest.approx(np.array([[0, 1]]))}
    write(None, {}, True)
    assert into["a"].all()
    with pytest.raises(SpaceViolation, match="action_mask at 'b': present now"):
        write(None, {"action_mask": {"a": [0, 1], "b": [0, 1]}}, False)
    with pytest.raises(SpaceViolation, match="action_mask at 'a': missing now"):
        write(None, {}, False)


class Masked(Picky):
    """Says what is legal by a method alone, as sb3-contrib's environments do; an illegal action raises."""

    def __init__(self, action_space=None):
        super().__init__()
        self.action_space = action_space or gym.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.observation_space.sample(), None

    def step(self, action):
        flat = np.concatenate([np.arange(n) == a for n, a in zip(self.sizes, np.atleast_1d(action), strict=True)])
        assert (flat <= self.legal()).all(), "an illegal action"
        self.at += 1
        return self.observation_space.sample(), 1.0, self.at == 5, False, {}

    @property
    def sizes(self):
        space = self.action_space
        return space.nvec if isinstance(space, gym.MultiDiscrete) else [space.n]

    def legal(self):
        return np.concatenate([np.arange(n) % 2 == self.at % 2 for n in self.sizes])

    def action_masks(self):
        return self.legal()


class InAWrapper(gymnasium.Wrapper):
    """As sb3-contrib's ActionMasker."""

    def action_masks(self):
        return self.unwrapped.legal()


@pytest.mark.parametrize(
    "make",
    [
        Masked,
        lambda: Masked(gym.MultiDiscrete([3, 2])),
        lambda: gymnasium.wrappers.TimeLimit(Masked(), 3),
        lambda: InAWrapper(type("Bare", (Masked,), {"action_masks": None})()),
    ],
    ids=["discrete", "several", "wrapped", "of a wrapper"],
)
def test_a_method_that_says_what_is_legal_is_used(make):
    envs = Envs(make, 2, inline=True)
    assert envs.spec.describe["action mask"] == "from action_masks()"
    draw, pool = action_sampler(envs.spec.action, 0), envs.open(0)
    for _ in range(30):
        lanes, row = pool.recv()
        assert row["over"].all() or not row["mask"][~row["over"]].all()
        pool.send(lanes, draw(2, row["mask"]))
    assert not pool.faults
    pool.close()


def raising(self):
    raise RuntimeError("the game\nis not there")


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (lambda self: np.ones(3), "'s action_mask does not fit the actions, 4 discrete"),
        (raising, " raised RuntimeError: the game is not there: repair it"),
        (lambda self, player: np.ones(4), " raised TypeError: .*argument: 'player': repair it"),
    ],
)
def test_a_method_of_another_form_or_that_raises_is_told(method, says):
    with pytest.raises(UserError, match=rf"Wrong: action_masks\(\){says}"):
        Envs(type("Wrong", (Masked,), {"action_masks": method}), 1, inline=True).spec  # noqa: B018


def test_that_of_a_vector_is_told():
    with pytest.raises(UserError, match="has action masks, which vector environments do not support"):
        Envs(lambda: gymnasium.vector.SyncVectorEnv([Masked]), 1, inline=True).spec  # noqa: B018
