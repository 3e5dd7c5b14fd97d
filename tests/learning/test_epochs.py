"""Which rows a pass takes, in which order, and when it stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from polyplay.learning import policy_losses
from polyplay.learning.learner import Epochs, Learner, Minibatches, shuffled_order
from tests.learning.test_learner import _finish, _me, _rows, _task


def test_every_pass_takes_every_place_once_in_an_order_of_its_own():
    places = np.array([3, 5, 8, 13, 21, 34, 55])
    found = list(shuffled_order(places, Epochs(3, 2), (1, 2)))
    assert [[len(part) for part in epoch] for epoch in found] == [[4, 3]] * 3
    orders = [np.concatenate(epoch).tolist() for epoch in found]
    assert all(sorted(o) == places.tolist() for o in orders)
    assert len({tuple(o) for o in orders}) == 3
    again = list(shuffled_order(places, Epochs(3, 2), (1, 2)))
    assert all(np.array_equal(a, b) for x, y in zip(found, again, strict=True) for a, b in zip(x, y, strict=True))


def _parts(state=None):
    rows = {k: torch.from_numpy(v) for k, v in _rows(3, version=5).items()}
    rows["version"][1] = 7
    targets = policy_losses.PPO().prepare(rows)
    return rows, Minibatches(rows, state or {}, targets, rows["version"].numpy())


def test_single_transitions_are_those_of_the_rollout_and_all_valid():
    rows, parts = _parts()
    assert len(parts.places) == 22  # 24 transitions, 2 of them void
    at = parts.places[[0, 7, 21]]
    taken, state, version = parts.take(at)
    assert state == {}
    assert bool(taken["valid"].all())
    for k, place in enumerate(at):
        t, b = divmod(int(place), 6)
        assert torch.equal(taken["obs"][0, k], rows["obs"][t, b])
        assert taken["logp"][0, k] == rows["logp"][t, b]
        assert version[k] == rows["version"][t, b]


def test_with_memory_whole_lanes_are_taken_with_the_state_before_them():
    _, parts = _parts({"h": torch.arange(6.0)})
    taken, state, version = parts.take(np.array([4, 0]))
    assert taken["obs"].shape == (4, 2, 5)
    assert state["h"].tolist() == [4.0, 0.0]
    assert len(version) == int(taken["valid"].sum()) == 7  # lane 0 has a void transition
    assert parts.places.tolist() == [0, 1, 2, 3, 4, 5]


def _whole(state=None):
    rows, _ = _parts()
    version = rows["version"].numpy()
    return rows, Minibatches(rows, state or {}, policy_losses.APPO().prepare(rows), version, whole=True)


def test_whole_lanes_have_all_their_rows_for_a_loss_that_makes_its_own_targets():
    rows, parts = _whole()
    assert parts.places.tolist() == [0, 1, 2, 3, 4, 5], "also of lanes with a void transition"
    taken, state, version = parts.take(np.array([4, 0]))
    assert state == {}
    for name, x in taken.items():
        assert torch.equal(x, rows[name][:, [4, 0]]), name
    assert taken["obs"].shape == (5, 2, 5), "the last row too"
    assert {"reward", "terminated", "first"} <= taken.keys()
    valid = ~rows["first"][1:, [4, 0]].numpy()
    assert version.tolist() == rows["version"][:-1, [4, 0]].numpy()[valid].tolist()
    assert len(version) == 7
    assert 7 in version


def test_all_lanes_in_one_part_are_the_rows_themselves():
    """No copy of observations, whatever the pass's order."""
    rows, parts = _whole({"h": torch.arange(6.0)})
    taken, state, version = parts.take(np.array([5, 3, 0, 1, 2, 4]))
    assert taken["obs"].data_ptr() == rows["obs"].data_ptr()
    assert taken["obs"].shape == rows["obs"].shape
    assert state["h"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "in the rows' order"
    assert len(version) == 22
    fewer, _, _ = parts.take(np.array([5, 3, 0, 1, 2]))
    assert fewer["obs"].data_ptr() != rows["obs"].data_ptr()


def test_updates_are_those_of_all_passes():
    assert Epochs(3, 4).updates == 12
    assert Epochs(1, 1).updates == 1
    ctx, each = _me(), Epochs(3, 2)
    learner = _learner(ctx, each)
    _finish(learner.step(_rows(0), {}))
    assert learner.version == each.updates


def test_a_loss_on_whole_lanes_counts_as_others_do():
    ctx = _me()
    learner = _learner(ctx, Epochs(3, 2), loss=policy_losses.APPO())
    for i in range(2):
        _finish(learner.step(_rows(i, version=6 * i), {}))
    assert (learner.version, learner.learnt) == (12, 2 * 22)
    assert ctx.counters.get("lag_count") == 2 * 3 * 22
    assert ctx.counters.get("lag_max") == 5


def test_whole_lanes_of_one_part_are_one_update_on_all_rows():
    """With one pass in one part the gradient is that of the loss on the rollout itself."""
    loss, rows = policy_losses.APPO(normalize_advantage=False), _rows(2)
    learner, twin = (_learner(_me(), Epochs(1, 1), loss=loss) for _ in range(2))
    batch = {k: torch.from_numpy(v) for k, v in rows.items()}
    loss(twin.policy.unroll(batch, {}), batch, twin.spec.hyperparameters).loss.backward()
    _finish(learner.step(rows, {}))
    assert twin.vector.grad.any()
    torch.testing.assert_close(learner.vector.grad, twin.vector.grad)


def _learner(ctx, passes, **more):
    spec = _task(loss=policy_losses.PPO(anneal_clip=False), total=1e6, passes=passes)
    return Learner(ctx, replace(spec, **more))


def test_steps_count_once_and_every_update_has_its_own_lag():
    ctx = _me()
    learner = _learner(ctx, Epochs(3, 2))
    for i in range(2):
        _finish(learner.step(_rows(i, version=6 * i), {}))
    assert learner.version == 12
    assert learner.learnt == 2 * 22
    assert ctx.counters.get("lag_count") == 2 * 3 * 22
    assert ctx.counters.get("lag_sum") == 2 * 11 * (0 + 1 + 2 + 3 + 4 + 5)
    assert ctx.counters.get("lag_max") == 5


def test_too_far_from_the_policy_that_acted_ends_the_passes():
    near, far = _learner(_me(), Epochs(5, 2, target_kl=1e9)), _learner(_me(), Epochs(5, 2, target_kl=1e-9))
    for learner in (near, far):
        _finish(learner.step(_rows(0), {}))
    assert near.version == 10
    assert far.version == 1, "rows that another policy acted on"
    assert near.learnt == far.learnt == 22
