"""Losses of SAC and TD3 against slow twins in NumPy's float64, their gradients, and whom these reach."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Discrete
from polyplay.learning import SACLoss, TD3Loss
from polyplay.learning.critic_losses import (
    DISCRETE,
    critic_loss,
    smoothed,
    soft_value,
    soft_value_discrete,
    temperature_loss,
)
from polyplay.nets import NetworkFactory
from polyplay.nets.critics import CriticsNetwork, GaussianActor

OBS, BATCH = 3, 7
FEW = pytest.param(300)
MANY = pytest.param(10_000, marks=pytest.mark.long)


def space(rng: np.random.Generator, size: int) -> Box:
    low = rng.uniform(-3.0, 0.0, size).astype(np.float32)
    return Box((size,), low, low + rng.uniform(0.5, 4.0, size).astype(np.float32))


def network(action: Any, **options: Any) -> CriticsNetwork:
    spec = EnvSpec(Field((OBS,), "float32"), action)
    made = NetworkFactory("mlp", spec, {"hidden": (8, 8), **options}, "critics")()
    assert isinstance(made, CriticsNetwork)
    return made


def logp_twin(mean: np.ndarray, log_std: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and log π(y) by the change of variables, number by number."""
    u = mean + np.exp(log_std) * z
    y = np.tanh(u)
    normal = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
    jacobian = np.log(4.0) - 2.0 * np.abs(u) - 2.0 * np.log1p(np.exp(-2.0 * np.abs(u)))  # log(1 − tanh² u)
    return y, (normal - jacobian).sum(-1)


@pytest.mark.parametrize("cases", [FEW, MANY])
def test_log_probabilities_are_those_of_the_change_of_variables(cases):
    rng = np.random.default_rng(0)
    for _ in range(cases):
        size = int(rng.integers(1, 7))
        head = GaussianActor(space(rng, size))
        raw, z = rng.normal(0.0, 3.0, (4, 2 * size)), rng.normal(size=(4, size))
        y, logp = head.sample(*(torch.tensor(x, dtype=torch.float64) for x in (raw, z)))
        wanted = logp_twin(raw[:, :size], np.clip(raw[:, size:], -20.0, 2.0), z)
        np.testing.assert_allclose(y.numpy(), wanted[0], rtol=1e-12)
        np.testing.assert_allclose(logp.numpy(), wanted[1], rtol=1e-9, atol=1e-9)


