"""The per-parameter clip of OpenAI Five in Adam: a scalar twin, Adam where nothing is clipped, one pass and several."""

from __future__ import annotations

import copy
import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.machine import ThreadPool
from polyplay.weights import optimizers
from polyplay.weights.optimizers import ClippedAdam, OptimizerPart, OptimizerSpec, optimizer_state, parts_of, pure_step
from polyplay.weights.update import clip_gradient
from tests import twins


def run(optimizer: torch.optim.Optimizer, grads: torch.Tensor, rates: list[float] | None = None) -> torch.Tensor:
    """The first parameter after each of the gradients [steps, n] → [steps, n]."""
    group = optimizer.param_groups[0]
    (p,) = group["params"]
    path = []
    for i, grad in enumerate(grads):
        p.grad = grad.clone()
        if rates is not None:
            group["lr"] = rates[i]
        optimizer.step()
        assert torch.equal(p.grad, grad)
        path.append(p.detach().clone())
    return torch.stack(path)


def vector(n: int = 1, seed: int | None = None, dtype: torch.dtype = torch.float64) -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(seed or 0)
    start = torch.zeros(n, dtype=dtype) if seed is None else torch.randn(n, dtype=dtype, generator=generator)
    return torch.nn.Parameter(start)


def gradients(steps: int, n: int, seed: int) -> torch.Tensor:
    return torch.randn(steps, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(optimizers.FLAVORS)),
    st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    st.sampled_from([0.9, 0.99]),
    st.sampled_from([1e-5, 0.1]),
)
def test_every_flavor_equals_its_scalar_twin(name: str, grads: list[float], alpha: float, eps: float) -> None:
    rates = [0.1 / (i + 1) for i in range(len(grads))]
    optimizer = OptimizerSpec(name, eps=eps, decay=alpha).make(vector(), lr=1.0)
    path = run(optimizer, torch.tensor(grads, dtype=torch.float64)[:, None], rates)
    twin = twins.rmsprop(0.0, grads, rates, alpha, eps, **optimizers.FLAVORS[name])
    assert path[:, 0].tolist() == pytest.approx(twin, rel=1e-10, abs=1e-12)


def test_adam_is_torchs_own_to_the_bit() -> None:
    """In 100 steps at a falling rate, and behind a state that was saved and loaded half way; the state is torch's."""
    grads, rates = gradients(100, 9_001, seed=3).float(), [1e-2 / (i + 1) for i in range(100)]
    ours, again = (OptimizerSpec("adam", eps=1e-5).make(vector(9_001, 4, torch.float32)) for _ in range(2))
    own = torch.optim.Adam([vector(9_001, 4, torch.float32)], eps=1e-5, fused=True)
    (p,), (q,), (wanted,) = (made.param_groups[0]["params"] for made in (ours, again, own))
    path = run(own, grads, rates)
    assert torch.equal(run(ours, grads[:50], rates[:50]), path[:50])
    optimizers.load_state(again, copy.deepcopy(ours.state[p]))
    q.data.copy_(p.data)
    for optimizer in (ours, again):
        assert torch.equal(run(optimizer, grads[50:], rates[50:]), path[50:])
        found = optimizers.optimizer_state(optimizer)
        assert [*found] == [*own.state[wanted]]
        for name, x in own.state[wanted].items():
            assert torch.equal(found[name], x)
            assert found[name].dtype == x.dtype


def test_sgd_is_torchs_own_with_momentum_and_weight_decay() -> None:
    grads = gradients(20, 7, seed=3)
    ours = OptimizerSpec("sgd", eps=1.0, momentum=0.8, l2=0.01).make(vector(7, seed=4), lr=0.1)
    own = torch.optim.SGD([vector(7, seed=4)], lr=0.1, momentum=0.8, weight_decay=0.02)
    torch.testing.assert_close(run(ours, grads), run(own, grads))
    plain = OptimizerSpec("sgd", eps=1.0).make(vector(), lr=0.1)
    path = run(plain, torch.tensor([[1.0], [0.5]], dtype=torch.float64))
    assert path[:, 0].tolist() == pytest.approx([-0.1, -0.24])


