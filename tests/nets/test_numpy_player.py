"""polyplay/nets/numpy_player.py: the network's own `act` but for rounding, new weights at once, others refused."""

from __future__ import annotations

import math
from typing import Any

import gymnasium.spaces as gym
import numpy as np
import pytest
import torch

from polyplay.core import tree
from polyplay.core.tree import Batch, Field
from polyplay.envs.pool import EnvSpec, space_to_json
from polyplay.envs.spaces import ActionSpec, Box, Discrete, MultiBinary, MultiDiscrete, classes
from polyplay.nets import factory as nets
from polyplay.nets.action_heads import Categorical, Gaussian
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.layers import Linear
from polyplay.nets.numpy_player import ArrayPlayer, fast_player
from polyplay.nets.policy import Policy, Torso
from polyplay.nets.q_network import DPGNetwork, QHead, QNetwork
from polyplay.nets.torsos import MLP, SeparateMLPs
from polyplay.weights.params import FlatParams
from tests.nets.helpers import conditional, continuous, discrete, hybrid, image, masks, observations, vector

BOX = Box((2, 3), np.array([[-1, -2, 0], [-5, -np.inf, 3]], np.float32), np.array([[1, 7, 9], [5, 2, 3]], np.float32))
ACTIONS: dict[str, ActionSpec] = {
    "two": Discrete(2),
    "nineteen": Discrete(19),
    "several": MultiDiscrete((2, 2), (2, 3, 1, 4)),
    "real": Box((6,), np.full(6, -1, np.float32), np.full(6, 1, np.float32)),
    "in a range": BOX,
}
MIXED = {"a": vector(3), "b": {"0": Field((2, 2), "float64"), "1": Field((4,), "uint8")}, "c": Field((), "int64")}
SHOWN: dict[str, Any] = {
    "vector": vector(7),
    "number": Field((), "float64"),
    "picture": image(2, 5),
    "mixed": MIXED,
    "one of nine": Field((), "int64"),
    "two of several": Field((2,), "int64"),
}
DECLARED = {
    "mixed": gym.Dict(
        a=gym.Box(-9, 9, (3,), np.float32),
        b=gym.Dict({"0": gym.Box(-9, 9, (2, 2), np.float64), "1": gym.Box(3, 250, (4,), np.uint8)}),
        c=gym.Discrete(9),
    ),
    "one of nine": gym.Discrete(9),
    "two of several": gym.MultiDiscrete((3, 5)),
}


def spec_of(shown: str, action: ActionSpec) -> EnvSpec:
    space = DECLARED.get(shown)
    if space is None:
        return EnvSpec(SHOWN[shown], action)
    spaces = {"observation": space_to_json(space), "action": space_to_json(gym.Discrete(2))}
    return EnvSpec(SHOWN[shown], action, classes=classes(space), spaces=spaces)


def bound(policy: Policy, size: float = 0.3) -> tuple[Any, FlatParams]:
    """The policy with random weights in one vector."""
    flat = FlatParams(policy)
    with torch.no_grad():
        for x in policy.parameters():
            x.add_(torch.randn_like(x) * size)
    return policy, flat


def rows(spec: EnvSpec, lanes: int, noise: int) -> Batch:
    return {
        "obs": observations(spec.obs, lanes),
        "reward": torch.randn(lanes),
        "first": torch.rand(lanes) < 0.2,
        "noise": torch.rand(lanes, noise).clamp(2.0**-24, 1 - 2.0**-24),
    }


def both(policy: Any, step: Batch) -> tuple[Batch, Batch]:
    """What the network says and what its fast player says, as arrays; of the shapes and types of `spec`."""
    player = fast_player(policy)
    assert isinstance(player, ArrayPlayer)
    assert (player.noise, player.spec(), player.initial(3)) == (policy.noise, policy.spec(), {})
    with torch.no_grad():
        own, after = policy.act(step, {})
    assert after == {}
    fast, after = player.act(tree.map(lambda x: x.numpy(), step), {})
    assert after == {}
    own = tree.map(lambda x: x.numpy(), own)
    assert list(fast) == list(own)
    lanes = len(own["action"])
    for path, field in tree.leaves(policy.spec()):
        for said in (own, fast):
            assert (said[path].dtype.name, said[path].shape) == (field.dtype, (lanes, *field.shape)), path
    return own, fast