def test_actions_lie_within_the_bounds_and_come_back():
    rng = np.random.default_rng(1)
    for _ in range(200):
        head = GaussianActor(space(rng, int(rng.integers(1, 5))))
        y = torch.tensor(rng.uniform(-1.0, 1.0, (6, head.size)), dtype=torch.float32)
        action = head.outer(y)
        assert bool((action >= head.low).all() and (action <= head.high).all())
        torch.testing.assert_close(head.inner(action), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cases", [FEW, MANY])
def test_terms_are_those_of_slow_twins(cases):
    rng = np.random.default_rng(2)
    for _ in range(cases):
        n, B, A = (int(rng.integers(1, top)) for top in (5, 9, 5))
        q, goal, weight, logp = rng.normal(size=(n, B)), rng.normal(size=B), rng.uniform(size=B), rng.normal(size=B)
        alpha, entropy = float(rng.uniform(0.01, 2.0)), float(rng.normal())
        x = {k: torch.tensor(v, dtype=torch.float64) for k, v in vars_of(q, goal, weight, logp).items()}
        twin = sum(0.5 * np.mean([weight[b] * (q[j, b] - goal[b]) ** 2 for b in range(B)]) for j in range(n))
        assert float(critic_loss(x["q"], x["goal"], x["weight"])) == pytest.approx(twin, rel=1e-12)
        values = [min(q[:, b]) - alpha * logp[b] for b in range(B)]
        np.testing.assert_allclose(
            soft_value(x["q"], x["logp"], torch.tensor(alpha, dtype=torch.float64)).numpy(), values, rtol=1e-12
        )
        log_alpha = torch.tensor([math.log(alpha)], dtype=torch.float64)
        wanted = -math.log(alpha) * (np.mean(logp) + entropy)
        assert float(temperature_loss(log_alpha, x["logp"], entropy)) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        y, z = rng.uniform(-1, 1, (B, A)), rng.normal(size=(B, A))
        noisy = np.clip(y + np.clip(0.2 * z, -0.5, 0.5), -1.0, 1.0)
        np.testing.assert_allclose(smoothed(torch.tensor(y), torch.tensor(z), 0.2, 0.5).numpy(), noisy)


def vars_of(q: Any, goal: Any, weight: Any, logp: Any) -> dict[str, Any]:
    return {"q": q, "goal": goal, "weight": weight, "logp": logp}


@pytest.mark.parametrize("cases", [FEW, MANY])
def test_values_of_discrete_actions_are_sums_over_the_legal_ones(cases):
    rng = np.random.default_rng(3)
    for _ in range(cases):
        n, B, A = (int(rng.integers(low, top)) for low, top in ((1, 4), (1, 6), (2, 6)))
        q, logits, alpha = rng.normal(size=(n, B, A)), rng.normal(0.0, 3.0, (B, A)), float(rng.uniform(0.0, 2.0))
        legal = rng.random((B, A)) < 0.7
        legal[np.arange(B), rng.integers(0, A, B)] = True
        wanted = []
        for b in range(B):
            p = np.exp(logits[b]) * legal[b] / (np.exp(logits[b]) * legal[b]).sum()
            wanted.append(sum(p[a] * (min(q[:, b, a]) - alpha * math.log(p[a])) for a in range(A) if legal[b, a]))
        raw = torch.tensor(logits).masked_fill(~torch.tensor(legal), -torch.inf)
        found = soft_value_discrete(torch.tensor(q), raw.log_softmax(-1), torch.tensor(alpha, dtype=torch.float64))
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_a_step_raises_the_temperature_where_entropy_is_below_its_target():
    log_alpha = nn.Parameter(torch.zeros(1))
    for logp, sign in ((torch.full((4,), 3.0), 1.0), (torch.full((4,), -3.0), -1.0)):  # entropy −3, then 3
        (slope,) = torch.autograd.grad(temperature_loss(log_alpha, logp, -1.0), log_alpha)
        assert -slope.item() * sign > 0.0  # a step goes against the slope


def test_shapes_that_do_not_fit_are_refused():
    one, two = torch.zeros(2, 3), torch.zeros(4)
    for call in (
        lambda: soft_value(one, two, one.sum()),
        lambda: critic_loss(one, two, two),
        lambda: soft_value_discrete(one, two, one.sum()),
        lambda: temperature_loss(torch.zeros(()), two, 0.0),
        lambda: smoothed(one, two, 0.1, 0.2),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


def batch_of(rng: np.random.Generator, action: Any) -> dict[str, Any]:
    done = rng.random(BATCH) < 0.3
    taken = rng.integers(0, action.n, BATCH) if isinstance(action, Discrete) else None
    if taken is None:
        taken = (action.low + (action.high - action.low) * rng.random((BATCH, *action.shape))).astype(np.float32)
    return {
        "obs": torch.tensor(rng.normal(size=(2, BATCH, OBS)), dtype=torch.float32),
        "action": torch.tensor(taken),
        "return": torch.tensor(rng.normal(size=BATCH), dtype=torch.float32),
        "discount": torch.tensor(np.where(done, 0.0, 0.99), dtype=torch.float32),
    }


Layers = list[np.ndarray]  # weights and biases of an ensemble, in turn, float64


def layers_of(ensemble: Any) -> Layers:
    both = zip(ensemble.weights, ensemble.biases, strict=True)
    return [x.detach().double().numpy().copy() for pair in both for x in pair]


def mlp_twin(layers: Layers, x: np.ndarray) -> np.ndarray:
    """[N, inputs] → [n, N, outputs] in float64."""
    found = []
    for j in range(len(layers[0])):
        y = x
        for i in range(0, len(layers), 2):
            y = (np.maximum(y, 0.0) if i else y) @ layers[i][j] + layers[i + 1][j]
        found.append(y)
    return np.stack(found)


def values_twin(layers: Layers, obs: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mlp_twin(layers, np.concatenate([obs, y], 1))[..., 0]


def actor_twin(system: str, actor: Layers, obs: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An action [B, 2] and log π [B]; td3's has none."""
    raw = mlp_twin(actor, obs)[0]
    if system == "sac":
        return logp_twin(raw[:, :2], np.clip(raw[:, 2:], -20, 2), z)
    return np.tanh(raw), np.zeros(len(obs))


def goal_twin(system: str, actor: Layers, critics: Layers, x: dict[str, np.ndarray]) -> np.ndarray:
    """Targets y [B], of the actor of sac itself or td3's target actor, and the target critics."""
    then, z = x["obs"][1], x["z_then" if system == "sac" else "z"]
    y, logp = actor_twin(system, actor, then, z)
    if system == "td3":
        y = np.clip(y + np.clip(0.2 * z, -0.5, 0.5), -1.0, 1.0)
    return x["return"] + x["discount"] * (values_twin(critics, then, y).min(0) - logp)


def actor_term_twin(system: str, actor: Layers, critics: Layers, x: dict[str, np.ndarray]) -> float:
    y, logp = actor_twin(system, actor, x["obs"][0], x["z"])
    q = values_twin(critics, x["obs"][0], y)
    return float(np.mean(logp - q.min(0)) if system == "sac" else -q[0].mean())


def slope(term: Any, x: np.ndarray, at: tuple[int, ...], step: float = 1e-8) -> float:
    """The derivative of term() by a number of x, which it reads, by differences too small to meet a corner."""
    kept, found = x[at], []
    for sign in (1.0, -1.0):
        x[at] = kept + sign * step
        found.append(term())
    x[at] = kept
    return (found[0] - found[1]) / (2.0 * step)


@pytest.mark.parametrize("cases", [pytest.param(30, id="30"), MANY])
@pytest.mark.parametrize("system", ["sac", "td3"])
def test_loss_targets_and_gradient_are_those_of_a_slow_twin(system: str, cases: int):
    """The twin's gradient is by differences, at a number of each layer of the actor and of the critics."""
    rng, given = np.random.default_rng(4), {} if system == "sac" else {"actor": "deterministic", "alpha": 0.0}
    for seed in range(cases):
        torch.manual_seed(seed)
        action = space(rng, 2)
        policy, target = network(action, **given).double(), network(action, **given).double()
        policy.trunk = target.trunk = nn.Identity()  # theirs computes in float32
        loss, batch = SACLoss(-2.0) if system == "sac" else TD3Loss(delay=1), batch_of(rng, action)
        batch |= {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, seed)).items()}
        batch = {k: x.double() for k, x in batch.items()}
        policy.zero_grad()
        found = loss(policy, target, batch, {}, {})
        found.loss.backward()
        x = {k: batch[k].numpy() for k in batch if k != "action"}
        taken = policy.taken(batch["action"])[0].numpy()
        actor, critics = layers_of(policy.actor), layers_of(policy.critics)
        goal = goal_twin(system, layers_of((policy if system == "sac" else target).actor), layers_of(target.critics), x)
        q = values_twin(critics, x["obs"][0], taken)

        def critic_term(c: Layers = critics, x: Any = x, y: Any = taken, goal: Any = goal) -> float:
            return sum(0.5 * float(np.mean((row - goal) ** 2)) for row in values_twin(c, x["obs"][0], y))

        def actor_term(a: Layers = actor, c: Layers = critics, x: Any = x) -> float:
            return actor_term_twin(system, a, c, x)

        assert float(found.metrics["critic_loss"]) == pytest.approx(critic_term(), rel=1e-9)
        assert float(found.metrics["actor_loss"]) == pytest.approx(actor_term(), rel=1e-9, abs=1e-9)
        assert float(found.metrics["target_mean"]) == pytest.approx(goal.mean(), rel=1e-9, abs=1e-9)
        assert found.priority is not None
        np.testing.assert_allclose(found.priority.numpy(), np.abs(q - goal).mean(0), rtol=1e-9, atol=1e-9)
        for term, layers, module in ((critic_term, critics, policy.critics), (actor_term, actor, policy.actor)):
            for array, weight in zip(layers[::2], module.weights, strict=True):
                at = tuple(int(rng.integers(n)) for n in array.shape)
                assert float(weight.grad[at]) == pytest.approx(slope(term, array, at), rel=1e-5, abs=2e-6)
        if system == "sac":
            logp = actor_twin(system, actor, x["obs"][0], x["z"])[1]
            assert float(found.metrics["entropy"]) == pytest.approx(-np.mean(logp), rel=1e-9, abs=1e-9)
            assert float(policy.log_alpha.grad) == pytest.approx(2.0 - np.mean(logp), rel=1e-9, abs=1e-9)


def test_the_target_of_the_entropy_is_lower_where_actions_are_masked():
    """Some rows have one legal action of three, whose entropy is 0."""
    rng, policy = np.random.default_rng(12), network(Discrete(3), actor="categorical")
    batch = batch_of(rng, Discrete(3))
    legal = torch.ones(2, BATCH, 3, dtype=torch.bool)
    found = []
    for few in (0, BATCH // 2):
        legal[0, :few, 1:] = False
        batch["action"][:few] = 0
        loss = SACLoss(DISCRETE * math.log(3.0))
        scored = loss(policy, network(Discrete(3), actor="categorical"), {**batch, "mask": legal.clone()}, {}, {})
        policy.zero_grad()
        scored.loss.backward()
        found.append(float(policy.log_alpha.grad) - float(scored.metrics["entropy"]))  # −H̄
    wanted = [-DISCRETE * math.log(3.0) * share for share in (1.0, 1.0 - BATCH // 2 / BATCH)]
    assert found == pytest.approx(wanted, rel=1e-5)


def gradients(loss: Any, policy: Any, target: Any, batch: dict[str, Any]) -> dict[str, np.ndarray]:
    policy.zero_grad()
    loss(policy, target, batch, {}, {}).loss.backward()
    return {name: x.grad.numpy().copy() for name, x in policy.named_parameters()}


@pytest.mark.parametrize("system", ["sac", "td3"])
def test_the_terms_share_no_weights(system):
    """Other returns change the critics' gradient alone; another actor's draw, or another actor, no critic's."""
    rng = np.random.default_rng(5)
    action, given = space(rng, 2), {"actor": "deterministic", "alpha": 0.0} if system == "td3" else {}
    policy, target = network(action, **given), network(action, **given)
    loss = SACLoss(-2.0) if system == "sac" else TD3Loss(delay=1)
    batch = batch_of(rng, action)
    batch |= {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, 0)).items()}
    first = gradients(loss, policy, target, batch)
    assert all(np.abs(x).sum() > 0 for x in first.values())
    richer = gradients(loss, policy, target, {**batch, "return": batch["return"] + 3.0})
    changed = {name.split(".")[0] for name in first if not np.array_equal(first[name], richer[name])}
    assert changed == {"critics"}
    if system == "sac":
        drawn = gradients(loss, policy, target, {**batch, "z": -batch["z"]})
    else:
        with torch.no_grad():
            policy.actor.weights[0].mul_(-1.0)
        drawn = gradients(loss, policy, target, batch)
    changed = {name.split(".")[0] for name in first if not np.array_equal(first[name], drawn[name])}
    assert changed == {"actor", *(["log_alpha"] if system == "sac" else [])}
    assert all(x.grad is None for x in target.parameters())


def test_td3_changes_its_actor_in_every_second_update_alone():
    rng = np.random.default_rng(6)
    action = space(rng, 2)
    policy, target = (network(action, actor="deterministic", alpha=0.0) for _ in range(2))
    loss, batch = TD3Loss(), batch_of(rng, action)
    for version, learns in ((0, False), (1, True), (2, False), (3, True)):
        policy.zero_grad()
        drawn = loss.noise(policy, batch, (0, 0, version))
        loss(policy, target, {**batch, **{k: torch.from_numpy(x) for k, x in drawn.items()}}, {}, {}).loss.backward()
        grad = policy.actor.weights[0].grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == learns


def test_redq_draws_critics_of_the_target_and_its_actor_climbs_their_mean():
    rng, seen = np.random.default_rng(7), set[tuple[int, ...]]()
    action = space(rng, 2)
    policy, target = network(action, critics=5), network(action, critics=5)
    loss = SACLoss(-2.0, alpha=0.5, subset=2, mean=True, delay=3)
    for version in range(12):
        batch = batch_of(rng, action)
        batch |= {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, version)).items()}
        policy.zero_grad()
        found = loss(policy, target, batch, {}, {})
        found.loss.backward()
        grad = policy.actor.weights[0].grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == ("actor" in batch) == (version % 3 == 2)
        (pair,) = {tuple(sorted(row)) for row in batch["subset"].tolist()}  # one for all rows
        seen.add(pair)
        now, then = batch["obs"].double().numpy()
        raw = mlp_twin(layers_of(policy.actor), then)[0]
        y, logp = logp_twin(raw[:, :2], np.clip(raw[:, 2:], -20, 2), batch["z_then"].double().numpy())
        both = mlp_twin(layers_of(target.critics), np.concatenate([then, y], 1))[list(pair), :, 0]
        goal = batch["return"].double().numpy() + batch["discount"].double().numpy() * (both.min(0) - 0.5 * logp)
        assert float(found.metrics["target_mean"]) == pytest.approx(goal.mean(), rel=1e-4, abs=1e-5)
        if "actor" in batch:
            raw = mlp_twin(layers_of(policy.actor), now)[0]
            y, logp = logp_twin(raw[:, :2], np.clip(raw[:, 2:], -20, 2), batch["z"].double().numpy())
            mean = mlp_twin(layers_of(policy.critics), np.concatenate([now, y], 1))[..., 0].mean(0)
            assert float(found.metrics["actor_loss"]) == pytest.approx(np.mean(0.5 * logp - mean), rel=1e-4, abs=1e-5)
    assert len(seen) > 3


def test_of_discrete_actions_critics_are_drawn_too():
    rng = np.random.default_rng(8)
    policy, target = (network(Discrete(3), actor="categorical", critics=4) for _ in range(2))
    loss, batch = SACLoss(0.5, alpha=0.2, subset=2), batch_of(rng, Discrete(3))
    legal = batch["mask"] = torch.tensor(rng.random((2, BATCH, 3)) < 0.7)
    legal[0, torch.arange(BATCH), batch["action"]] = legal[1, :, 0] = True
    drawn = {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, 0)).items()}
    found = loss(policy, target, {**batch, **drawn}, {}, {})
    pair, then = drawn["subset"][0].tolist(), batch["obs"][1]
    with torch.no_grad():
        values, raw = target.critics(then)[pair].amin(0), policy.raw(then).masked_fill(~legal[1], -torch.inf)
        pi, log_pi = raw.softmax(-1), torch.where(legal[1], raw.log_softmax(-1), 0.0)
        goal = batch["return"] + batch["discount"] * (pi * (values - 0.2 * log_pi)).sum(-1)
    torch.testing.assert_close(found.metrics["target_mean"], goal.mean())