def test_shared_statistics_of_sgd_begin_at_its_first_gradient() -> None:
    grads = gradients(10, 4, seed=6)
    alone = OptimizerSpec("sgd", eps=1.0).make(vector(4), lr=0.1)
    shared = OptimizerSpec("sgd", eps=1.0).make(vector(4), lr=0.1)
    memory = torch.zeros(1, 4, dtype=torch.float64)
    optimizers.share_statistics(shared, memory, fill=True)
    torch.testing.assert_close(run(shared, grads), run(alone, grads))
    assert memory.any()


@pytest.mark.parametrize("few", [0, 1 << 60])
def test_a_gradient_that_never_changes_has_no_negative_variance(few: int, monkeypatch) -> None:
    """g − m² is 0 at last, in float32 a little more or less; ε = 1.5e-7 (Ape-X) would not cover that."""
    monkeypatch.setattr(optimizers, "FEW", few)
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = OptimizerSpec("rmsprop_dqn", eps=1.5e-7, decay=0.5).make(p, lr=1e-5)
    p.grad = torch.linspace(-30.0, 30.0, 1000)
    for _ in range(60):
        optimizer.step()
    spread = optimizer.state[p]["square"] - optimizer.state[p]["mean"].square()
    assert spread.min() < -1.5e-7, "as it was meant to be"
    assert p.isfinite().all()


def test_loading_copies_into_the_tensors_held() -> None:
    p, q = vector(4, seed=7), vector(4, seed=8)
    source, target = (OptimizerSpec("rmsprop_dqn", eps=0.1).make(x, lr=0.1) for x in (p, q))
    run(source, gradients(2, 4, seed=9))
    saved = optimizers.optimizer_state(source)
    before, held = copy.deepcopy(saved), dict(target.state[q])
    optimizers.load_state(target, saved)
    run(target, gradients(1, 4, seed=10))
    assert all(target.state[q][k] is held[k] for k in held)
    assert all(torch.equal(saved[k], before[k]) for k in held)


def test_an_unknown_name_gets_its_nearest_match() -> None:
    with pytest.raises(UserError, match=r"--optimizer: 'rmsprp_tf' is unknown, did you mean 'rmsprop_tf'\?; there are"):
        OptimizerSpec("rmsprp_tf")


@pytest.mark.parametrize("name", [*optimizers.FLAVORS, "adam_clipped"])
@pytest.mark.parametrize("shape", [(5001,), (90, 60)])
def test_one_pass_over_many_weights_is_what_several_are(name: str, shape: tuple[int, ...], monkeypatch) -> None:
    grads = torch.randn(40, *shape, generator=torch.Generator().manual_seed(1))
    grads[[30, 35]] *= 100
    paths, states = [], []
    for few in (0, 1 << 60):
        monkeypatch.setattr(optimizers, "FEW", few)
        p = torch.nn.Parameter(torch.linspace(-1, 1, grads[0].numel()).view(shape).clone())
        optimizer = OptimizerSpec(name, eps=0.01).make(p, lr=0.01)
        paths.append(run(optimizer, grads))
        states.append(optimizer.state[p])
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-5, atol=1e-5)
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], rtol=1e-5, atol=1e-5)
    assert all((a != b).any() for a, b in pairwise(paths[0]))


@pytest.mark.parametrize("name", ["rmsprop_dqn", "rmsprop_tf"])
def test_threads_that_share_a_step_make_the_same_bits(name: str):
    paths = []
    for n in (1, 3):
        optimizer = OptimizerSpec(name, eps=1e-2).make(vector(10_001, 1, torch.float32), lr=1e-2)
        assert isinstance(optimizer, optimizers.RMSProp)
        optimizer.team = ThreadPool(n, lambda: None) if n > 1 else None
        paths.append(run(optimizer, gradients(3, 10_001, 2).float()))
    assert torch.equal(*paths)