def agree(policy: Any, step: Batch) -> None:
    own, fast = both(policy, step)
    if own["action"].dtype == np.int64:
        assert np.array_equal(fast.pop("action"), own.pop("action"))
    for name, x in fast.items():
        np.testing.assert_allclose(x, own[name], rtol=5e-6, atol=5e-6 * max(1.0, np.abs(own[name]).max()), err_msg=name)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("network", ["mlp", "separate"])
def test_every_head_behind_every_torso(network: str, action: str) -> None:
    for seed, how in enumerate([{}, {"hidden": (33,), "activation": "relu"}, {"hidden": (8, 9, 10), "width": 5}]):
        torch.manual_seed(seed)
        spec = spec_of("vector", ACTIONS[action])
        policy, _ = bound(nets.make(network, spec, actions=("scale", "clip")[seed % 2], **how))
        for lanes in (1, 8, 97):
            step = rows(spec, lanes, policy.noise)
            agree(policy, step)
            del step["noise"]
            agree(policy, step)


SEEN = [("raw", shown) for shown in SHOWN] + [("normalize", shown) for shown in ("vector", "number", "mixed")]


@pytest.mark.parametrize("network", ["mlp", "separate"])
@pytest.mark.parametrize(("inputs", "shown"), SEEN)
def test_every_observation(network: str, inputs: str, shown: str) -> None:
    torch.manual_seed(1)
    spec = spec_of(shown, Discrete(5))
    policy, _ = bound(nets.make(network, spec, inputs=inputs, **({"bound": 1.5} if inputs == "normalize" else {})))
    for n in (0, 1, 3):
        for _ in range(n):
            policy.observe({"obs": tree.map(lambda x: (x * 3 + 2).to(x.dtype), observations(spec.obs, 6, 5))})
        agree(policy, rows(spec, 9, policy.noise))


def test_an_observation_that_is_none_of_its_classes_is_an_error() -> None:
    policy, _ = bound(nets.make("mlp", spec_of("one of nine", Discrete(5))))
    player: Any = fast_player(policy)
    for wrong in (-1, 9):
        with pytest.raises(IndexError):
            player.act({"obs": np.array([3, wrong])}, {})


