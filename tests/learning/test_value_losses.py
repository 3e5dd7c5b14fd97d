"""Losses of action values, and of AlphaGo Zero, against plain twins: targets, priorities, symmetries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.core import numbers
from polyplay.core.numbers import unscale
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Discrete
from polyplay.games.boards import GAMES, Game
from polyplay.learning import value_losses
from polyplay.learning.losses import AlphaZeroLoss
from polyplay.learning.value_losses import DPGLoss, QLoss
from polyplay.nets import factory, q_network
from polyplay.nets.policy import Policy
from tests import twins

QUICK = settings(max_examples=60, deadline=None)
SPEC = EnvSpec(Field((5,), "float32"), Discrete(3))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def transitions(lanes: int, seed: int = 0, size: float = 3.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs over 3 actions and a batch, float64."""
    draw = np.random.default_rng(seed)
    out = {k: torch.tensor(draw.normal(size=(lanes, 3)) * size) for k in ("q", "target", "online")}
    batch = {"action": torch.tensor(draw.integers(3, size=lanes)), "return": torch.tensor(draw.normal(size=lanes))}
    batch |= {"discount": torch.tensor(draw.choice([0.0, 0.9], size=lanes)), "weight": torch.tensor(draw.random(lanes))}
    return out, batch


def scored(loss: Any, out: dict[str, Tensor], batch: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """The result and its gradient for out["q"]."""
    q = out["q"].clone().requires_grad_()
    result = loss.score({**out, "q": q}, batch)
    result.loss.backward()
    return result, q.grad


# ------------------------------------------------------------------------------------------------ Q
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_replicas_average_is_the_gradient_of_their_whole_batch(reduction: str) -> None:
    out, batch = transitions(8)
    _, whole = scored(QLoss(reduction), out, batch)
    for half in (slice(4), slice(4, 8)):
        mine, theirs = ({k: v[half] for k, v in some.items()} for some in (out, batch))
        _, part = scored(QLoss(reduction, replicas=2), mine, theirs)
        torch.testing.assert_close(part / 2, whole[half])


@QUICK
@given(
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([0.0, 1.0, 0.25]),
    st.booleans(),
    st.booleans(),
)
def test_the_gradient_of_q_is_the_limited_error(
    lanes: int, seed: int, reduction: str, clip: float, double: bool, weights: bool
) -> None:
    out, batch = transitions(lanes, seed)
    if not double:
        out.pop("online")
    if not weights:
        batch.pop("weight")
    result, grad = scored(QLoss(reduction, clip), out, batch)
    judge = out["online"] if double else out["target"]
    bound = clip or float("inf")
    for b in range(lanes):
        a, w = int(batch["action"][b]), float(batch["weight"][b]) if weights else 1.0
        goal = batch["return"][b] + batch["discount"][b] * out["target"][b, judge[b].argmax()]
        error = float(goal - out["q"][b, a])
        expected = -w * max(-bound, min(bound, error))
        row = [0.0] * 3
        row[a] = expected / (lanes if reduction == "mean" else 1)
        assert grad[b].tolist() == pytest.approx(row, rel=1e-9, abs=1e-12)
        assert float(result.priority[b]) == pytest.approx(abs(error), rel=1e-9)
    assert not result.priority.requires_grad
    assert set(result.metrics) == set(QLoss.metrics)


def test_masks_of_the_second_observation_bound_what_is_looked_for() -> None:
    out, batch = transitions(4)
    batch["discount"][:] = 0.9
    legal = torch.zeros(2, 4, 3, dtype=torch.bool)
    legal[1, :, 2] = True
    result = QLoss(clip=0.0).score(out, {**batch, "mask": legal})
    goal = batch["return"] + 0.9 * out["target"][:, 2]
    assert float(result.metrics["target_mean"]) == pytest.approx(float(goal.mean()))


def test_what_is_not_finite_is_shown() -> None:
    out, batch = transitions(3)
    batch["return"][1] = torch.nan
    for loss, more in ((QLoss(), ()), (value_losses.CategoricalLoss(), (7,))):
        wide = {k: v.reshape(3, 3, *[1] * len(more)).repeat(1, 1, *more).float() for k, v in out.items()}
        result = loss.score(wide, {k: v.float() if v.is_floating_point() else v for k, v in batch.items()})
        assert result.loss.isnan()
        assert result.priority.isnan().tolist() == [False, True, False]


# ------------------------------------------------------------------------------------------------ categorical
@QUICK
@given(st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_the_gradient_of_the_categorical_loss_is_the_difference_of_distributions(
    lanes: int, seed: int, double: bool
) -> None:
    rng = np.random.default_rng(seed)
    out = {k: torch.tensor(rng.normal(size=(lanes, 3, 5))) for k in ("q", "target", "online")}
    _, batch = transitions(lanes, seed)
    if not double:
        out.pop("online")
    result, grad = scored(value_losses.CategoricalLoss(-2.0, 2.0, "ce"), out, batch)
    divergence, floors = scored(value_losses.CategoricalLoss(-2.0, 2.0, "kl"), out, batch)
    assert torch.equal(grad, floors)
    z = np.linspace(-2.0, 2.0, 5)
    total = 0.0
    for b in range(lanes):
        a, w = int(batch["action"][b]), float(batch["weight"][b])
        judge = (out["online"] if double else out["target"])[b].softmax(-1).numpy() @ z
        ahead = out["target"][b, judge.argmax()].softmax(-1).tolist()
        m = np.array(twins.project(ahead, float(batch["return"][b]), float(batch["discount"][b]), -2.0, 2.0))
        p = out["q"][b, a].softmax(-1).numpy()
        scale = w / lanes
        expected = np.zeros((3, 5))
        expected[a] = scale * (p - m)
        np.testing.assert_allclose(grad[b].numpy(), expected, atol=1e-6)
        assert float(result.priority[b]) == pytest.approx(-(m * np.log(p)).sum(), rel=1e-4)
        floor = sum(x * np.log(x) for x in m if x > 0)
        assert float(divergence.priority[b]) == pytest.approx(floor - (m * np.log(p)).sum(), rel=1e-3, abs=1e-5)
        total -= scale * (m * np.log(p)).sum()
    assert float(result.loss.detach()) == pytest.approx(total, rel=1e-4)
    assert set(result.metrics) == set(value_losses.CategoricalLoss.metrics)


# ------------------------------------------------------------------------------------------------ sequences
def rows(length: int, width: int, seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    batch = {k: torch.tensor(draw.random((length, width)) < 0.15) for k in ("terminated", "first")}
    batch["first"][1:] |= batch["terminated"][:-1]
    batch["valid"] = torch.ones(length, width, dtype=torch.bool)
    batch["valid"][length - int(draw.integers(3)) :, 0] = False
    reward, action = draw.normal(size=(length, width)) * 2, draw.integers(3, size=(length, width))
    return {**batch, "reward": torch.tensor(reward), "action": torch.tensor(action)}


@QUICK
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([1e-3, 0.0]))
def test_sequences_equal_the_plain_twin(seed: int, n: int, rescale: float) -> None:
    burn, length, width = seed % 3, 8, 3
    batch = rows(burn + length, width, seed)
    batch["weight"] = torch.tensor(np.random.default_rng(seed).random(width))
    draw = np.random.default_rng(seed + 1)
    out = {k: torch.tensor(draw.normal(size=(length, width, 3)) * 2) for k in ("q", "target", "online")}
    loss = value_losses.SequenceLoss(gamma=0.9, n=n, rescale=rescale)
    result, grad = scored(loss, out, batch)
    best = out["online"].argmax(-1)
    ahead = q_network.take_action(out["target"], best).numpy()
    total = 0.0
    for b in range(width):
        keys = ("terminated", "first", "valid")
        lane: dict[str, Any] = {k: batch[k][burn:, b].tolist() for k in keys}
        lane |= {"reward": batch["reward"][burn:, b].tolist(), "ahead": ahead[:, b].tolist()}
        goal, learnt = twins.sequence(lane, 0.9, n, rescale or None)
        actions = batch["action"][burn:, b]
        errors = [goal[i] - float(out["q"][i, b, actions[i]]) for i in range(length - 1) if learnt[i]]
        weight = float(batch["weight"][b])
        total += weight * sum(0.5 * e * e for e in errors) / width
        size = [abs(e) for e in errors]
        priority = 0.9 * max(size) + 0.1 * sum(size) / len(size) if size else 0.0
        assert float(result.priority[b]) == pytest.approx(priority, rel=1e-6)
        expected = np.zeros((length, 3))
        for i, e in zip([i for i in range(length - 1) if learnt[i]], errors, strict=True):
            expected[i, actions[i]] = -weight * e / width
        np.testing.assert_allclose(grad[:, b].numpy(), expected, rtol=1e-6, atol=1e-9)
    assert float(result.loss.detach()) == pytest.approx(total, rel=1e-6)
    assert set(result.metrics) == set(value_losses.SequenceLoss.metrics)
    learnt = [(i, b) for i in range(length - 1) for b in range(width) if grad[i, b].any()]
    own = np.array([float(out["q"][i, b, batch["action"][burn + i, b]]) for i, b in learnt])
    if len(learnt) == round(float(result.metrics["rows_mean"]) * width) > 0:  # no error happened to be 0
        own = unscale(own, rescale) if rescale else own
        assert float(result.metrics["q_mean"]) == pytest.approx(own.mean()), "without h"


# ------------------------------------------------------------------------------------------------ settings


# ------------------------------------------------------------------------------------------------ outputs
def pair(**options: Any) -> tuple[Any, Any]:
    return tuple(factory.make_values("mlp", SPEC, hidden=(16,), **options) for _ in range(2))  # type: ignore[return-value]


def outputs(loss: Any, policy: Any, target: Any, batch: Any, state: Any = None, key: int | None = None) -> Any:
    """What a loss asks of its networks. key: the update's number, for noise; None: there is none."""
    given = list[Any]()
    drawn = {} if key is None else {k: torch.as_tensor(v) for k, v in loss.noise(policy, batch, (0, 0, key)).items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(loss), "score", lambda _, *args: given.extend(args))
        loss(policy, target, {**batch, **drawn}, state or {}, {})
    return given[0] if isinstance(given[0], dict) else given


def test_each_network_is_asked_once_and_only_the_first_pass_has_a_gradient() -> None:
    policy, target = pair(dueling=True, atoms=5)
    obs = torch.randn(2, 7, 5)
    calls: list[tuple[str, int, bool]] = []
    for name, net in (("policy", policy), ("target", target)):
        net.torso.register_forward_hook(
            lambda _m, given, _out, name=name: calls.append((name, len(given[0]), torch.is_grad_enabled()))
        )
    out = outputs(QLoss(double=True), policy, target, {"obs": obs})
    assert sorted(calls) == [("policy", 7, False), ("policy", 7, True), ("target", 7, False)]
    assert [out[k].requires_grad for k in ("q", "target", "online")] == [True, False, False]
    assert all(v.shape == (7, 3, 5) for v in out.values())
    torch.testing.assert_close(out["online"], policy.scores({"obs": obs}, {})[1])
    torch.testing.assert_close(out["target"], target.scores({"obs": obs}, {})[1])
    calls.clear()
    assert set(outputs(QLoss(), policy, target, {"obs": obs})) == {"q", "target"}
    assert len(calls) == 2


def test_burn_in_is_walked_by_both_without_gradient() -> None:
    policy, target = pair(core="lstm", core_size=6, previous=True, dueling=True)
    batch = {"obs": torch.randn(9, 4, 5), "reward": torch.randn(9, 4), "action": torch.randint(3, (9, 4))}
    batch["first"] = torch.rand(9, 4) < 0.2
    state = {"h": torch.randn(4, 6), "c": torch.randn(4, 6), "action": torch.randint(3, (4,))}
    whole = outputs(value_losses.SequenceLoss(burn_in=0), policy, target, batch, state)
    late = outputs(value_losses.SequenceLoss(burn_in=3), policy, target, batch, state)
    for k in ("q", "target", "online"):
        assert late[k].shape == (6, 4, 3)
        torch.testing.assert_close(late[k], whole[k][3:])
    gradients = []
    for out, weight in ((whole["q"][3:], 1.0), (late["q"], 1.0)):
        policy.zero_grad()
        (weight * out.square().sum()).backward()
        gradients.append(policy.core.cell.recurrent.weight.grad.clone())
    assert not torch.allclose(*gradients), "the burn-in is behind a wall"
    assert all(p.grad is None for p in target.parameters())


def test_every_pass_has_noise_of_its_own_by_the_key() -> None:
    policy, target = pair(noisy="fortunato")
    target.load_state_dict(policy.state_dict())
    obs = torch.randn(1, 6, 5).repeat(2, 1, 1)
    one, same, other = (outputs(QLoss(double=True), policy, target, {"obs": obs}, key=k) for k in (7, 7, 8))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one)
    assert not torch.equal(one["q"], one["online"])
    assert not torch.equal(one["target"], one["online"])
    quiet = outputs(QLoss(double=True), policy, target, {"obs": obs})
    assert torch.equal(quiet["q"], quiet["online"])
    assert torch.equal(quiet["q"], quiet["target"])


# polyplay/learning/value_losses.py against

TARGET_QUICK = settings(max_examples=80, deadline=None)
NAN = float("nan")


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


# ------------------------------------------------------------------------------------------------ scalar


def test_nothing_is_heard_of_what_follows_a_termination() -> None:
    logits = torch.tensor([[[NAN] * 3] * 2, [[0.0] * 3] * 2])
    made = value_losses.categorical(t(0.8, 0.8), t(0.0, 0.0), logits, 0.5, 1.5)
    torch.testing.assert_close(made[0], made[1])
    assert value_losses.td_target(t(1.0, 2.0), t(0.0, 0.5), t(NAN, 4.0)).tolist() == [1.0, 4.0]


# ------------------------------------------------------------------------------------------------ categorical


@TARGET_QUICK
@given(st.integers(2, 25), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_projections_equal_the_plain_twin_and_conserve_mass(size: int, seed: int, spread: float, again: float) -> None:
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.ones(size), size=4)
    chances[0] = np.eye(size)[rng.integers(size)]  # all on one atom
    ret = rng.normal(size=4) * spread
    ret[1] = round(ret[1])  # perhaps on an atom
    discount = np.array([again, 1.0, 0.0, 0.99])
    made = value_losses.project(*(torch.tensor(x).float() for x in (chances, ret, discount)), -10.0, 10.0)
    each = zip(chances.tolist(), ret, discount, strict=True)
    expected = torch.tensor([twins.project(p, g, d, -10.0, 10.0) for p, g, d in each], dtype=torch.float32)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(made.sum(1), torch.ones(4))
    assert (made >= 0).all()


# ------------------------------------------------------------------------------------------------ rescaling
@TARGET_QUICK
@given(st.floats(-1e6, 1e6, allow_subnormal=False), st.sampled_from([1e-3, 1e-2, 1.0]))
def test_rescaling_equals_its_plain_twin_and_its_inverse_undoes_it(x: float, eps: float) -> None:
    value = torch.tensor(x, dtype=torch.float64)
    assert numbers.rescale(value, eps).item() == pytest.approx(twins.rescale(x, eps), rel=1e-9, abs=1e-12)
    assert numbers.unscale(value, eps).item() == pytest.approx(twins.unscale(x, eps), rel=1e-6, abs=1e-9)
    assert numbers.unscale(numbers.rescale(value, eps), eps).item() == pytest.approx(x, rel=1e-12)
    assert numbers.rescale(numbers.unscale(value, eps), eps).item() == pytest.approx(x, rel=1e-12)


# ------------------------------------------------------------------------------------------------ priorities


# polyplay/learning/value_losses.py:

BOX = Box((2,), np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
DPG_SPEC = EnvSpec(Field((3,), "float32"), BOX)


def drawn(lanes: int, seed: int, size: float = 2.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs over 2 numbers and a batch, float64."""
    draw = np.random.default_rng(seed)
    out = {k: torch.tensor(draw.normal(size=lanes) * size) for k in ("q", "target", "value")}
    out |= {k: torch.tensor(draw.normal(size=(lanes, 2)) * size) for k in ("slope", "best", "raw")}
    batch = {"return": torch.tensor(draw.normal(size=lanes)), "weight": torch.tensor(draw.random(lanes))}
    return out, batch | {"discount": torch.tensor(draw.choice([0.0, 0.9], size=lanes))}


@QUICK
@given(
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 0.25]),
    st.booleans(),
    st.sampled_from([0, 0.3]),
)
def test_the_gradients_are_the_weighted_error_the_limited_slope_and_the_rein(
    lanes: int, seed: int, clip: float, weights: bool, rein: float
) -> None:
    out, batch = drawn(lanes, seed)
    if not weights:
        batch.pop("weight")
    q, best, raw = (out[k].clone().requires_grad_() for k in ("q", "best", "raw"))
    result = DPGLoss(clip, rein).score({**out, "q": q, "best": best, "raw": raw}, batch)
    result.loss.backward()
    bound, critic = clip or float("inf"), 0.0
    for b in range(lanes):
        w = float(batch["weight"][b]) if weights else 1.0
        error = float(batch["return"][b] + batch["discount"][b] * out["target"][b] - out["q"][b])
        critic += w * error**2 / 2 / lanes
        assert float(q.grad[b]) == pytest.approx(-w * error / lanes, rel=1e-9, abs=1e-12)
        assert float(result.priority[b]) == pytest.approx(abs(error), rel=1e-9)
        limited = [max(-bound, min(bound, float(x))) for x in out["slope"][b]]
        assert best.grad[b].tolist() == pytest.approx([-x / lanes for x in limited], rel=1e-9), "not weighted"
        pulled = [rein * 2.0 * (x - max(-2.0, min(2.0, x))) / lanes for x in out["raw"][b].tolist()]
        assert raw.grad[b].tolist() == pytest.approx(pulled, rel=1e-9, abs=1e-12)
    assert not result.priority.requires_grad
    assert set(result.metrics) == set(DPGLoss.metrics)
    assert float(result.metrics["critic_loss"]) == pytest.approx(critic, rel=1e-9)
    shares = {"dqda_clip_fraction": out["slope"].abs() > bound, "action_saturation": out["best"].abs() > 0.99}
    for name, x in {**shares, "policy_value": out["value"]}.items():
        assert float(result.metrics[name]) == pytest.approx(float(x.double().mean()))


def test_targets_are_the_target_networks_own_actor_and_critic() -> None:
    policy, target = (factory.make_deterministic("mlp", DPG_SPEC, actor=(8, 6), critic=(9, 7)) for _ in range(2))
    batch = {"obs": torch.randn(2, 5, 3), "action": torch.rand(5, 2)}
    out = outputs(DPGLoss(), policy, target, batch)
    best = target.act({"obs": batch["obs"][1]}, {})[0]["action"]
    twin = target.unroll({"obs": batch["obs"][1:], "action": best[None]}, {})["chosen"][0]
    torch.testing.assert_close(out["target"], twin, atol=1e-6, rtol=1e-5)
    assert not out["target"].requires_grad
    now = policy.unroll({"obs": batch["obs"][:1], "action": batch["action"][None]}, {})
    torch.testing.assert_close(out["q"], now["chosen"][0])
    torch.testing.assert_close(out["value"], now["value"][0])


B, A = 5, 4


def positions(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    mask = rng.random((2, B, A)) < 0.6
    mask[..., 1] = True
    visits = rng.random((B, A)) * mask[0]
    visits /= visits.sum(1, keepdims=True)
    z = rng.integers(-1, 2, B)
    made = {"mask": mask, "visits": visits.astype(np.float32), "return": z.astype(np.float32)}
    return {k: torch.from_numpy(v) for k, v in made.items()}


def equation_1(logits: torch.Tensor, value: torch.Tensor, rows: dict[str, torch.Tensor]) -> float:
    """Equation 1 without c‖θ‖², one number at a time."""
    total = 0.0
    for b in range(B):
        legal = [a for a in range(A) if rows["mask"][0, b, a]]
        sum_ = math.fsum(math.exp(float(logits[b, a])) for a in legal)
        log_p = {a: float(logits[b, a]) - math.log(sum_) for a in legal}
        total += (float(rows["return"][b]) - float(value[b])) ** 2
        total -= math.fsum(float(rows["visits"][b, a]) * log_p[a] for a in legal)
    return total / B


def test_it_is_equation_1():
    torch.manual_seed(1)
    logits, value, rows = torch.randn(B, A), torch.rand(B) * 2 - 1, positions()
    scored = AlphaZeroLoss(GAMES["tic_tac_toe"]).score(logits, value, rows)
    assert float(scored.loss) == pytest.approx(equation_1(logits, value, rows), rel=1e-5)
    assert set(scored.metrics) == set(AlphaZeroLoss.metrics)
    assert float(scored.metrics["policy_kl"]) >= 0


def test_its_gradient_is_that_of_a_cross_entropy_over_legal_moves():
    torch.manual_seed(2)
    rows = positions(3)
    logits, value = torch.randn(B, A, requires_grad=True), torch.rand(B, requires_grad=True)
    AlphaZeroLoss(GAMES["tic_tac_toe"]).score(logits, value, rows).loss.backward()
    p = logits.detach().masked_fill(~rows["mask"][0], -torch.inf).softmax(1)
    torch.testing.assert_close(logits.grad, (p - rows["visits"]) / B)
    torch.testing.assert_close(value.grad, 2 * (value.detach() - rows["return"]) / B)


class Cells(Policy):
    """A network whose logit of an action is the mover's stone there, or in the top row of its column."""

    def __init__(self, board: Game):
        super().__init__()
        self.board = board

    def unroll(self, rows: dict[str, torch.Tensor], state: object) -> dict[str, torch.Tensor]:
        own = rows["obs"][0][:, 0]
        self.shown = rows["obs"][0]
        logits = own[:, 0] if self.board.gravity else own.flatten(1)
        return {"logits": logits[None], "value": own.sum((1, 2))[None]}


@pytest.mark.parametrize("name", GAMES)
def test_logits_are_of_the_actions_as_they_were(name):
    board, n = GAMES[name], 200
    rng = np.random.default_rng(4)
    bits = rng.random((2, n, *board.planes)) < 0.5
    planes = torch.from_numpy(bits.astype(np.float32))
    loss, network = AlphaZeroLoss(board, seed=7), Cells(board)
    rows = {"obs": torch.from_numpy(np.packbits(bits.reshape(2, n, -1), axis=2)), "action": torch.zeros(n)}
    logits, *_ = outputs(loss, network, None, rows, key=3)
    own = planes[0, :, 0]
    torch.testing.assert_close(logits, own[:, 0] if board.gravity else own.flatten(1))
    changed = (network.shown != planes[0]).flatten(1).any(1)
    assert 0 < int(changed.sum()) < n, "some are shown as they are, some are not"
    assert torch.equal(network.shown.sum((2, 3)), network.shown.flatten(2).sum(2))
    torch.testing.assert_close(network.shown.flatten(2).sort(2).values, planes[0].flatten(2).sort(2).values)


def test_the_same_update_shows_the_same_images_and_every_symmetry_comes():
    board = GAMES["tic_tac_toe"]
    policy, batch = Cells(board), {"action": torch.zeros(400)}
    loss = AlphaZeroLoss(board, seed=7)
    one, again, other = (loss.noise(policy, batch, (0, 0, key))["cells"] for key in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(np.unique(one, axis=0)) == len(board.symmetries) == 8
    plain = AlphaZeroLoss(board, turned=False).noise(policy, batch, (0, 0, 1))
    assert (plain["cells"] == np.arange(board.cells)).all()
    assert (plain["actions"] == np.arange(board.actions)).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: value_losses.td_target(*torch.ones(2, 2), torch.zeros(3)), r"must be one \[B\]; .*\[2\], \[3\]"),
        (lambda: value_losses.categorical(*torch.ones(2, 2), torch.zeros(2, 4), 0.0, 1.0), r"\[B, A, K\].*\[2, 4\]"),
        (lambda: value_losses.project(torch.ones(2, 1), *torch.ones(2, 2), 0.0, 1.0), "with K >= 2"),
        (lambda: value_losses.td_target(*torch.ones(2, 2), torch.ones(2, 1)), r"must be one \[B\]; .*\[2, 1\]"),
        (lambda: value_losses.sequence_priority(torch.ones(3, 2), torch.ones(3), 0.9), r"one \[T, B\] shape"),
    ],
)
def test_shapes_that_do_not_fit_are_named(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
