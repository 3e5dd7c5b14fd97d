"""polyplay/nets/q_network.py: ε-greedy acting, the same bits in unrolling, memory, noise, precision, one vector."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.learning import value_losses
from polyplay.nets import device, q_network
from polyplay.nets import factory as nets
from polyplay.weights.params import FlatParams
from tests.nets.helpers import arrivals, bind, continuous, discrete, image, parameters, play, unroll_in_pieces, vector

HEADS: list[dict[str, Any]] = [
    {},
    {"dueling": True, "scale": 2**-0.5},
    {"atoms": 11},
    {"dueling": True, "atoms": 11, "noisy": "zoo", "bias": "none"},
    {"noisy": "fortunato", "width": 9},
    {"bias": "shared"},
]
CORES = [("none", False), ("none", True), ("lstm", True), ("gru", False)]


def randomly(step: dict[str, Any], epsilon: float) -> dict[str, Any]:
    return {**step, "epsilon": torch.full(step["first"].shape, epsilon)}


def masks(n: int, *lead: int) -> torch.Tensor:
    return (torch.rand(*lead, n) < 0.5).scatter(-1, torch.randint(n, (*lead, 1)), True)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("core", "previous"), CORES)
def test_acting_and_unrolling_agree_to_the_bit(head: dict, core: str, previous: bool) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        size, n, width = (int(torch.randint(1, high, ())) for high in (40, 20, 70))
        rows, lanes = 2 + seed, 1 + 2 * seed
        spec = discrete(vector(size), 1 + n)
        policy = nets.make_values(
            "mlp", spec, core=core, core_size=width, previous=previous, hidden=((64, 64), (width,))[seed % 2], **head
        )
        bind(policy)
        state = tree.map(torch.ones_like, policy.initial(lanes))
        if previous:
            state["action"] = torch.zeros(lanes, dtype=torch.int64)
        batch = randomly(arrivals(spec.obs, rows, lanes, policy.noise), 0.3)
        if seed % 2:
            batch["mask"] = masks(1 + n, rows, lanes)
        said, _ = play(policy, batch, state)
        out = policy.unroll({**batch, "action": said["action"]}, state)
        for k in ("value", "chosen"):
            assert torch.equal(out[k], said[k]), (k, seed)


@pytest.mark.parametrize("head", HEADS)
def test_a_lane_is_to_the_bit_the_same_in_any_batch(head: dict) -> None:
    spec = discrete(vector(17), 5)
    policy = nets.make_values("mlp", spec, core="gru", core_size=20, previous=True, **head)
    batch = randomly(arrivals(spec.obs, 6, 13, policy.noise), 0.2)
    whole, _ = play(policy, batch, policy.initial(13))
    for lanes in (slice(0, 1), slice(3, 8), slice(5, 13)):
        some = tree.map(lambda x, at=lanes: x[:, at], batch)
        part, _ = play(policy, some, policy.initial(some["first"].shape[1]))
        assert all(torch.equal(part[k], whole[k][:, lanes]) for k in whole)


@pytest.mark.parametrize("name", ["nature", "a3c", "dqn"])
def test_convolutions_agree_to_the_bit_in_batches_of_the_acting_size(name: str) -> None:
    spec = discrete(image())
    policy = nets.make_values(name, spec, dueling=name == "a3c")
    batch = arrivals(spec.obs, 3, 4, policy.noise)
    said, _ = play(policy, batch, {})
    rows = {**batch, "action": said["action"]}
    out = unroll_in_pieces(policy, rows, {}, 4)
    assert all(torch.equal(out[k], said[k]) for k in ("value", "chosen"))
    torch.testing.assert_close(policy.unroll(rows, {})["value"], said["value"], rtol=0, atol=1e-5)


def test_what_acting_says_fits_its_spec() -> None:
    spec = discrete(vector(4))
    policy = nets.make_values("mlp", spec, core="lstm", core_size=6, previous=True)
    step = tree.map(lambda x: x[0], randomly(arrivals(spec.obs, 1, 5, policy.noise), 0.5))
    out, after = policy.act(step, policy.initial(5))
    assert tree.map(lambda v: Field(tuple(v.shape[1:]), str(v.dtype)[6:]), out) == policy.spec()
    assert tree.map(lambda v: Field(tuple(v.shape[1:]), str(v.dtype)[6:]), after) == policy.state_spec()
    assert torch.equal(after["action"], out["action"])
    assert (out["chosen"] <= out["value"]).all()


def test_epsilon_is_each_lanes_chance_of_a_uniform_action() -> None:
    n, lanes = 4, 40_000
    spec = discrete(vector(2), n)
    policy = nets.make_values("mlp", spec)
    step = {"obs": torch.ones(lanes, 2), "noise": torch.rand(lanes, policy.noise)}
    epsilon = torch.zeros(lanes)
    epsilon[: lanes // 2] = 0.4
    best = policy.act(step, {})[0]["action"]
    assert (best == best[0]).all()
    action = policy.act({**step, "epsilon": epsilon}, {})[0]["action"]
    assert (action[lanes // 2 :] == best[0]).all()
    counts = torch.bincount(action[: lanes // 2], minlength=n) / (lanes // 2)
    expected = torch.full((n,), 0.1)
    expected[best[0]] += 0.6
    torch.testing.assert_close(counts, expected, atol=0.015, rtol=0)


def test_ties_are_broken_evenly_and_without_noise_by_the_first() -> None:
    spec = discrete(vector(2), 4)
    policy = nets.make_values("mlp", spec)
    with torch.no_grad():
        for p in policy.head.parameters():
            p.zero_()
        policy.head.advantage.last.bias[1:] = 2.0  # actions 1, 2, 3 are equally good
    step = {"obs": torch.ones(9000, 2)}
    assert (policy.act(step, {})[0]["action"] == 1).all()
    step["noise"] = torch.rand(9000, 3)
    counts = torch.bincount(policy.act(step, {})[0]["action"], minlength=4) / 9000
    torch.testing.assert_close(counts, torch.tensor([0.0, 1 / 3, 1 / 3, 1 / 3]), atol=0.02, rtol=0)
    step["mask"] = torch.tensor([True, False, True, False]).expand(9000, 4)
    out, _ = policy.act({**step, "epsilon": torch.zeros(9000)}, {})
    assert (out["action"] == 2).all()
    some = policy.act({**step, "epsilon": torch.ones(9000)}, {})[0]["action"]
    assert some.unique().tolist() == [0, 2]


def test_chance_comes_from_the_noise_alone() -> None:
    spec = discrete(vector(4))
    policy = nets.make_values("mlp", spec, noisy="fortunato")
    step = tree.map(lambda x: x[0], randomly(arrivals(spec.obs, 1, 64, policy.noise), 0.3))
    one, _ = policy.act(step, {})
    torch.manual_seed(99)
    again, _ = policy.act(step, {})
    assert all(torch.equal(one[k], again[k]) for k in one)
    other, _ = policy.act({**step, "noise": torch.rand(64, policy.noise)}, {})
    assert not torch.equal(other["value"], one["value"]), "weights are noisy"
    step.pop("noise")
    with pytest.raises(ValueError, match=r"epsilon without noise: chance comes from step\['noise'\] alone"):
        policy.act(step, {})
    step.pop("epsilon")
    torch.testing.assert_close(
        policy.act(step, {})[0]["value"], policy.scores({"obs": step["obs"][None]}, {})[0].amax(1)
    )


@pytest.mark.parametrize(("core", "previous"), CORES)
def test_an_unroll_over_a_first_row_equals_two_unrolls(core: str, previous: bool) -> None:
    spec = discrete(vector(5))
    policy = nets.make_values("mlp", spec, core=core, core_size=24, previous=previous)
    batch = arrivals(spec.obs, 9, 4, 3)
    batch["first"][:] = False
    batch["first"][5] = True
    batch["action"] = torch.randint(0, 6, (9, 4))
    state = tree.map(lambda x: torch.rand(x.shape).to(x.dtype), policy.initial(4))
    whole = policy.scores(batch, state)
    fresh = policy.scores(tree.map(lambda x: x[5:], batch), policy.initial(4))
    assert torch.equal(whole[5:], fresh)
    head = tree.map(lambda x: x[:3], batch)
    late = policy.scores(tree.map(lambda x: x[3:], batch), policy.after(head, state))
    assert torch.equal(whole[3:], late)


def test_rewards_are_heard_as_they_are_or_clipped() -> None:
    spec = discrete(vector(3))
    for clipped in (False, True):
        policy = nets.make_values("mlp", spec, previous=True, clipped=clipped)

        def value(reward: float, first: bool = False, policy: Any = policy) -> float:
            step = {"obs": torch.zeros(1, 3), "reward": torch.tensor([reward]), "first": torch.tensor([first])}
            return policy.act(step, {"action": torch.tensor([2])})[0]["value"].item()

        assert (value(3.0) == value(1.0)) == clipped
        assert value(3.0, True) == value(-0.5, True)


@pytest.mark.parametrize("head", HEADS)
def test_gradients_reach_every_weight_through_a_vector(head: dict) -> None:
    spec = discrete(vector(4), 5)
    policy = nets.make_values("mlp", spec, core="lstm", core_size=8, previous=True, **{"width": 7, **head})
    bound = FlatParams(policy)
    assert bound.size == bound.weights == parameters(policy)
    batch = {**arrivals(spec.obs, 6, 16, 0), "action": torch.randint(5, (6, 16))}
    scores = policy.scores(batch, policy.initial(16), key=3)
    (scores.square() * torch.rand_like(scores)).sum().backward()
    for name, p in policy.named_parameters():
        assert p.grad.abs().sum() > 0, name
        assert p.untyped_storage().data_ptr() == bound.flat.untyped_storage().data_ptr(), name
    before = scores.detach().clone()
    bound.flat -= 0.01 * bound.flat
    assert not torch.equal(policy.scores(batch, policy.initial(16), key=3), before)


def test_sizes_are_the_papers() -> None:
    pong, full = discrete(image()), discrete(image(), 18)
    assert parameters(nets.make_values("nature", pong)) == 1_687_206
    assert parameters(nets.make_values("dqn", pong)) == 1_687_206
    assert parameters(nets.make_values("nature", pong, bias="shared")) == 1_687_201
    assert parameters(nets.make_values("nature", pong, dueling=True)) == 3_293_863
    assert parameters(nets.make_values("nature", pong, atoms=51)) == 1_841_106
    r2d2 = nets.make_values("nature", full, dueling=True, core="lstm", previous=True)
    assert parameters(r2d2) * 4 == 32_500_428  # bytes: what R2D2's actors pull, 32.5 MB


def test_it_is_the_policys_network_with_another_head() -> None:
    """nature's values are nature's logits, given the same weights, though the fully connected layer moved."""
    spec = discrete(image())
    ours, theirs = nets.make_values("nature", spec), nets.make("nature", spec)
    for mine, other in zip(ours.torso.convs, theirs.torso.convs, strict=True):
        other.load_state_dict(mine.state_dict())
    theirs.torso.fc.load_state_dict(ours.head.advantage.hidden.state_dict())
    theirs.actions.load_state_dict(ours.head.advantage.last.state_dict())
    obs = torch.randint(0, 256, (3, *image().shape), dtype=torch.uint8)
    torch.testing.assert_close(ours.scores({"obs": obs[None]}, {})[0], theirs.actions(theirs.torso(obs)))


def test_bfloat16_is_close_and_its_copies_serve_only_who_asks() -> None:
    spec = discrete(image())
    made = []
    for how in ("float32", "bfloat16"):
        torch.manual_seed(0)
        made.append(device.set_precision(nets.make_values("nature", spec, dueling=True), how))
    full, half = made
    obs = torch.randint(0, 256, (2, 3, *image().shape), dtype=torch.uint8)
    exact, near = full.scores({"obs": obs}, {}), half.scores({"obs": obs}, {})
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, atol=0.01, rtol=0.1)
    with torch.no_grad():
        half.hold()
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), half.scores({"obs": obs}, {}))
        step = {"obs": obs[0]}
        kept = half.act(step, {})[0]["value"]
        half.head.advantage.hidden.weight.mul_(2.0)
        assert torch.equal(half.act(step, {})[0]["value"], kept), "old until told"
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), near)
        changed = half.scores({"obs": obs}, {})
        assert not torch.equal(changed, near), "who learns has the present weights"
        half.hold()
        assert torch.equal(half.scores({"obs": obs}, {}, cached=True), changed)
    assert set(value_losses.q_outputs(half, full, {"obs": obs}, double=True)) == {"q", "target", "online"}


def test_with_memory_the_cores_input_is_of_few_bits_too() -> None:
    spec, made = discrete(image(1, 40)), []
    for how in ("float32", "bfloat16"):
        torch.manual_seed(0)
        made.append(device.set_precision(nets.make_values("a3c", spec, core="lstm", core_size=16, previous=True), how))
    batch = {**arrivals(spec.obs, 4, 8, 3), "action": torch.randint(6, (4, 8))}
    (full, half), state = made, made[0].initial(8)
    exact, near = (net.scores(batch, state) for net in made)
    assert near.dtype == torch.float32
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=0.02, rtol=0.1)
    near.square().sum().backward()
    assert half.core.input.weight.grad.abs().sum() > 0
    with torch.no_grad():
        half.hold()
        assert half.core.input.half_weight is not None
        assert torch.equal(half.scores(batch, state, cached=True), near)
        half.core.input.weight.mul_(2.0)
        assert not torch.equal(half.scores(batch, state), near)
    assert full.core.input.half_weight is None


def test_inputs_and_user_torsos() -> None:
    spec = discrete(image(1, 40))
    centred = nets.make_values("a3c", spec, inputs="centre")
    obs = torch.randint(0, 256, (2, 3, 1, 40, 40), dtype=torch.uint8)
    before = centred.scores({"obs": obs}, {})
    centred.observe({"obs": obs})
    assert not torch.equal(centred.scores({"obs": obs}, {}), before)

    class Torso(torch.nn.Module):
        features = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    own = nets.make_values(lambda spec: Torso(), discrete(vector(3)), dueling=True, width=8)
    assert own.scores({"obs": torch.randn(1, 2, 3)}, {}).shape == (1, 2, 6)
    assert own.head.advantage.hidden.in_features == 3


def test_a_factory_makes_values_where_asked() -> None:
    factory = nets.NetworkFactory("mlp", discrete(vector(3)), {"dueling": True, "hidden": (8,)}, values=True)
    torch.manual_seed(1)
    first = factory()
    torch.manual_seed(1)
    second = factory()
    assert isinstance(first, q_network.QNetwork)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"noisy": "gauss"}, "noisy: 'gauss' is not one of none, fortunato, zoo"),
        ("mlp", {"core": "rnn"}, "core: 'rnn' is not one of none, lstm, gru"),
        ("mlp", {"init": "auto"}, "init: 'auto' is not one of orthogonal, torch"),
        ("mlp", {"inputs": "raww"}, "--inputs: 'raww' is not one of raw"),
        ("mlpp", {}, "--network: 'mlpp' is unknown, did you mean 'mlp'"),
        ("nature", {}, "--network: 'nature' takes one image"),
    ],
)
def test_mistakes_are_one_clear_line(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        nets.make_values(name, discrete(vector(3)), **options)
    assert "\n" not in str(caught.value)


def test_only_discrete_actions_have_values() -> None:
    with pytest.raises(
        UserError, match=r"actions: this system needs Discrete actions, the environment's are .*; take ppo, impala, a2c"
    ):
        nets.make_values("mlp", continuous(vector(3), 2))
    policy = nets.make_values("mlp", discrete(vector(4)))
    with pytest.raises(ValueError, match="head or core takes 64 numbers, not 71"):
        q_network.QNetwork(policy.torso, policy.head, previous=True)