def test_periods_go_on_beyond_the_numbers_that_a_float32_can_count():
    parts = (OptimizerPart(2), OptimizerPart(2, 1.0, 20))
    spec = OptimizerSpec("adam", parts=parts)
    optimizer, changed = spec.make(torch.nn.Parameter(torch.zeros(4)), 1e-2), []
    (parameter,) = optimizer.param_groups[0]["params"]
    state = optimizer_state(optimizer)
    state["step"].fill_(2.0**24)
    pure = [parameter.detach().clone(), *(x.clone() for x in state.values())]
    for _ in range(20):
        before, parameter.grad = parameter.detach().clone(), torch.ones(4)
        optimizer.step()
        changed.append((parameter != before).tolist())
        weights, after, _ = pure_step(spec, pure[0], torch.ones(4), pure[1:], torch.tensor(1e-2))
        pure = [weights, *after]
    assert [sum(rows) for rows in zip(*changed, strict=True)] == [20, 20, 1, 1]
    torch.testing.assert_close(pure[0], parameter.detach())


# The per-parameter clip of OpenAI Five in Adam: a scalar twin, Adam where nothing is clipped, one pass and several.

SPIKE = [0.01, -0.01] * 20 + [3.0, 0.01, -3.0]  # Δ, of which two are far outside what came before


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1e-6, 40.0])), min_size=1, max_size=12),
    st.sampled_from([0.99, 0.999]),
    st.sampled_from([1e-8, 0.1]),
)
def test_it_equals_its_scalar_twin(grads: list[float], beta2: float, eps: float) -> None:
    grads, rates = SPIKE + grads, [0.1 / (i + 1) for i in range(len(SPIKE) + len(grads))]
    path = run(ClippedAdam([vector()], 1.0, eps, (0.9, beta2)), torch.tensor(grads).double()[:, None], rates)
    twin, clipped = twins.clipped_adam(torch.tensor(grads).double().tolist(), rates, eps, 0.9, beta2)
    assert path[:, 0].tolist() == pytest.approx(twin, rel=1e-10, abs=1e-13)
    assert clipped


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("name", optimizers.NAMES)
def test_the_pure_step_is_the_optimizer_s_own_and_what_is_not_finite_changes_nothing(name: str, clip: float) -> None:
    spec, parameter = OptimizerSpec(name, eps=1e-3, clip=clip, l2=1e-3), vector(50, 1, torch.float32)
    optimizer, weights = spec.make(parameter, lr=1e-2), parameter.detach().clone()
    state = [x.clone() for x in optimizers.optimizer_state(optimizer).values()]
    for k, grad in enumerate(gradients(40, 50, 2).float()):
        grad = grad * (0.01 if k < 20 else 1.0)  # both below and above the bound
        parameter.grad = grad.clone()
        norm = clip_gradient(parameter.grad, clip)
        optimizer.step()
        weights, state, made = optimizers.pure_step(spec, weights, grad, state, torch.tensor(1e-2))
        assert float(made) == norm
    assert torch.allclose(weights, parameter.detach(), rtol=1e-5, atol=1e-6)
    for x, own in zip(state, optimizers.optimizer_state(optimizer).values(), strict=True):
        assert torch.allclose(x, own, rtol=1e-5, atol=1e-7)
    same, before, _ = optimizers.pure_step(spec, weights, weights * math.inf, state, torch.tensor(1e-2))
    assert same.equal(weights)
    assert all(x.equal(y) for x, y in zip(before, state, strict=True))


# A user's own optimizer: torch's, to the bit, with its state there from the start.


