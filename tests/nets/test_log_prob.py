"""polyplay/nets/action_heads.py, alone and through every kind of head, against slow NumPy twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.nets import action_heads, factory
from polyplay.nets.action_heads import GUARDS, LogProbGuard
from tests.nets.helpers import arrivals, continuous, discrete, hybrid, image, masks, play, vector

KINDS = [LogProbGuard(kind, 1e-2) for kind in GUARDS]


def twin(logits: np.ndarray, guard: LogProbGuard) -> tuple[np.ndarray, np.ndarray]:
    """π and its guarded logarithm of one row of legal logits, in plain float64."""
    raw = [math.exp(x - max(logits)) for x in logits]
    pi = [x / sum(raw) for x in raw]
    logs = {"none": math.log, "max": lambda p: math.log(max(p, guard.eps)), "plus": lambda p: math.log(p + guard.eps)}
    return np.array(pi), np.array([logs[guard.kind](p) for p in pi])


def scored(logits: np.ndarray, guard: LogProbGuard, a: int) -> tuple[float, float]:
    pi, logs = twin(logits, guard)
    return logs[a], -float(pi @ logs)


def slopes(f, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of f: [n] → number."""
    return np.array([(f(x + d) - f(x - d)) / (2 * step) for d in np.eye(len(x)) * step])


LOGITS = np.array([1.0, -2.0, 0.5, -7.0, 3.0])  # the fourth is far below ε = 0.01, the second too


@pytest.mark.parametrize("guard", KINDS)
@pytest.mark.parametrize("a", range(5))
def test_values_and_gradients_are_the_twins(guard, a):
    head = action_heads.Categorical(5, guard)
    for which, got in enumerate((lambda x: head.logp(x, torch.tensor([a])), head.entropy)):
        x = torch.tensor(LOGITS[None], requires_grad=True)
        value = got(x)
        (grad,) = torch.autograd.grad(value.sum(), x)
        assert value.item() == pytest.approx(scored(LOGITS, guard, a)[which], abs=1e-12)
        want = slopes(lambda z, which=which: scored(z, guard, a)[which], LOGITS)
        np.testing.assert_allclose(grad[0].numpy(), want, atol=1e-8)


def test_below_eps_max_stops_the_gradient_and_plus_does_not():
    for a, pi in ((1, 0.0055), (3, 3.71e-5)):
        grads = {}
        for kind in GUARDS:
            x = torch.tensor(LOGITS[None], requires_grad=True)
            head = action_heads.Categorical(5, LogProbGuard(kind, 1e-2))
            assert head.guard.probabilities(x)[0, a].item() == pytest.approx(pi, rel=0.02)
            (grads[kind],) = torch.autograd.grad(head.logp(x, torch.tensor([a])).sum(), x)
        assert (grads["max"] == 0).all()
        share = pi / (pi + 1e-2)  # of the plain gradient, by the chain rule
        torch.testing.assert_close(grads["plus"], grads["none"] * share, rtol=0.02, atol=0)
        assert grads["plus"].abs().max() > 0
    x = torch.tensor([[0.0, -200.0]], requires_grad=True)  # probability 0 in float32
    for kind, low in (("max", math.log(1e-6)), ("plus", math.log(1e-6))):
        head = action_heads.Categorical(2, LogProbGuard(kind))
        total = head.logp(x, torch.tensor([1])).sum() + head.entropy(x).sum()
        (grad,) = torch.autograd.grad(total, x)
        assert grad.isfinite().all()
        assert head.logp(x, torch.tensor([1])).item() == pytest.approx(low)


