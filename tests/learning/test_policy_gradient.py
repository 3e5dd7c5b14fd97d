from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.learning import policy_losses, returns
from tests import twins

QUICK = settings(max_examples=80, deadline=None)
KNOBS = SimpleNamespace(entropy_cost=0.01)
HEADS = ("logp", "value", "entropy")
Case = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


@st.composite
def cases(draw: Any) -> Case:
    """Learner's outputs and rows [T+1, B] in float64, with lag, rewards beyond ±1, episodes of all kinds."""
    horizon, width = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    flags = []
    for _ in range(width):
        events = draw(st.lists(st.sampled_from(twins.EVENTS), min_size=horizon, max_size=horizon))
        flags.append(twins.lane_flags(events, draw(st.sampled_from(["first", *twins.EVENTS]))))
    return numbers(flags, draw(st.integers(0, 2**32 - 1)))


def numbers(flags: list[dict[str, list[bool]]], seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batch = {k: np.array([f[k] for f in flags]).T.copy() for k in flags[0]}
    shape = batch["first"].shape
    batch |= {"reward": rng.normal(size=shape) * 2, "value": rng.normal(size=shape)}
    batch["logp"] = -rng.exponential(size=shape)
    out = {
        "logp": -rng.exponential(size=shape),
        "value": rng.normal(size=shape),
        "entropy": rng.random(shape),
    }
    return out, batch


def example(seed: int = 0) -> Case:
    """8 steps of 3 lanes with terminations, a truncation, an episode of length 1 and a restart."""
    kinds = [
        ("first", ["go", "terminate", "first", "terminate", "first", "go", "go", "truncate"]),
        ("go", ["go", "truncate", "first", "go", "go", "restart", "go", "go"]),
        ("terminate", ["first", "go", "both", "first", "go", "go", "go", "go"]),
    ]
    return numbers([twins.lane_flags(events, begin) for begin, events in kinds], seed)


def tensors(arrays: dict[str, np.ndarray], grad: bool = False) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, requires_grad=grad) for k, v in arrays.items()}


def lane_of(batch: dict[str, np.ndarray], b: int, **more: np.ndarray) -> twins.Lane:
    return {k: v[:, b].tolist() for k, v in (batch | more).items()}


