"""Actions that name a unit: numbers beside a plain twin, acting and learning, what is drawn, the order of units."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.nets import factory
from polyplay.nets.action_heads import UnitPointer, for_space
from polyplay.nets.device import set_precision
from tests.nets.fights import FIGHT, OBS, SETS, doubles, rows
from tests.nets.helpers import bind, play


def naming(unit: Tensor, primary: int) -> dict[str, Tensor]:
    return {"primary": torch.full_like(unit, primary), "unit": unit, "offset": torch.zeros_like(unit)}


def test_its_numbers_are_a_plain_twins_and_stand_where_the_head_looks_for_them():
    torch.manual_seed(0)
    head = for_space(FIGHT.action)
    pointer = UnitPointer(7, head, "unit", 6)
    x, units = torch.randn(5, 7), torch.randn(5, 9 * 6)
    got = pointer(x, units).detach().numpy()
    assert got.shape == (5, head.size) == (5, 4 + 2 * 9 + 2 * 5)
    ((weight, bias),), ((others, shift),) = doubles(pointer.query), doubles(pointer.others)
    for row, features, unit in zip(got, x.double().numpy(), units.double().numpy(), strict=True):
        beside, queries = others @ features + shift, weight @ features + bias
        expected = list(beside[:4])
        for user in range(2):
            for u in range(9):
                products = (queries[6 * user + k] * unit[6 * u + k] for k in range(6))
                expected.append(sum(products) / np.sqrt(6))
        np.testing.assert_allclose(row, [*expected, *beside[4:]], atol=1e-5)
    params = torch.from_numpy(got)
    for place, value in enumerate((1, 3)):
        whole = head.logp(params[:1].expand(9, -1), naming(torch.arange(9), value))
        own = params[0, 4 + 9 * place : 13 + 9 * place].log_softmax(0)
        torch.testing.assert_close(whole - whole[0], own - own[0])


@pytest.mark.parametrize(("core", "previous"), [("none", False), ("lstm", False), ("gru", True), ("temporal", False)])
def test_acting_and_learning_say_the_same_to_the_bit(core, previous):
    for seed in range(8):
        torch.manual_seed(seed)
        n, lanes, hidden, embedding = 2 + seed % 5, 1 + 3 * seed % 17, (128, 21, 5)[seed % 3], (32, 5, 16)[seed % 3]
        options = {"width": (0, 12)[seed % 2], "hidden": hidden, "embedding": embedding}
        policy = factory.make("five", FIGHT, core, 19, previous, **options)
        for p in policy.parameters():
            p.data += 0.1 * torch.randn_like(p)
        bind(policy)
        batch, state = rows(n, lanes, policy.noise), policy.initial(lanes)
        said, _ = play(policy, batch, state)
        given = {k: said[k] for k in ("action", "latent_noise") if k in said}
        out = policy.unroll({**{k: v for k, v in batch.items() if k != "noise"}, **given}, state)
        assert torch.equal(out["logp"], said["logp"]), (seed, n, lanes)
        assert torch.equal(out["value"], said["value"]), (seed, n, lanes)


def test_a_lane_is_to_the_bit_the_same_in_any_batch():
    torch.manual_seed(0)
    policy = factory.make("five", FIGHT, "lstm", 24)
    batch = rows(3, 21, policy.noise)
    whole, _ = play(policy, batch, policy.initial(21))
    for lanes in (slice(0, 1), slice(3, 8), slice(5, 21)):
        part, _ = play(policy, tree.map(lambda x, at=lanes: x[:, at], batch), policy.initial(lanes.stop - lanes.start))
        for (_, a), (_, b) in zip(tree.leaves(part), tree.leaves(whole), strict=True):
            assert torch.equal(a, b[:, lanes])


def test_in_bfloat16_only_the_torso_is():
    torch.manual_seed(0)
    policy = factory.make("five", FIGHT, "lstm", 24)
    batch = rows(3, 8, policy.noise)
    exact, _ = play(policy, batch, policy.initial(8))
    half, _ = play(set_precision(policy, "bfloat16"), batch, policy.initial(8))
    assert half["value"].dtype == torch.float32
    assert not torch.equal(half["value"], exact["value"])
    torch.testing.assert_close(half["value"], exact["value"], atol=0.05, rtol=0.05)


def test_no_illegal_unit_is_drawn():
    torch.manual_seed(1)
    policy, n = factory.make("five", FIGHT, init="torch"), 20_000
    step = tree.map(lambda x: x[0], rows(1, n, policy.noise))
    with torch.no_grad():
        for greedy in (False, True):
            seen = {k: v for k, v in step.items() if k != "noise" or not greedy}
            action = policy.act(seen, {})[0]["action"]
            names = (action["primary"] == 1) | (action["primary"] == 3)
            allowed = step["mask"]["unit"][torch.arange(n), action["primary"], action["unit"]]
            assert names.sum() > 1000
            assert allowed[names].all()
            assert (action["unit"][~names] == 0).all()
            assert set(action["unit"].tolist()) == set(range(9))


@pytest.mark.parametrize("path", SETS)
def test_who_stands_elsewhere_in_a_set_is_named_there_with_the_same_probability(path):
    torch.manual_seed(0)
    policy = factory.make("five", FIGHT, init="torch", hidden=16)
    for p in policy.actions.parameters():
        p.data *= 5
    obs = rows(1, 9, 1)["obs"]
    obs = {k: v[0, :1].expand(9, *v.shape[2:]) for k, v in obs.items()}  # one observation, and each unit named in it
    place, order = SETS[path], torch.arange(9)
    order[place] = order[place].flip(0)

    def told(seen: dict, unit: Tensor) -> dict:
        whole = {"obs": seen, "first": torch.zeros(9, dtype=torch.bool), "action": naming(unit, 3)}
        return policy.unroll(tree.map(lambda x: x[None], whole), {})

    before, after = told(obs, order), told({**obs, path: obs[path].flip(1)}, torch.arange(9))
    torch.testing.assert_close(after["logp"], before["logp"])
    assert torch.equal(after["value"], before["value"])
    assert before["logp"].std() > 1e-3


def test_other_heads_hear_features_alone():
    torch.manual_seed(0)
    policy = factory.make("five", FIGHT, "lstm", 8, hidden=12, auxiliary=("reward", "value"))
    assert policy.auxiliary.reward.hidden.in_features == 3 * 12
    batch, state = rows(3, 4, policy.noise), policy.initial(4)
    said, _ = play(policy, batch, state)
    more = {"recent": {k: v[:, :2] for k, v in rows(3, 4, 1)["obs"].items()}, "replayed": {**batch, "state": state}}
    out = policy.unroll({**batch, "action": said["action"], **more}, state)
    assert out["reward_logits"].shape == (2, 3)
    assert torch.equal(out["replayed_value"], out["value"])


def test_units_are_normalised_alike_wherever_they_stand():
    """And that one is there passes, though it never changes."""
    torch.manual_seed(0)
    policy = factory.make("five", FIGHT, inputs="normalize")
    batch = rows(5, 6, 1)
    batch["obs"]["allies"][..., 0], batch["obs"]["enemies"][..., 0] = 1, 0
    batch["obs"]["towers"][..., 1:] = 3 + 5 * batch["obs"]["towers"][..., 1:]
    for _ in range(30):
        policy.observe(batch)
    seen = policy.inputs(tree.map(lambda x: x.flatten(0, 1), batch["obs"]))
    for path in SETS:
        assert torch.equal(seen[path][..., 0], batch["obs"][path].flatten(0, 1)[..., 0])
    there = seen["towers"][seen["towers"][..., 0] > 0][:, 1]
    assert there.std().item() == pytest.approx(1, abs=0.2)
    moments = policy.inputs.moments[list(OBS).index("towers")]
    assert moments.mean.shape == (2,)
    assert moments.mean[1].item() == pytest.approx(3, abs=2)
    assert policy.inputs.moments[list(OBS).index("enemies")].count == 0