def test_crossq_scores_both_states_in_one_pass_without_a_target_network():
    rng = np.random.default_rng(9)
    torch.manual_seed(9)
    action = space(rng, 2)
    policy = network(action, normalization="batch", width=6)
    loss = SACLoss(-2.0, alpha=0.3, delay=3, joint=True)
    assert not loss.divisible
    for version in range(6):
        batch = batch_of(rng, action)
        batch |= {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, version)).items()}
        twin = copy.deepcopy(policy)
        found = loss(policy, cast("Any", None), batch, {}, {})
        (now, then), taken = batch["obs"], policy.taken(batch["action"])[0]
        with torch.no_grad():  # the actor by its running statistics, the critics by those of both states
            y, logp = twin.box.sample(twin.raw(then), batch["z_then"])
            q, ahead = twin.critics(torch.cat([torch.cat([now, taken], 1), torch.cat([then, y], 1)]), True)[
                ..., 0
            ].split(BATCH, 1)
            goal = batch["return"] + batch["discount"] * (ahead.amin(0) - 0.3 * logp)
            critic = 0.5 * (q - goal).square().mean(1).sum()
            y, logp = twin.box.sample(twin.actor(now, True)[0], batch["z"])
            actor = (0.3 * logp - twin.critics(torch.cat([now, y], 1))[..., 0].amin(0)).mean()
        torch.testing.assert_close(found.metrics["critic_loss"].detach(), critic)
        if "actor" in batch:
            torch.testing.assert_close(found.metrics["actor_loss"].detach(), actor)
        policy.zero_grad()
        found.loss.backward()
        grad = policy.actor.weights[0].grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == ("actor" in batch) == (version % 3 == 2)
    passes = [float(norms[0].passes) for norms in (policy.critics.batch_norms, policy.actor.batch_norms)]
    assert passes == [6.0, 2.0]  # acting moves no statistics, nor does a pass that the actor's loss takes
    assert [x.weights[1].shape for x in (policy.critics, policy.actor)] == [(2, 6, 6), (1, 8, 8)]