def targets(loss: Any, out: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and targets [T, B] by the twins."""
    squashed = [[twins.squash(r, loss.reward, loss.reward_scale) for r in row] for row in batch["reward"]]
    pairs = []
    for b in range(batch["reward"].shape[1]):
        if isinstance(loss, policy_losses.A2C):
            lane = lane_of(batch, b, reward=np.array(squashed))
            goal = twins.lambda_return(lane, loss.gamma, loss.lam)
            pairs.append(([t - v for t, v in zip(goal, lane["value"], strict=False)], goal))
        else:
            log_rho = out["logp"] - batch["logp"]
            lane = lane_of(batch, b, reward=np.array(squashed), value=out["value"], log_rho=log_rho)
            pairs.append(twins.vtrace(lane, loss.gamma, loss.rho, loss.c, loss.rho_pg, loss.lam)[::-1])
    advantage, target = (np.array([pair[i] for pair in pairs]).T for i in range(2))
    if getattr(loss, "normalize_advantage", False):
        real = advantage[~batch["first"][1:]]
        if real.size:
            advantage = (advantage - real.mean()) / (real.std() + 1e-8)
    return advantage, target


def gradients(loss: Any, out: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
    """What the loss returns, and its gradient for each head [T+1, B]."""
    heads = tensors(out, grad=True)
    scored = loss(heads, tensors(batch), KNOBS)
    scored.loss.backward()
    return scored, {k: heads[k].grad for k in HEADS}


@QUICK
@given(
    cases(),
    st.sampled_from(
        [
            policy_losses.A2C(),
            policy_losses.A2C(gamma=0.9, lam=0.5, value_cost=0.25, reduction="sum", value_half=True, reward="sign"),
            policy_losses.A2C(lam=0.95, normalize_advantage=True, reward="none", reward_scale=0.1),
            policy_losses.VTrace(),
            policy_losses.VTrace(gamma=0.9, rho=2.0, c=0.7, rho_pg=None, lam=0.9, reduction="mean", value_half=False),
            policy_losses.VTrace(rho=None, c=None, reward="none", value_cost=1.0),
        ]
    ),
)
def test_terms_and_gradients_equal_the_plain_twin(case: Any, loss: Any) -> None:
    out, batch = case
    scored, grads = gradients(loss, out, batch)
    terms, expected = twins.actor_critic(
        out | {"first": batch["first"]},
        *targets(loss, out, batch),
        reduction=loss.reduction,
        value_cost=loss.value_cost,
        value_half=loss.value_half,
        entropy_cost=KNOBS.entropy_cost,
    )
    assert scored.loss.item() == pytest.approx(terms["loss"], rel=1e-6, abs=1e-8)
    for name, value in terms.items():
        assert scored.metrics[name].item() == pytest.approx(value, rel=1e-6, abs=1e-8), name
    for name in HEADS:
        np.testing.assert_allclose(grads[name].numpy(), expected[name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("loss", [policy_losses.A2C(lam=0.9), policy_losses.A2C(reduction="sum", value_half=True)])
def test_a2c_gradient_equals_finite_differences(loss: Any) -> None:
    out, batch = example()
    _, grads = gradients(loss, out, batch)
    for name in HEADS:
        for at in np.ndindex(*out[name].shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = {k: v.copy() for k, v in out.items()}
                moved[name][at] += step
                sides.append(loss(tensors(moved), tensors(batch), KNOBS).loss.item())
            assert grads[name][at].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-7), (name, at)


@pytest.mark.parametrize("make", [policy_losses.A2C, policy_losses.VTrace])
def test_sum_is_mean_times_the_valid_transitions(make: Any) -> None:
    out, batch = example()
    valid = int((~batch["first"][1:]).sum())
    total, summed = gradients(make(reduction="sum"), out, batch)
    mean, averaged = gradients(make(reduction="mean"), out, batch)
    assert 0 < valid < batch["first"][1:].size
    assert total.loss.item() == pytest.approx(mean.loss.item() * valid)
    for name in HEADS:
        torch.testing.assert_close(summed[name], averaged[name] * valid)
    assert all(total.metrics[k] == mean.metrics[k] for k in mean.metrics if k != "loss")


@pytest.mark.parametrize(
    "loss", [policy_losses.A2C(), policy_losses.A2C(normalize_advantage=True), policy_losses.VTrace()]
)
def test_what_was_chosen_on_a_final_row_counts_for_nothing(loss: Any) -> None:
    out, batch = example()
    expected, grads = gradients(loss, out, batch)
    ends, firsts = np.zeros_like(batch["first"]), batch["first"].copy()
    ends[:-1], firsts[0] = batch["first"][1:], False
    dirty = {k: v.copy() for k, v in out.items()}
    dirty["logp"][ends], dirty["entropy"][ends] = -np.inf, np.nan
    rows = {k: v.copy() for k, v in batch.items()}
    rows["logp"][ends], rows["reward"][firsts] = np.inf, np.nan
    scored, dirty_grads = gradients(loss, dirty, rows)
    assert scored.metrics == expected.metrics
    for name in HEADS:
        assert torch.equal(dirty_grads[name], grads[name])
        assert not grads[name][torch.tensor(ends)].any()
        assert not grads[name][-1].any()


@pytest.mark.parametrize("make", [policy_losses.A2C, policy_losses.VTrace])
def test_a_batch_without_any_transition_scores_zero(make: Any) -> None:
    out, batch = numbers([twins.lane_flags(["restart", "restart"], "first")], seed=1)
    for reduction in returns.REDUCTIONS:
        scored, grads = gradients(make(reduction=reduction), out, batch)
        assert scored.loss.item() == 0.0
        assert all(v.item() == 0.0 for v in scored.metrics.values())
        assert not any(grads[k].any() for k in HEADS)


def test_at_lag_0_there_is_no_correction_and_both_losses_agree() -> None:
    out, batch = example()
    batch |= {"logp": out["logp"].copy(), "value": out["value"].copy()}
    same: dict[str, Any] = {"reduction": "mean", "value_half": True}
    a2c, a2c_grads = gradients(policy_losses.A2C(**same), out, batch)
    impala, impala_grads = gradients(policy_losses.VTrace(**same), out, batch)
    assert a2c.metrics["approx_kl"].item() == impala.metrics["approx_kl"].item() == 0.0
    assert impala.metrics["rho_mean"].item() == 1.0
    assert impala.metrics["rho_clipped"].item() == 0.0
    for name in HEADS:
        torch.testing.assert_close(a2c_grads[name], impala_grads[name])
    for name in a2c.metrics:
        torch.testing.assert_close(a2c.metrics[name], impala.metrics[name])


def test_lag_shows_in_the_metrics() -> None:
    out, batch = example()
    shift = np.full_like(out["logp"], np.log(3.0))
    shift[:4] = -shift[:4]
    batch["logp"] = out["logp"] - shift
    valid = ~batch["first"][1:]
    metrics = policy_losses.VTrace()(tensors(out), tensors(batch), KNOBS).metrics
    assert metrics["rho_mean"].item() == pytest.approx(np.exp(shift[:-1])[valid].mean())
    assert metrics["rho_clipped"].item() == pytest.approx((shift[:-1] > 0)[valid].mean())
    assert metrics["approx_kl"].item() == pytest.approx(0.5 * np.log(3.0) ** 2)
    open_ended = policy_losses.VTrace(rho=None, c=None)(tensors(out), tensors(batch), KNOBS)
    assert open_ended.metrics["rho_clipped"].item() == 0.0


def test_a2c_takes_advantages_from_the_values_stored_while_acting() -> None:
    out, batch = example()
    _, before = gradients(policy_losses.A2C(), out, batch)
    _, other_values = gradients(policy_losses.A2C(), out | {"value": out["value"] + 5}, batch)
    _, other_stored = gradients(policy_losses.A2C(), out, batch | {"value": batch["value"] + 5})
    assert torch.equal(before["logp"], other_values["logp"])
    assert not torch.equal(before["logp"], other_stored["logp"])


def test_normalised_advantages_do_not_feel_the_rewards_unit() -> None:
    out, batch = example()
    small, large = (policy_losses.A2C(normalize_advantage=True, reward="none", reward_scale=s) for s in (1.0, 50.0))
    plain = policy_losses.A2C(reward="none", reward_scale=50.0)
    scaled = batch | {"value": batch["value"] * 50}
    _, first = gradients(small, out, batch)
    _, second = gradients(large, out, scaled)
    _, third = gradients(plain, out, scaled)
    torch.testing.assert_close(first["logp"], second["logp"], rtol=1e-6, atol=1e-8)
    assert third["logp"].abs().sum() > 5 * second["logp"].abs().sum()
    assert abs(first["logp"].sum().item()) < 1e-7


@pytest.mark.parametrize(
    ("how", "scale", "expected"),
    [
        ("none", 1.0, [-3.0, -0.5, 0.0, 0.25, 7.0]),
        ("none", 0.5, [-1.5, -0.25, 0.0, 0.125, 3.5]),
        ("clip", 1.0, [-1.0, -0.5, 0.0, 0.25, 1.0]),
        ("clip", 0.2, [-0.6, -0.1, 0.0, 0.05, 1.0]),
        ("sign", 1.0, [-1.0, -1.0, 0.0, 1.0, 1.0]),
    ],
)
def test_rewards_are_scaled_then_squashed(how: str, scale: float, expected: list[float]) -> None:
    raw = torch.tensor([-3.0, -0.5, 0.0, 0.25, 7.0])
    torch.testing.assert_close(returns.squash_rewards(raw, how, scale), torch.tensor(expected))
    assert raw.tolist() == [-3.0, -0.5, 0.0, 0.25, 7.0]


def test_explained_variance_is_1_for_perfect_values_and_0_for_constant_targets() -> None:
    out, batch = example()
    _, target = targets(policy_losses.A2C(), out, batch)
    out["value"][:-1] = target
    assert policy_losses.A2C()(tensors(out), tensors(batch), KNOBS).metrics["explained_variance"].item() == 1.0
    batch |= {"reward": np.zeros_like(batch["reward"]), "value": np.zeros_like(batch["value"])}
    assert policy_losses.A2C()(tensors(out), tensors(batch), KNOBS).metrics["explained_variance"].item() == 0.0


@pytest.mark.parametrize("loss", [policy_losses.A2C(), policy_losses.VTrace()])
def test_metrics_are_named_beforehand_detached_scalars_and_inputs_untouched(loss: Any) -> None:
    out, batch = example()
    heads, rows = tensors(out, grad=True), tensors(batch)
    scored = loss(heads, rows, KNOBS)
    assert tuple(scored.metrics) == loss.metrics
    assert all(v.ndim == 0 and not v.requires_grad for v in scored.metrics.values())
    assert scored.loss.requires_grad
    assert scored.loss.item() == scored.metrics["loss"].item()
    assert all(np.array_equal(rows[k].numpy(), batch[k]) for k in batch)
    assert all(np.array_equal(heads[k].detach().numpy(), out[k]) for k in out)


def test_knobs_are_read_at_every_call() -> None:
    out, batch = example()
    hyperparameters = SimpleNamespace(entropy_cost=0.0)
    first = policy_losses.A2C()(tensors(out), tensors(batch), hyperparameters)
    hyperparameters.entropy_cost = 2.0
    second = policy_losses.A2C()(tensors(out), tensors(batch), hyperparameters)
    assert (first.loss - second.loss).item() == pytest.approx(2.0 * first.metrics["entropy"].item())


@pytest.mark.parametrize("make", [policy_losses.A2C, policy_losses.VTrace])
def test_bf16_outputs_are_summed_in_fp32(make: Any) -> None:
    out, batch = example()
    low = {k: v.bfloat16().requires_grad_() for k, v in tensors(out).items()}
    rows = {k: v.float() if v.is_floating_point() else v for k, v in tensors(batch).items()}
    hyperparameters = SimpleNamespace(entropy_cost=10.0)
    scored = make()(low, rows, hyperparameters)
    scored.loss.backward()
    exact = make()({k: v.detach().float() for k, v in low.items()}, rows, hyperparameters)
    assert scored.loss.dtype == torch.float32
    torch.testing.assert_close(scored.loss, exact.loss, rtol=1e-6, atol=1e-6)
    assert all(v.grad is not None and v.grad.dtype == torch.bfloat16 for v in low.values())


@pytest.mark.parametrize("loss", [policy_losses.A2C(lam=0.9), policy_losses.VTrace(rho=None, c=None)])
def test_losses_travel_pickled_and_cannot_be_changed(loss: Any) -> None:
    assert pickle.loads(pickle.dumps(loss)) == loss
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.gamma = 0.5


@pytest.mark.parametrize("make", [policy_losses.A2C, policy_losses.VTrace])
def test_a_softmax_learns_which_arm_pays(make: Any) -> None:
    """One-step episodes of a bandit whose second arm pays; every third row is a first."""
    loss, logits = make(reduction="mean"), torch.zeros(2, requires_grad=True)
    first = torch.tensor([[True], [False]] * 4 + [[True]])
    batch = {"first": first, "terminated": ~first, "value": torch.zeros(9, 1)}
    action = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 0])[:, None]
    batch["reward"] = torch.where(batch["terminated"], action.roll(1, 0), 0).float()
    for _ in range(100):
        logp = logits.log_softmax(0)
        batch["logp"] = logp.detach()[action]
        entropy = -(logp.exp() * logp).sum().expand(9, 1)
        out = {"logp": logp[action], "value": torch.zeros(9, 1), "entropy": entropy}
        (grad,) = torch.autograd.grad(loss(out, batch, KNOBS).loss, logits)
        with torch.no_grad():
            logits -= grad
    assert logits.softmax(0)[1].item() > 0.95


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (policy_losses.A2C, {"gamma": 1.5}, "gamma is 1.5; it must be between 0 and 1"),
        (policy_losses.VTrace, {"lam": -0.1}, "lam is -0.1; it must be between 0 and 1"),
        (policy_losses.A2C, {"value_cost": -1.0}, "value_cost is -1.0; it must be 0 or more"),
        (policy_losses.A2C, {"reward_scale": 0.0}, "reward_scale is 0.0; it must be above 0"),
        (policy_losses.A2C, {"reduction": "avg"}, "reduction is 'avg'; use one of mean, sum"),
        (policy_losses.VTrace, {"reward": "clipped"}, "reward is 'clipped'; use one of clip, sign, none, scale"),
        (policy_losses.VTrace, {"rho_pg": 0.0}, "rho_pg is 0.0; it must be above 0"),
        (policy_losses.VTrace, {"rho": 0.5}, "c is 1.0 and rho 0.5; V-trace needs c <= rho"),
        (policy_losses.VTrace, {"c": None}, "c is None and rho 1.0; V-trace needs c <= rho"),
    ],
)
def test_settings_out_of_range_are_named(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**options)


@pytest.mark.parametrize("loss", [policy_losses.A2C(), policy_losses.VTrace()])
def test_wrong_shapes_are_named(loss: Any) -> None:
    out, batch = (tensors(x) for x in example())
    with pytest.raises(ValueError, match=r"out value \[9, 3, 1\].*batch reward \[9, 3\]"):
        loss(out | {"value": out["value"][..., None]}, batch, KNOBS)
    with pytest.raises(ValueError, match=r"out logp \[8, 3\]"):
        loss(out | {"logp": out["logp"][1:]}, batch, KNOBS)
    with pytest.raises(ValueError, match=r"batch value \[9, 1\]"):
        loss(out, batch | {"value": batch["value"][:, :1]}, KNOBS)


@pytest.mark.parametrize("make", [policy_losses.A2C, policy_losses.VTrace])
def test_rewards_are_scaled_by_what_the_policy_says(make: Any) -> None:
    out, batch = (tensors(x) for x in example())
    said = out | {"reward_scale": torch.tensor(0.25)}
    for scale in (0.5, 1e9):
        bound = (batch["reward"] * scale * 0.25).clamp(-10, 10)
        want = make(reward="none")(out, batch | {"reward": bound}, KNOBS)
        assert make(reward="scale", reward_scale=scale)(said, batch, KNOBS).loss == want.loss
    with pytest.raises(ValueError, match="reward='scale' needs a policy that says reward_scale"):
        make(reward="scale")(out, batch, KNOBS)
