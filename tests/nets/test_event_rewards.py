"""Rewards of an agent's own: their values, what they follow, and that they travel with the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.nets.actor_critic import EventRewards

NUMBERS = st.integers(-40, 40).map(lambda x: x / 8)  # whose sums are exact


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.lists(NUMBERS, min_size=n, max_size=n), st.integers(0, 99))))
def test_a_reward_is_the_sum_of_what_happened_times_its_weight(drawn):
    weights, seed = drawn
    names = [f"e{i}" for i in range(len(weights))]
    rewards = EventRewards(names)
    rewards.follow({f"reward_{name}": weight for name, weight in zip(names, weights, strict=True)})
    events = torch.randint(0, 4, (3, 2, len(names)), generator=torch.Generator().manual_seed(seed)).float()
    made = rewards(events)
    assert made.shape == (3, 2)
    for t in range(3):
        for lane in range(2):
            pairs = zip(events[t, lane].tolist(), weights, strict=True)
            assert made[t, lane].item() == sum(count * weight for count, weight in pairs)


def test_only_weights_that_are_named_are_taken_over():
    rewards = EventRewards(("kill", "death"))
    assert rewards.weights.tolist() == [0.0, 0.0]
    rewards.follow({"reward_death": -0.5, "death": 3.0, "reward_flag": 2.0, "learning_rate": 1.0})
    assert rewards.weights.tolist() == [0.0, -0.5]
    rewards.follow({"reward_kill": 2.0})
    assert rewards.weights.tolist() == [2.0, -0.5]


def test_weights_travel_in_the_state_dict_and_no_gradient_changes_them():
    rewards, other = EventRewards(("kill", "death")), EventRewards(("kill", "death"))
    rewards.follow({"reward_kill": 1.5, "reward_death": -1.0})
    other.load_state_dict(rewards.state_dict())
    assert other.weights.tolist() == [1.5, -1.0]
    assert list(rewards.state_dict()) == ["weights"]
    assert not list(rewards.parameters())
    assert not rewards(torch.ones(2)).requires_grad


@pytest.mark.parametrize("count", [1, 2, 7, 12, 33, 64])
def test_a_row_has_the_same_bits_in_any_batch(count):
    torch.manual_seed(count)
    rewards = EventRewards([str(i) for i in range(count)])
    rewards.weights.copy_(torch.randn(count))
    events = torch.rand(9, 13, count) * 3
    whole = rewards(events)
    assert torch.equal(rewards(events[4]), whole[4])
    for lanes in (slice(0, 1), slice(3, 8), slice(5, 13)):
        assert torch.equal(rewards(events[:, lanes]), whole[:, lanes])
        assert torch.equal(rewards(events[2, lanes]), whole[2, lanes])
        assert torch.equal(rewards(events[:, lanes].contiguous()), whole[:, lanes])
    assert torch.equal(rewards(events.transpose(0, 1).contiguous().transpose(0, 1)), whole)