def test_dropout_leaves_out_other_units_in_each_pass():
    rng, action = np.random.default_rng(10), space(np.random.default_rng(10), 2)
    policy, target = (network(action, normalization="layer", dropout=0.5) for _ in range(2))
    loss, batch = SACLoss(-2.0, mean=True), batch_of(rng, action)
    drawn = {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, 0)).items()}
    first = loss(policy, target, batch | drawn, {}, {})
    again = loss(policy, target, batch | drawn, {}, {})
    assert first.loss.item() == again.loss.item()
    for k, name in enumerate(("q_mean", "target_mean", "actor_loss")):  # which pass shows in which number
        units = drawn["units"].clone()
        units[:, k] = units[:, k].flip(0)
        other = loss(policy, target, {**batch, **drawn, "units": units}, {}, {})
        moved = {m for m in ("q_mean", "target_mean", "actor_loss") if other.metrics[m] != first.metrics[m]}
        assert moved == {name}


@pytest.mark.parametrize("masked", [False, True])
def test_of_mixed_actions_expectations_are_over_the_discrete_parts_along_one_draw_of_the_others(masked):
    rng = np.random.default_rng(11)
    action = {"pick": Discrete(3), "aim": space(rng, 2), "turn": Discrete(2)}
    policy, target = network(action), network(action)
    loss, batch = SACLoss(-1.0, alpha=0.3), batch_of(rng, action["aim"])
    picks = {"pick": torch.tensor(rng.integers(0, 3, BATCH)), "turn": torch.tensor(rng.integers(0, 2, BATCH))}
    batch["action"] = {"pick": picks["pick"], "aim": batch["action"], "turn": picks["turn"]}
    legal = torch.ones(2, BATCH, 3, dtype=torch.bool)
    if masked:
        legal[:, :, 1] = False
        batch["mask"] = {"pick": legal}
    batch |= {k: torch.from_numpy(x) for k, x in loss.noise(policy, batch, (0, 0, 0)).items()}
    found, (now, then) = loss(policy, target, batch, {}, {}), batch["obs"]

    def value(of: CriticsNetwork, obs: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """V(s) and log π, state by state, sum by sum."""
        raw = policy.raw(obs)
        y, of_y = policy.box.sample(raw[:, :4], z)  # type: ignore[union-attr]
        values, logps = [], []
        for b in range(BATCH):
            weights = [raw[b, 4 + 2 * i + j].exp() * legal[0, b, i] for i in range(3) for j in range(2)]
            pi = torch.stack(weights) / sum(weights)
            q = of.critics(torch.cat([obs[b], y[b]])[None])[:, 0].amin(0)
            log_pi = torch.where(pi > 0, pi.log(), 0.0)
            values.append((pi * (q - 0.3 * log_pi)).sum() - 0.3 * of_y[b])
            logps.append((pi * log_pi).sum() + of_y[b])
        return torch.stack(values), torch.stack(logps)

    with torch.no_grad():
        goal = batch["return"] + batch["discount"] * value(target, then, batch["z_then"])[0]
        ahead, logp = value(policy, now, batch["z"])
        scores = policy.critics(torch.cat([now, policy.taken(batch["action"])[0]], 1))
        q = torch.stack([scores[:, b, 2 * picks["pick"][b] + picks["turn"][b]] for b in range(BATCH)], 1)
        critic = 0.5 * (q - goal).square().mean(1).sum()
    for name, wanted in {"critic_loss": critic, "actor_loss": -ahead.mean(), "entropy": -logp.mean()}.items():
        torch.testing.assert_close(found.metrics[name].detach(), wanted, rtol=1e-4, atol=1e-5)