HEADS: list[dict[str, Any]] = [
    {},
    {"dueling": True, "width": 9, "scale": 2**-0.5},
    {"atoms": 11, "support": (-3.0, 4.0)},
    {"dueling": True, "atoms": 5, "bias": "none"},
    {"bias": "shared", "width": 6},
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.4, 1.0])
def test_values_and_epsilon_greedy_actions(head: dict[str, Any], epsilon: float | None) -> None:
    for seed, inputs in enumerate(["raw", "normalize"]):
        torch.manual_seed(seed)
        spec = discrete(vector(6), 7)
        policy, _ = bound(nets.make_values("mlp", spec, inputs=inputs, **head))
        for lanes in (1, 8, 200):
            step = rows(spec, lanes, policy.noise)
            more = {} if epsilon is None else {"epsilon": torch.full((lanes,), epsilon)}
            agree(policy, step | more)
            agree(policy, step | more | {"mask": torch.rand(lanes, 7) < 0.7 + torch.eye(7)[0]})
    agree(policy, {"obs": step["obs"]})
    with pytest.raises(ValueError, match="epsilon without noise"):
        both(policy, {"obs": step["obs"], "epsilon": torch.ones(lanes)})


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", [*ACTIONS, "values"])
def test_cores_and_the_action_before(kind: str, core: str, previous: bool) -> None:
    """Lane by lane over several steps, with states of their own."""
    torch.manual_seed(9)
    how: Any = {"core": core, "previous": previous}
    if kind == "values":
        policy, _ = bound(nets.make_values("mlp", discrete(vector(4), 3), core_size=24, **how))
    else:
        policy, _ = bound(nets.make("mlp", spec_of("vector", ACTIONS[kind]), core_size=24, **how))
    player: Any = fast_player(policy)
    assert player.state_spec() == policy.state_spec()
    states = player.initial(9), policy.initial(9)
    for _ in range(5):
        step = rows(EnvSpec(vector(4 if kind == "values" else 7), Discrete(3)), 9, policy.noise)
        step["reward"] *= 3.0
        fast, state = player.act(tree.map(lambda x: x.numpy(), step), states[0])
        with torch.no_grad():
            own, after = policy.act(step, states[1])
        states = state, after
        for found, wanted in ((fast, own), (state, after)):
            assert dict(tree.leaves(found)).keys() == dict(tree.leaves(wanted)).keys()
            for path, x in tree.leaves(wanted):
                y = torch.as_tensor(dict(tree.leaves(found))[path])
                assert y.dtype == x.dtype
                torch.testing.assert_close(y, x, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("deviation", [None, 0.0, 0.3, 5.0])
def test_deterministic_actions_within_their_bounds(deviation: float | None) -> None:
    torch.manual_seed(2)
    for space in (ACTIONS["real"], Box((2,), np.array([-3, 4], np.float32), np.array([5, 4], np.float32))):
        spec = EnvSpec(vector(5), space)
        policy, _ = bound(nets.make_deterministic("mlp", spec))
        step = rows(spec, 50, policy.noise)
        agree(policy, step | ({} if deviation is None else {"epsilon": torch.full((50,), deviation)}))


@pytest.mark.parametrize("name", ["two", "nineteen", "several"])
def test_masks_leave_legal_actions(name: str) -> None:
    torch.manual_seed(3)
    action: Any = ACTIONS[name]
    spec = EnvSpec(vector(4), action, mask=Field((sum(action.classes),), "bool"))
    policy, _ = bound(nets.make("mlp", spec))
    step = rows(spec, 500, policy.noise) | {"mask": masks(spec, 500)}
    agree(policy, step)
    del step["noise"]
    agree(policy, step)


@pytest.mark.parametrize("guard", ["max", "plus"])
def test_guarded_logarithms(guard: str) -> None:
    torch.manual_seed(4)
    spec = discrete(vector(4), 6)
    policy, _ = bound(nets.make("mlp", spec, guard=guard), 0.8)
    agree(policy, rows(spec, 500, 1))


@pytest.mark.parametrize("size", [0.01, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("action", ["nineteen", "several", "in a range"])
def test_large_numbers_and_noise_at_the_edges(size: float, action: str) -> None:
    """The same action, or one whose place in the distribution is as near to the noise as rounding brings it."""
    torch.manual_seed(5)
    spec = spec_of("vector", ACTIONS[action])
    policy, _ = bound(nets.make("separate", spec))
    with torch.no_grad():
        for head in (policy.actions, policy.value):
            head.weight *= size
    step = rows(spec, 400, policy.noise)
    edges = torch.tensor([0.0, 2.0**-25, 2.0**-24, 1e-6, 1 - 1e-6, 1 - 2.0**-24, 1.0])
    step["noise"] = edges[torch.randint(len(edges), step["noise"].shape)]
    own, fast = both(policy, step)
    same = (own["action"] == fast["action"]).reshape(400, -1).all(1)
    if isinstance(policy.head, Gaussian):
        assert np.allclose(own["action"], fast["action"], rtol=1e-5, atol=1e-5 * (1 + size))
        same[:] = True
    assert same.mean() > 0.95
    assert np.isfinite(fast["logp"]).all()
    assert np.allclose(fast["logp"][same], own["logp"][same], rtol=1e-5, atol=1e-5 * (1 + size))
    assert np.allclose(fast["value"], own["value"], rtol=1e-5, atol=1e-5 * (1 + size))


def test_actions_have_the_networks_chances() -> None:
    torch.manual_seed(6)
    n, spec = 20_000, discrete(vector(3), 5)
    policy, _ = bound(nets.make("mlp", spec))
    player: Any = fast_player(policy)
    obs, u = torch.randn(1, 3).expand(n, 3), ((np.arange(n) + 0.5) / n).astype(np.float32)[:, None]
    said, _ = player.act({"obs": obs.numpy(), "noise": u}, {})
    with torch.no_grad():
        chances = policy.actions(policy.torso(obs[:1])).softmax(-1)[0].numpy()
    assert np.abs(np.bincount(said["action"], minlength=5) / n - chances).max() < 2 / n
    assert np.allclose(np.exp(said["logp"]), chances[said["action"]], rtol=1e-5)
    policy, _ = bound(nets.make("mlp", continuous(vector(3), 1)))
    player = fast_player(policy)
    said, _ = player.act({"obs": obs.numpy(), "noise": u}, {})
    deviation = math.exp(float(policy.head.log_std.detach()[0]))
    likeliest, _ = player.act({"obs": obs.numpy()[:1]}, {})
    normal = torch.distributions.Normal(0.0, 1.0).icdf(torch.from_numpy(u).double()).numpy()
    assert np.allclose(said["action"], likeliest["action"] + deviation * normal, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
@pytest.mark.filterwarnings("error")
def test_weights_that_are_no_numbers_give_values_that_are_none_and_an_action_in_range(bad: float) -> None:
    for spec in (discrete(vector(3), 5), continuous(vector(3), 2)):
        policy, flat = bound(nets.make("mlp", spec))
        flat.flat.fill_(bad)
        own, fast = both(policy, rows(spec, 4, policy.noise))
        assert np.array_equal(own["action"], fast["action"], equal_nan=True)
        assert np.array_equal(np.isfinite(own["logp"]), np.isfinite(fast["logp"]))
        assert not np.isfinite(fast["value"]).any()


def test_new_weights_and_new_statistics_act_at_once() -> None:
    torch.manual_seed(7)
    spec = continuous(vector(5), 2)
    policy, flat = bound(nets.make("separate", spec, inputs="normalize"))
    player: Any = fast_player(policy)
    step = rows(spec, 8, policy.noise)
    arrays = tree.map(lambda x: x.numpy(), step)
    before = player.act(arrays, {})[0]
    for change in (
        lambda: flat.flat[: flat.weights].mul_(0.5),
        lambda: policy.observe({"obs": torch.randn(9, 4, 5) * 7 + 3}),
        lambda: flat.write(np.random.default_rng(0).standard_normal(flat.size).astype(np.float32) ** 2),
    ):
        change()
        now = player.act(arrays, {})[0]
        with torch.no_grad():
            own = policy.act(step, {})[0]
        assert not np.allclose(now["value"], before["value"])
        assert np.allclose(now["value"], own["value"].numpy(), rtol=1e-5, atol=1e-6)
        assert np.allclose(now["action"], own["action"].numpy(), rtol=1e-5, atol=1e-6)
        before = now


def test_what_was_said_before_stays() -> None:
    """Outputs are of no memory that the next call writes."""
    spec = discrete(vector(5), 3)
    policy, _ = bound(nets.make("mlp", spec))
    player: Any = fast_player(policy)
    said = player.act(tree.map(lambda x: x.numpy(), rows(spec, 8, 1)), {})[0]
    kept = tree.map(np.copy, said)
    player.act(tree.map(lambda x: x.numpy(), rows(spec, 8, 1)), {})
    assert all(np.array_equal(said[k], kept[k]) for k in kept)


@pytest.mark.parametrize("lanes", [1, 8, 300])
def test_wide_layers_are_torchs_products(lanes: int) -> None:
    torch.manual_seed(8)
    spec = discrete(vector(300), 300)
    policy, _ = bound(nets.make("mlp", spec, hidden=(256, 128)), 0.05)
    agree(policy, rows(spec, lanes, 1))


class OwnPolicy(ActorCritic):
    pass


class OwnTorso(MLP):
    pass


class OwnHead(Categorical):
    pass


class OwnLayer(Linear):
    pass


class OwnValues(QNetwork):
    pass


class OwnDPG(DPGNetwork):
    pass


class OwnQHead(QHead):
    pass


class Whole(Policy):
    pass


class Plain(Torso):
    features = 4


SPEC = discrete(vector(4), 3)


def with_layer(name: str) -> ActorCritic:
    policy = ActorCritic(MLP(SPEC), Categorical(3))
    setattr(policy, name, OwnLayer(64, 3 if name == "actions" else 1))
    return policy


def with_activation() -> ActorCritic:
    policy = ActorCritic(MLP(SPEC), Categorical(3))
    policy.torso.layers[1] = torch.nn.ELU()  # type: ignore[index,operator,union-attr]
    return policy


def half(policy: Any) -> Any:
    policy.bf16 = True
    return policy


def double(policy: Any) -> Any:
    return policy.double()


@pytest.mark.parametrize(
    "policy",
    [
        lambda: OwnPolicy(MLP(SPEC), Categorical(3)),
        lambda: OwnValues(MLP(SPEC), QHead(64, 3)),
        lambda: OwnDPG(BOX, MLP(SPEC), MLP(SPEC), (8, 8)),
        lambda: ActorCritic(OwnTorso(SPEC), Categorical(3)),
        lambda: ActorCritic(Plain(), Categorical(3)),
        lambda: ActorCritic(MLP(SPEC), OwnHead(3)),
        lambda: QNetwork(OwnTorso(SPEC), QHead(64, 3)),
        lambda: QNetwork(SeparateMLPs(SPEC), QHead(128, 3)),
        lambda: QNetwork(MLP(SPEC), OwnQHead(64, 3)),
        lambda: DPGNetwork(BOX, MLP(SPEC), OwnTorso(SPEC), (8, 8)),
        lambda: with_layer("actions"),
        lambda: with_layer("value"),
        with_activation,
        lambda: Whole(),
        lambda: half(nets.make("mlp", SPEC)),
        lambda: double(nets.make("mlp", SPEC)),
        lambda: nets.make("mlp", SPEC, core="temporal", core_size=8),
        lambda: nets.make("a3c", discrete(image())),
        lambda: nets.make("mlp", discrete(image()), inputs="center"),
        lambda: nets.make("mlp", discrete(image()), inputs="signed"),
        lambda: nets.make("mlp", hybrid(vector(4))),
        lambda: nets.make("mlp", conditional(vector(4))),
        lambda: nets.make("mlp", EnvSpec(vector(4), MultiBinary((3,)))),
        lambda: nets.make_values("mlp", SPEC, noisy="fortunato"),
        lambda: nets.make("mlp", EnvSpec(vector(4), Discrete(3), events=("kill",)), previous=True, rewards=("kill",)),
        lambda: nets.make("mlp", SPEC).to("meta"),
    ],
)
def test_all_others_act_by_themselves(policy: Any) -> None:
    assert fast_player(policy()) is None


@pytest.mark.parametrize("given", [{}, {"log_std": "tanh"}, {"actor": "deterministic", "alpha": 0.0, "deviation": 0.4}])
@pytest.mark.parametrize("obs", [Field((5,), "float32"), {"a": Field((2, 3), "float32"), "b": Field((), "int64")}])
def test_actors_of_sac_and_td3_act_as_their_networks(given, obs):
    """With weights that change later, without noise, with it, and where actions are uniform."""
    low, high = np.array([-1.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32)
    spec = EnvSpec(obs, Box((2,), low, high), classes={"b": 4} if isinstance(obs, dict) else {})
    policy = nets.NetworkFactory("mlp", spec, {"hidden": (16, 16), **given}, "critics")()
    FlatParams(policy)
    player, rng = fast_player(policy), np.random.default_rng(0)
    assert player is not None
    with torch.no_grad():
        for x in policy.parameters():
            x.mul_(1.5)
    flat = rng.normal(size=(6, 5)).astype(np.float32)
    seen: Any = {"a": rng.normal(size=(6, 2, 3)).astype(np.float32), "b": rng.integers(0, 4, 6)}
    seen = seen if isinstance(obs, dict) else flat
    epsilon = np.array([0, 1, 0, 1, 0, 0], np.float32)
    for more in ({}, {"noise": rng.random((6, 2), np.float32)}):
        for step in ({"obs": seen, **more}, {"obs": seen, **more, **({"epsilon": epsilon} if more else {})}):
            mine, _ = player.act(step, {})
            with torch.no_grad():
                theirs, _ = policy.act(tree.map(torch.from_numpy, step), {})
            np.testing.assert_allclose(mine["action"], theirs["action"].numpy(), rtol=1e-4, atol=1e-5)
            assert ((mine["action"] >= low) & (mine["action"] <= high)).all()