def test_no_guard_is_the_released_codes_log_softmax_to_the_bit():
    logits, a = torch.randn(40, 6) * 5, torch.randint(6, (40,))
    head, logp = action_heads.Categorical(6), F.log_softmax(logits, 1)
    assert torch.equal(head.logp(logits, a), logp.gather(1, a[:, None])[:, 0])
    assert torch.equal(head.entropy(logits), -(logp.exp() * logp).sum(1))
    spec = discrete(vector(3))
    torch.manual_seed(1)
    plain = factory.make("mlp", spec)
    torch.manual_seed(1)
    named = factory.make("mlp", spec, guard="none", log_eps=0.1)
    batch = arrivals(spec.obs, 4, 5, 1)
    (one, _), (two, _) = play(plain, batch, plain.initial(5)), play(named, batch, named.initial(5))
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("guard", KINDS)
def test_masks_leave_the_legal_values_alone_with_it(guard):
    """Also where the numbers of a MultiDiscrete have different sizes, and bit by bit."""
    legal = torch.tensor([[True, False, True, False, True]])
    head = action_heads.Categorical(5, guard)
    x = torch.tensor(LOGITS[None], requires_grad=True)
    params = head.masked(x, legal)
    pi = head.guard.probabilities(params)
    want, logs = twin(LOGITS[[0, 2, 4]], guard)
    np.testing.assert_allclose(pi[0, legal[0]].detach().numpy(), want, atol=1e-12)
    assert (pi[~legal] == 0).all()
    assert head.entropy(params).item() == pytest.approx(-float(want @ logs), abs=1e-12)
    (grad,) = torch.autograd.grad(head.entropy(params).sum(), x)
    assert (grad[~legal] == 0).all()
    many = action_heads.MultiCategorical((2,), (3, 2), guard)
    flat = torch.tensor([[0.3, -1.0, 2.0, 0.5, -6.0]], dtype=torch.float64)
    parts = [twin(flat[0, :3].numpy(), guard), twin(flat[0, 3:].numpy(), guard)]
    assert many.logp(flat, torch.tensor([[2, 1]])).item() == pytest.approx(parts[0][1][2] + parts[1][1][1])
    assert many.entropy(flat).item() == pytest.approx(-sum(p @ logs for p, logs in parts))
    bits = action_heads.Bernoulli((2,), guard)
    mask = torch.tensor([[True, True, False, True]])  # the second bit must be 1
    params = bits.masked(torch.tensor([[-4.0, -4.0]], dtype=torch.float64), mask)
    (_, logs), (_, alone) = twin(np.array([0.0, -4.0]), guard), twin(np.array([0.0]), guard)
    assert bits.logp(params, torch.tensor([[1, 1]])).item() == pytest.approx(logs[1] + alone[0], abs=1e-9)


@pytest.mark.parametrize("guard", ["max", "plus"])
def test_acting_and_unrolling_say_the_same_also_in_hybrid_spaces(guard):
    spec = hybrid(vector(3))
    policy = factory.make("mlp", spec, guard=guard, log_eps=0.2)
    batch = arrivals(spec.obs, 4, 8, policy.noise)
    batch["mask"] = masks(spec, 4, 8)
    said, _ = play(policy, batch, policy.initial(8))
    out = policy.unroll({**batch, "action": said["action"]}, policy.initial(8))
    assert torch.equal(out["logp"], said["logp"])
    kinds = {type(h).__name__: getattr(h, "guard", None) for h in policy.head.heads}
    assert kinds.pop("Gaussian") is None
    assert set(kinds.values()) == {LogProbGuard(guard, 0.2)}
    lone = factory.make("mlp", continuous(vector(3), 2))
    x, at = torch.randn(4, 2), torch.randn(4, 2)
    parts = dict(zip(policy.head.paths, policy.head.heads, strict=True))
    torch.testing.assert_close(parts["b/1"].logp(x, at), lone.head.logp(x, at))  # densities have no guard
    assert dict(tree.leaves(spec.action)).keys() == parts.keys()


def test_what_cannot_be_is_refused():
    for options, says in (
        ({"guard": "min"}, "guard is 'min'; use one of none, max, plus"),
        ({"log_eps": 0.0}, "log_eps is 0.0; it must lie between 0 and 1"),
    ):
        with pytest.raises(UserError, match=says):
            factory.make("mlp", discrete(vector(2)), **options)
    with pytest.raises(UserError, match=r"^--correction max: it is for actions with probabilities, the environment's"):
        factory.make("mlp", continuous(vector(2), 3), guard="max")


def test_signed_inputs_are_ga3cs():
    policy = factory.make("ga3c", discrete(image()), inputs="signed")
    seen = []
    policy.torso.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    obs = torch.tensor([0, 64, 128, 255], dtype=torch.uint8).reshape(1, 4, 1, 1).expand(1, 4, 84, 84)
    policy.act({"obs": obs, "reward": torch.zeros(1), "first": torch.ones(1, dtype=torch.bool)}, {})
    assert seen[0][0, :, 0, 0].tolist() == [-1.0, -0.5, 0.0, 0.9921875]
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    policy.observe({"obs": obs})
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())
    with pytest.raises(UserError, match="--inputs signed: takes one image of bytes"):
        factory.make("mlp", discrete(vector(2)), inputs="signed")
