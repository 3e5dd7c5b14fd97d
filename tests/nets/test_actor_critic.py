"""ActorCritic: acting and learning say the same; rewards of events; heads of auxiliary tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from polyplay.games.ctf_rules import COMPOSITE, World
from polyplay.nets import factory
from polyplay.nets.action_heads import normal
from polyplay.nets.actor_critic import PixelControl, RewardPrediction, control_cells
from tests.nets.helpers import (
    arrivals,
    bind,
    conditional,
    continuous,
    discrete,
    every_action,
    hybrid,
    image,
    masks,
    parameters,
    play,
    unroll_in_pieces,
    vector,
)

ACTIONS = {"discrete": discrete, "continuous": lambda obs: continuous(obs, 2, 3), "hybrid": hybrid}
STATEFUL = [("none", False), ("gru", False), ("lstm", False), ("gru", True), ("lstm", True), ("none", True)]


def agrees(policy, batch, state, pieces=None):
    """Largest difference between what acting and unrolling say of the same actions."""
    said, _ = play(policy, batch, state)
    rows = {k: v for k, v in batch.items() if k != "noise"}
    rows["action"] = said["action"]
    out = unroll_in_pieces(policy, rows, state, pieces) if pieces else policy.unroll(rows, state)
    assert {k: v.shape for k, v in out.items()} == dict.fromkeys(("logp", "value", "entropy"), batch["first"].shape)
    return max((out[k] - said[k]).abs().max().item() for k in ("logp", "value"))


@pytest.mark.parametrize(("core", "previous"), STATEFUL)
def test_acting_and_unrolling_agree_to_the_bit(core, previous):
    """Over many shapes, ragged ones above all, weights and rollouts."""
    for seed in range(12):
        torch.manual_seed(seed)
        size, n, width = (int(torch.randint(1, high, ())) for high in (40, 20, 70))
        rows, lanes = 2 + seed % 7, 1 + seed % 11
        make = continuous(vector(size), 1 + n % 5) if seed % 3 == 0 else discrete(vector(size), 1 + n)
        make = (hybrid, conditional)[seed // 3 % 2](vector(size)) if seed % 3 == 1 else make
        hidden = ((64, 64), (width,), (32, width))[seed % 3]
        policy = factory.make("mlp", make, core, width, previous, hidden=hidden)
        for p in policy.parameters():
            p.data += 0.1 * torch.randn_like(p)
        bind(policy)
        state = tree.map(torch.ones_like, policy.initial(lanes))
        state = {**state, **({"action": policy.initial(lanes)["action"]} if previous else {})}
        batch = arrivals(make.obs, rows, lanes, policy.noise)
        if make.mask is not None:
            batch["mask"] = masks(make, rows, lanes)
        assert agrees(policy, batch, state) == 0, (seed, size, n, width, rows, lanes)


@pytest.mark.parametrize(("name", "core"), [("mlp", "none"), ("mlp", "gru"), ("mlp", "lstm"), ("separate", "none")])
@pytest.mark.parametrize("make", [discrete, hybrid, conditional])
def test_a_lane_is_to_the_bit_the_same_in_any_batch(name, core, make):
    spec = make(vector(17))
    policy = factory.make(name, spec, core, 50)
    batch = arrivals(spec.obs, 6, 13, policy.noise)
    if spec.mask is not None:
        batch["mask"] = masks(spec, 6, 13)
    whole, _ = play(policy, batch, policy.initial(13))
    for lanes in (slice(0, 1), slice(3, 8), slice(5, 13)):
        some = tree.map(lambda x, at=lanes: x[:, at], batch)
        part, _ = play(policy, some, policy.initial(some["first"].shape[1]))
        for (_, a), (_, b) in zip(tree.leaves(part), tree.leaves(whole), strict=True):
            assert torch.equal(a, b[:, lanes])


@pytest.mark.parametrize("name", ["mlp", "separate"])
@pytest.mark.parametrize("make", [discrete, hybrid])
def test_rows_for_whole_tiles_once_or_in_each_layer_are_the_same_to_the_bit(name, make):
    """Outputs and gradients, of numbers of several kinds."""
    spec = make({"a": vector(11), "b": Field((2, 3), "uint8"), "c": Field((), "int64")})
    torch.manual_seed(0)
    policy = factory.make(name, spec)
    for rows, lanes in ((1, 3), (2, 8), (3, 15), (1, 251)):
        batch = arrivals(spec.obs, rows, lanes, policy.noise)
        if spec.mask is not None:
            batch["mask"] = masks(spec, rows, lanes)
        batch["action"], found = play(policy, batch, {})[0]["action"], []
        for once in (True, False):
            policy.torso.tiled = once
            policy.zero_grad()
            out = policy.unroll(batch, {})
            sum((x * torch.linspace(1.0, 2.0, x.numel()).view(x.shape)).sum() for x in out.values()).backward()
            found.append([*out.values(), *(p.grad.clone() for p in policy.parameters())])
        assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["nature", "a3c", "ga3c", "impala", "dqn"])
def test_convolutions_agree_to_the_bit_in_batches_of_the_acting_size(name):
    spec = discrete(image())
    policy = factory.make(name, spec, "gru" if name == "a3c" else "none", 32)
    bind(policy)
    batch, state = arrivals(spec.obs, 4, 3, 1), policy.initial(3)
    assert agrees(policy, batch, state, pieces=3) == 0
    assert agrees(policy, batch, state) <= 1e-5
    assert agrees(policy, batch, state, pieces=5) <= 1e-5


def test_the_previous_action_and_clipped_reward_are_heard_except_on_first_rows():
    spec = discrete(vector(3))
    policy = factory.make("mlp", spec, previous=True, init="torch")
    obs, reward = torch.zeros(1, 3), torch.tensor([3.0])

    def value(action: int, reward: torch.Tensor, first: bool) -> float:
        step = {"obs": obs, "reward": reward, "first": torch.tensor([first])}
        return policy.act(step, {"action": torch.tensor([action])})[0]["value"].item()

    assert value(0, reward, False) != value(1, reward, False)
    assert value(0, reward, False) == value(0, reward / 3, False) != value(0, reward / 6, False)
    assert value(0, reward, True) == value(1, reward / 6, True)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ["discrete", "continuous", "pixels", "hybrid"])
def test_gradients_reach_every_weight_through_views(core, kind):
    spec = discrete(image(2, 36)) if kind == "pixels" else ACTIONS[kind](vector(4))
    policy = factory.make("a3c" if kind == "pixels" else "mlp", spec, core, 16, previous=True)
    flat, grad = bind(policy)
    batch = arrivals(spec.obs, 5, 3, policy.noise)
    if spec.mask is not None:
        batch["mask"] = masks(spec, 5, 3)
    said, _ = play(policy, batch, policy.initial(3))
    out = policy.unroll({**batch, "action": said["action"]}, policy.initial(3))
    (out["logp"].sum() + out["value"].square().sum() + 0.1 * out["entropy"].sum()).backward()
    for name, p in policy.named_parameters():
        assert p.grad.abs().sum() > 0, name
        assert p.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr(), name
        assert p.grad.untyped_storage().data_ptr() == grad.untyped_storage().data_ptr(), name
    flat -= 0.01 * grad
    assert not torch.equal(policy.unroll({**batch, "action": said["action"]}, policy.initial(3))["value"], out["value"])


def test_separate_networks_share_nothing_and_agree_to_the_bit():
    spec = discrete(vector(5))
    policy = factory.make("separate", spec, hidden=(32, 16), activation="relu")
    assert parameters(policy) == 2 * (5 * 32 + 32 + 32 * 16 + 16) + 16 * 6 + 6 + 16 + 1
    batch = arrivals(spec.obs, 7, 3, policy.noise)
    assert agrees(policy, batch, {}) == 0
    rows = {**batch, "action": torch.zeros(batch["first"].shape, dtype=torch.int64)}
    for output, own, other in (("logp", "policy", "value"), ("value", "value", "policy")):
        policy.zero_grad()
        policy.unroll(rows, {})[output].sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in getattr(policy.torso, own).parameters())
        assert not any(p.grad is not None and p.grad.any() for p in getattr(policy.torso, other).parameters())
    with pytest.raises(UserError, match="separate networks of policy and value take no core; use mlp"):
        factory.make("separate", spec, "lstm")


# ------------------------------------------------------------------------- two clocks, own rewards, auxiliary tasks
EVENTS = ("kill", "death")
WEIGHTS = {"period": 3.0, "reward_kill": 0.7, "reward_death": -0.4}


def two_clocks(kind, memory=0, rewards=EVENTS):
    spec = replace(ACTIONS[kind](vector(7)), events=EVENTS)
    more = {"previous": True, "rewards": rewards, "width": 20, "hidden": (32,)}
    policy = factory.make("mlp", spec, "temporal", 24, memory=memory, **more)
    for p in policy.parameters():
        p.data += 0.1 * torch.randn_like(p)
    for tuned in policy.tuned:
        tuned.apply_hyperparameters(WEIGHTS)
    return spec, policy


def arrivals_with_events(spec, rows, lanes, noise):
    batch = arrivals(spec.obs, rows, lanes, noise)
    batch["events"] = torch.randint(0, 3, (rows, lanes, len(EVENTS))).float()
    return batch if spec.mask is None else {**batch, "mask": masks(spec, rows, lanes)}


def rows_of(batch, said):
    """What a learner gets of rows that were acted in."""
    return {k: v for k, v in batch.items() if k != "noise"} | {k: said[k] for k in ("action", "latent_noise")}


@pytest.mark.parametrize("memory", [0, 5])
@pytest.mark.parametrize("kind", ACTIONS)
def test_two_clocks_act_as_they_unroll_to_the_bit(kind, memory):
    for seed, lanes in enumerate((1, 4, 11)):
        torch.manual_seed(seed)
        spec, policy = two_clocks(kind, memory)
        batch = arrivals_with_events(spec, 14, lanes, policy.noise)
        early, late = (tree.map(lambda x, at=at: x[at], batch) for at in (slice(0, 5), slice(5, 14)))
        _, state = play(policy, early, policy.initial(lanes))  # between two ticks, with something in memory
        said, _ = play(policy, late, state)
        assert torch.equal(said["latent_noise"], normal(late["noise"][..., :24]))
        out = policy.unroll(rows_of(late, said), state)
        for k in ("logp", "value"):
            assert torch.equal(out[k], said[k]), (k, lanes)
        assert (out["kl_posterior"] > 0).all()


def test_what_comes_before_is_the_agent_s_own_reward():
    """As a policy without such rewards has it whom the environment gives Σ w·events."""
    torch.manual_seed(0)
    spec, policy = two_clocks("discrete")
    _, plain = two_clocks("discrete", rewards=())
    plain.load_state_dict({k: v for k, v in policy.state_dict().items() if k != "rewards.weights"})
    batch = arrivals_with_events(spec, 9, 4, policy.noise)
    own = 0.7 * batch["events"][..., 0] - 0.4 * batch["events"][..., 1]
    state = policy.initial(4)
    said, after = play(policy, batch, state)
    theirs, behind = play(plain, {**batch, "reward": own}, state)
    for k in ("value", "logp"):
        torch.testing.assert_close(said[k], theirs[k])
    torch.testing.assert_close(after["h"], behind["h"])
    said, _ = play(policy, {**batch, "reward": 100 * batch["reward"]}, state)
    out = policy.unroll(rows_of(batch, said), state)
    torch.testing.assert_close(out["reward"], own)
    assert torch.equal(out["value"], said["value"])
    assert not torch.allclose(play(plain, batch, state)[0]["value"], theirs["value"])
    policy.rewards.apply_hyperparameters({"reward_kill": -0.7})
    assert not torch.equal(play(policy, batch, state)[0]["value"], said["value"])


# Rewards of an agent's own: their values, what they follow, and that they travel with the weights.


# nets/actor_critic.py: composite dueling values against sums by hand and all joint actions, shapes, learning.

SPACES: list[Any] = [
    Discrete(4),
    MultiDiscrete((3,), (2, 3, 2)),
    MultiDiscrete((2, 1), (3, 2)),
    {"b": MultiBinary((2,)), "a": Discrete(3)},
]


def by_hand(head: PixelControl, maps: Tensor, row: int, numbers: list[int]) -> Tensor:
    """Q [h, w] of one row and action."""
    value, advantages = head.values(maps)
    q = value[row].clone()
    for part, number in zip(advantages, numbers, strict=True):
        q += part[row, number] - sum(part[row, k] for k in range(part.shape[1])) / part.shape[1]
    return q


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("cells", [(20, 20), (5, 8), (3, 4)])
def test_values_of_all_joint_actions_and_the_best_of_them(space: Any, cells: tuple[int, int]) -> None:
    torch.manual_seed(0)
    head = PixelControl(6, cells, space).double()
    action, numbers, _ = every_action(space)
    count = len(numbers)
    maps = head(torch.randn(1, 6, dtype=torch.float64)).repeat(count, 1, 1, 1)
    chosen = head.chosen(maps, action)
    assert chosen.shape == (count, *cells)
    expected = torch.stack([by_hand(head, maps, i, numbers[i].tolist()) for i in range(count)])
    torch.testing.assert_close(chosen, expected)
    torch.testing.assert_close(head.best(maps)[0], expected.amax(0))


def test_the_best_has_no_gradient_and_no_rows_are_no_trouble() -> None:
    head = PixelControl(5, (11, 11), COMPOSITE)
    assert not head.best(head(torch.randn(2, 5))).requires_grad
    assert head.best(head(torch.zeros(0, 5))).shape == (0, 11, 11)


def test_layers_and_first_weights_are_unreals() -> None:
    """256 → 9·9·32, then 4 × 4 kernels for V and six advantages, all uniform in 1/√inputs."""
    head = PixelControl(256, (20, 20), Discrete(6))
    assert parameters(head) == 256 * 2592 + 2592 + 32 * 16 * 7 + 7
    for layer, inputs in ((head.fc, 256), (head.deconv, 32 * 16)):
        for p in (layer.weight, layer.bias):
            assert p.abs().max().item() <= inputs**-0.5
        assert layer.weight.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.05)
    assert not head.state_dict().keys() - dict(head.named_parameters()).keys()


def test_cells_of_what_capture_the_flag_shows() -> None:
    assert control_cells(World(view="pixels").obs["view"].shape) == (20, 20)
    assert control_cells(World(view="window").obs["view"].shape) == (11, 11)
    assert control_cells((2, 5, 8)) == (5, 8)
    for view in ((3, 96, 96), (3, 84, 60), (1, 2, 9), (12,)):
        with pytest.raises(UserError, match=r"--auxiliary pixel: the view is \[.*\], but must be \[C, 84, 84\]"):
            control_cells(view)


@pytest.mark.parametrize("nested", [False, True])
def test_real_numbers_are_no_choice_to_value(nested: bool) -> None:
    box = Box((2,), np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    with pytest.raises(
        UserError, match=r"^--auxiliary pixel: needs discrete actions, but the environment's are .*\[2\] real"
    ):
        PixelControl(4, (11, 11), {"a": Discrete(2), "b": box} if nested else box)


def test_reward_prediction_takes_three_rows_the_oldest_first() -> None:
    torch.manual_seed(3)
    head = RewardPrediction(5)
    assert parameters(head) == 15 * 128 + 128 + 128 * 3 + 3
    x = torch.randn(3, 4, 5)
    out = head(x)
    assert out.shape == (4, 3)
    row = torch.cat([x[0, 2], x[1, 2], x[2, 2]])
    expected = head.logits.weight @ (head.hidden.weight @ row + head.hidden.bias).relu() + head.logits.bias
    torch.testing.assert_close(out[2], expected)
    assert not torch.allclose(head(x.flip(0)), out)