OWN = {
    "nadam": torch.optim.NAdam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
    "momentum": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
    "sgd": torch.optim.SGD,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "radam": torch.optim.RAdam,
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_an_own_optimizer_is_as_torch_has_it_and_continues_from_its_state(own: Any) -> None:
    grads, rates = gradients(6, 4, 1).float(), [0.1, 0.1, 0.05, 0.05, 0.02, 0.02]
    spec, start = OptimizerSpec(own), vector(4, 3, torch.float32)
    theirs = run(own([vector(4, 3, torch.float32)], lr=0.1), grads, rates)
    first = spec.make(start, lr=0.1)
    begun = {k: x.clone() for k, x in optimizers.optimizer_state(first).items()}
    ours = run(first, grads[:3], rates[:3])
    again = spec.make(torch.nn.Parameter(ours[-1].clone()), lr=0.1)
    optimizers.load_state(again, {k: x.clone() for k, x in optimizers.optimizer_state(first).items()})
    assert torch.equal(torch.cat([ours, run(again, grads[3:], rates[3:])]), theirs)
    assert spec.statistics == tuple(k for k, x in begun.items() if x.ndim)


def test_an_own_optimizer_shares_its_statistics_and_is_cut_into_parts() -> None:
    spec, grad = OptimizerSpec(OWN["adamw"]), gradients(1, 6, 2)[0].float()
    whole, alone = (spec.make(vector(6, 5, torch.float32), lr=0.1) for _ in range(2))
    memory = torch.zeros(len(spec.statistics), 6)
    optimizers.share_statistics(whole, memory, fill=True)
    part = optimizers.slice_statistics(whole, spec.make, slice(2, 5))
    part.param_groups[0]["lr"] = 0.1
    moved = run(part, grad[None, 2:5])[0]
    assert torch.equal(moved, run(alone, grad[None])[0][2:5])
    assert memory[:, 2:5].abs().sum() > 0
    assert memory[:, :2].abs().sum() == 0


def keeps(x: object) -> Any:
    class Keeps(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float):
            super().__init__(params, {"lr": lr})

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.state[self.param_groups[0]["params"][0]]["kept"] = x

    return Keeps


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (keeps(3), "whose state has kept, int; allowed: an optimizer whose state is tensors"),
        (keeps(torch.zeros(2, 2)), r"whose state has kept, torch.float32 \[2, 2\] for four weights"),
        (keeps(torch.zeros(4, dtype=torch.float64)), r"kept, torch.float64 \[4\] for four weights"),
        (torch.optim.LBFGS, "LBFGS given, which failed on four weights: .*closure"),
        (lambda parameters: None, "failed on four weights: .*unexpected keyword argument 'lr'; allowed: module:"),
    ],
)
def test_an_own_optimizer_that_does_not_fit_is_one_line(own: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^--optimizer: .*{said}") as e:
        OptimizerSpec(own)
    assert "\n" not in str(e.value)


# Adam of parts with learning rates and periods of their own.


PARTS = (OptimizerPart(5, 2.0, 1), OptimizerPart(4, 1.0, 3), OptimizerPart(2, 0.5, 2))


def test_parts_are_adams_of_their_own():
    """Each as torch's Adam of that part, stepped only in its turns."""
    rng = torch.Generator().manual_seed(0)
    weights, eps = torch.randn(11, generator=rng), 1e-5
    parameter = torch.nn.Parameter(weights.clone())
    own = OptimizerSpec("adam", eps, parts=PARTS).make(parameter, 1e-2)
    alone = [torch.nn.Parameter(x.clone()) for x in weights.split([p.size for p in PARTS])]
    theirs = [torch.optim.Adam([x], lr=1e-2 * part.rate, eps=eps) for x, part in zip(alone, PARTS, strict=True)]
    pure, state = weights.clone(), [x.clone() for x in optimizer_state(own).values()]
    for update in range(1, 20):
        grad = torch.randn(11, generator=rng)
        parameter.grad = grad.clone()
        own.step()
        for x, slope, optimizer, part in zip(alone, grad.split([p.size for p in PARTS]), theirs, PARTS, strict=True):
            if update % part.every == 0:
                x.grad = slope.clone()
                optimizer.step()
        pure, state, _ = pure_step(OptimizerSpec("adam", eps, parts=PARTS), pure, grad, state, torch.tensor(1e-2))
        torch.testing.assert_close(parameter.detach(), torch.cat([x.detach() for x in alone]), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(pure, parameter.detach(), rtol=1e-5, atol=1e-6)
    assert int(state[0]) == int(optimizer_state(own)["step"]) == 19


def test_parts_follow_the_children_of_a_network():
    network = torch.nn.Module()
    network.actor, network.critic, network.scale = torch.nn.Linear(2, 3), torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
    found = parts_of(network, actor=(1.0, 2), critic=(3.0, 1))
    assert [(p.size, p.rate, p.every) for p in found] == [(9, 1.0, 2), (3, 3.0, 1), (2, 1.0, 1)]
    assert parts_of(network, actor=(1.0, 1)) == ()
    with pytest.raises(UserError, match=r"--optimizer: sgd given, but parts of the network .*; use adam"):
        OptimizerSpec("sgd", parts=found)
