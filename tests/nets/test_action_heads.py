"""Heads of actions: torch's distributions, guarded logarithms, parts that depend on a first one, units by name."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Conditional, Discrete, MultiBinary, MultiDiscrete
from polyplay.nets import action_heads, factory
from polyplay.nets.action_heads import (
    Bernoulli,
    Categorical,
    ConditionalHead,
    Gaussian,
    MultiCategorical,
    UnitPointer,
    for_space,
)
from polyplay.nets.layers import axis
from tests.nets.fights import FIGHT, OBS, SETS, doubles, rows
from tests.nets.helpers import arrivals, bind, continuous, every_action, hybrid, masks, play, vector


def grid(n: int) -> torch.Tensor:
    """Midpoints of n equal parts of (0, 1)."""
    return ((torch.arange(n) + 0.5) / n).unsqueeze(1)


def test_impossible_actions_are_never_drawn_and_the_edges_are_in_range():
    head, inf = Categorical(4), math.inf
    noise = torch.tensor([[0.0], [2.0**-25], [0.5], [1 - 2.0**-24], [1.0]])
    for logits, allowed in (
        ([-inf, 0.0, 1.0, -inf], {1, 2}),
        ([0.0, -inf, -inf, -inf], {0}),
        ([0.0] * 4, {0, 2, 3}),
    ):
        drawn = head.sample(torch.tensor(logits).expand(5, 4), noise)
        assert set(drawn.tolist()) == allowed
    many = torch.randn(2000, 4) * 10
    assert head.sample(many, torch.ones(2000, 1)).max() <= 3


def test_gaussian_logp_and_entropy_are_torchs():
    head, mean = Gaussian((2, 3)), torch.randn(50, 6)
    head.log_std.data += torch.randn(6) * 0.3 - 0.7
    theirs = distributions.Independent(distributions.Normal(mean, head.log_std.exp()), 1)
    action = head.sample(mean, torch.rand(50, 6))
    assert action.shape == (50, 2, 3)
    torch.testing.assert_close(head.logp(mean, action), theirs.log_prob(action.flatten(1)))
    torch.testing.assert_close(head.entropy(mean), theirs.entropy())
    assert torch.equal(head.mode(mean).flatten(1), mean)
    assert torch.equal(head.embed(action), action.flatten(1))


def test_gaussian_samples_are_the_normals_quantiles():
    head, n = Gaussian((1,)), 10_000
    head.log_std.data.fill_(math.log(2.0))
    action = head.sample(torch.full((n, 1), 3.0), grid(n)).squeeze(1)
    quantiles = distributions.Normal(3.0, 2.0).icdf(grid(n).squeeze(1))
    torch.testing.assert_close(action, quantiles, atol=2e-3, rtol=0)
    assert action.mean().item() == pytest.approx(3.0, abs=1e-3)
    assert action.std().item() == pytest.approx(2.0, abs=1e-2)
    assert head.sample(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]])).isfinite().all()


def test_composite_puts_its_parts_together():
    box = continuous(vector(1), 2).action
    head = for_space({"type": Discrete(3), "b": {"0": box, "1": MultiBinary((2,))}, "m": MultiDiscrete((2,), (2, 1))})
    parts = Categorical(3), Gaussian((2,)), Bernoulli((2,)), MultiCategorical((2,), (2, 1))
    params, noise = torch.randn(9, 10), torch.rand(9, 7)
    action = head.sample(params, noise)
    cuts, each = params.split((3, 2, 2, 3), 1), noise.split((1, 2, 2, 2), 1)
    alone = [h.sample(x, u) for h, x, u in zip(parts, cuts, each, strict=True)]
    assert all(torch.equal(a, b) for (_, a), b in zip(tree.leaves(action), alone, strict=True))
    hot = torch.cat([torch.nn.functional.one_hot(alone[3][:, i], n) for i, n in enumerate((2, 1))], 1)
    embedded = [h.embed(a) for h, a in zip(parts[:3], alone[:3], strict=True)]
    assert torch.equal(head.embed(action), torch.cat([*embedded, hot.float()], 1))
    torch.testing.assert_close(head.logp(params, action), sum(map(lambda h, x, a: h.logp(x, a), parts, cuts, alone)))
    torch.testing.assert_close(head.entropy(params), sum(map(lambda h, x: h.entropy(x), parts, cuts)))


# -------------------------------------------------------------------------------- of any actions
LEAVES = st.one_of(
    st.integers(1, 4).map(Discrete),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(lambda n: MultiDiscrete((len(n),), tuple(n))),
    st.just(MultiDiscrete((1, 2), (2, 3))),
    st.sampled_from([(1,), (2,), (1, 2)]).map(MultiBinary),
)
ACTIONS = LEAVES | st.dictionaries(st.sampled_from("abc"), LEAVES, min_size=1, max_size=3)


def some_mask(action, n):
    """Bool masks [n, values] with something legal for each number; the same flat, and split among the leaves."""
    leaves = list(tree.leaves(action))
    sizes = [k for _, leaf in leaves for k in leaf.classes]
    flat = torch.cat([(torch.rand(n, k) < 0.5).scatter(1, torch.randint(k, (n, 1)), True) for k in sizes], 1)
    parts = flat.split([sum(leaf.classes) for _, leaf in leaves], 1)
    return flat, tree.nest({path: part for (path, _), part in zip(leaves, parts, strict=True)})


@settings(max_examples=50, deadline=None)
@given(action=ACTIONS, masked=st.booleans(), seed=st.integers(0, 2**16))
def test_probabilities_add_up_to_1_and_illegal_actions_have_none(action, masked, seed):
    torch.manual_seed(seed)
    head = for_space(action)
    all_of_them, values, sizes = every_action(action)
    n = len(values)
    params = (torch.randn(1, head.size) * 4).expand(n, -1)
    legal = torch.ones(n, dtype=torch.bool)
    if masked:
        flat, mask = some_mask(action, 1)
        params = head.masked(params, tree.map(lambda m: m.expand(n, -1), mask))
        offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        legal = flat[0][values + offsets].all(1)
    logp = head.logp(params, all_of_them)
    p = logp.exp()
    assert (p[~legal] == 0).all()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-5)
    entropy = -(p[legal] * logp[legal]).sum().item()
    assert head.entropy(params)[0].item() == pytest.approx(entropy, abs=1e-4)
    mode = head.logp(params, head.mode(params))[0].item()
    assert mode == pytest.approx(logp.max().item(), abs=1e-5)


RANGES = {
    "set points": ([900.0], [1100.0]),
    "torques": ([-0.4, -2.0], [0.4, 2.0]),
    "one-sided rates": ([0.0, 1e6, -5.0], [1e-3, 5e6, 0.0]),
}


@pytest.mark.parametrize(("low", "high"), RANGES.values(), ids=RANGES)
def test_a_policy_s_minus_one_to_one_is_an_environment_s_range(low, high):
    low, high = np.float32(low), np.float32(high)
    n = len(low)
    head, unit = for_space(Box((n,), low, high)), Gaussian((n,))
    ends = head.mode(torch.tensor([[-1.0] * n, [1.0] * n]))
    torch.testing.assert_close(ends, torch.from_numpy(np.stack([low, high])))
    mean, noise = torch.randn(200, n) / 3, torch.rand(200, n)
    action, plain = head.sample(mean, noise), unit.sample(mean, noise)
    torch.testing.assert_close(head.embed(action), plain, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head.logp(mean, action), unit.logp(mean, plain), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(head.entropy(mean), unit.entropy(mean))
    assert not list(head.buffers()), "what is no weight is not published and averaged with them"


def test_parts_without_bounds_and_with_one_number_only():
    inf, largest = np.float32(np.inf), np.finfo(np.float32).max
    box = Box((4,), np.array([-inf, 0, -largest, 7], np.float32), np.array([inf, inf, largest, 7], np.float32))
    head, mean = for_space(box), torch.tensor([[0.3, -2.0, 5.0, 0.9]])
    assert head.mode(mean)[0].tolist() == pytest.approx([0.3, -2.0, 5.0, 7.0])
    assert head.logp(mean, head.mode(mean)).isfinite().all()
    free = for_space(Box((2,), np.full(2, -inf), np.full(2, inf)))
    assert free.range is None


def test_a_range_of_minus_one_to_one_and_clipped_actions_are_left_as_they_are_to_the_bit():
    mean, noise = torch.randn(50, 3), torch.rand(50, 3)
    plain = Gaussian((3,)).sample(mean, noise)
    assert torch.equal(for_space(continuous(vector(1), 3).action).sample(mean, noise), plain)
    box = Box((3,), np.full(3, 900, np.float32), np.full(3, 1100, np.float32))
    assert torch.equal(for_space(box, scaled=False).sample(mean, noise), plain)
    many = {"a": box, "b": Discrete(2)}
    assert for_space(many).mode(torch.zeros(1, 5))["a"].tolist() == [[1000.0] * 3]
    assert for_space(many, scaled=False).mode(torch.zeros(1, 5))["a"].tolist() == [[0.0] * 3]


# Conditional actions: against a slow twin in float64 that lists every whole action.

CONDITIONAL_LEAVES = st.sampled_from([Discrete(1), Discrete(3), MultiDiscrete((2,), (2, 3)), MultiBinary((2,))])


@st.composite
def actions(draw):
    n = draw(st.integers(1, 4))
    users = st.sets(st.integers(0, n - 1), min_size=1).map(lambda v: tuple(sorted(v)))
    rest = draw(st.dictionaries(st.sampled_from("abc"), st.tuples(CONDITIONAL_LEAVES, users), min_size=1, max_size=2))
    leaves, uses = {k: leaf for k, (leaf, _) in rest.items()}, {k: u for k, (_, u) in rest.items()}
    return Conditional({"verb": Discrete(n), **leaves}, uses)


def some_masks(action, n, rng):
    """Masks [n, …] in either form; rows that no legal value uses have nothing legal, where that can be."""
    verbs, shapes = action[action.first].n, {name: (sum(leaf.classes),) for name, leaf in action.items()}
    shapes |= {name: (verbs, *shapes[name]) for name in action.uses if rng.random() < 0.5}
    found = masks(EnvSpec(vector(1), action, mask={name: Field(shape, "bool") for name, shape in shapes.items()}), n)
    for name in action.uses:
        needed = found[action.first] & torch.from_numpy(action.used(name))
        found[name] &= (needed if found[name].dim() == 3 else needed.any(1)).unsqueeze(-1)
    return found


def whole_actions(action):
    """All whole actions: (value, {used part: numbers})."""
    for value in range(action[action.first].n):
        used = [name for name, users in action.uses.items() if value in users]
        choices = [itertools.product(*map(range, action[name].classes)) for name in used]
        for numbers in itertools.product(*choices):
            yield value, dict(zip(used, numbers, strict=True))


def number_logits(leaf, params):
    """Of a leaf's params (a list), the logits of each of its numbers."""
    if isinstance(leaf, MultiBinary):
        return [[0.0, x] for x in params]
    starts = [0, *itertools.accumulate(leaf.classes)]
    return [params[a:b] for a, b in itertools.pairwise(starts)]


def log_softmax(logits, legal):
    kept = [x for x, yes in zip(logits, legal, strict=True) if yes]
    if not kept:
        return [-math.inf] * len(logits)
    total = max(kept) + math.log(sum(math.exp(x - max(kept)) for x in kept))
    return [x - total if yes else -math.inf for x, yes in zip(logits, legal, strict=True)]


def plain_logp(action, params, mask, value, numbers):
    """Of a whole action, under one row of params (a list): the layout said in words, number by number."""
    n = action[action.first].n
    legal = [True] * n if mask is None else mask[action.first]
    logp = log_softmax(params[:n], legal)[value]
    at = n
    for name, users in action.uses.items():
        width = len(action[name].classes) if isinstance(action[name], MultiBinary) else sum(action[name].classes)
        for user in users:
            if user == value:
                allowed = [True] * sum(action[name].classes) if mask is None else mask[name]
                allowed = allowed[value] if isinstance(allowed[0], list) else allowed
                pieces = number_logits(action[name], params[at : at + width])
                for x, chosen in zip(pieces, numbers[name], strict=True):
                    here, allowed = allowed[: len(x)], allowed[len(x) :]
                    logp += log_softmax(x, here)[chosen]
            at += width
    return logp


def as_tensors(action, whole):
    """Whole actions as a head takes them: what is not used is 0."""
    found = {action.first: torch.tensor([value for value, _ in whole])}
    for name in action.uses:
        field = action[name].field
        rows = [numbers.get(name, (0,) * len(action[name].classes)) for _, numbers in whole]
        found[name] = torch.tensor(rows).reshape(len(rows), *field.shape).to(getattr(torch, field.dtype))
    return found


@settings(max_examples=15, deadline=None)
@given(action=actions(), masked=st.booleans(), seed=st.integers(0, 2**16))
def test_whole_actions_have_the_twins_probabilities_which_add_up_to_1(action, masked, seed):
    rng = np.random.default_rng(seed)
    head, whole = for_space(action), list(whole_actions(action))
    assert isinstance(head, ConditionalHead)
    params = torch.from_numpy(rng.normal(size=(1, head.size)) * 3)
    mask = some_masks(action, 1, rng) if masked else None
    n, listed = len(whole), None if mask is None else {k: v[0].tolist() for k, v in mask.items()}
    within = params if mask is None else head.masked(params, mask)
    logp = head.logp(within.expand(n, -1), as_tensors(action, whole))
    assert logp.dtype == torch.float64
    twin = [plain_logp(action, params[0].tolist(), listed, *one) for one in whole]
    p = logp.exp()
    assert p.tolist() == pytest.approx([math.exp(x) for x in twin], rel=1e-9)
    assert ((p == 0) == torch.tensor([x == -math.inf for x in twin])).all()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-12)
    entropy = -sum(math.exp(x) * x for x in twin if x > -math.inf)
    assert head.entropy(within).item() == pytest.approx(entropy, abs=1e-9)
    best = {action.first: head.mode(within)[action.first]}
    assert best[action.first].item() == within[0, : action[action.first].n].argmax().item()
    assert head.logp(within, head.mode(within)).item() == pytest.approx(
        max(x for x, (value, _) in zip(twin, whole, strict=True) if value == best[action.first].item()), rel=1e-9
    )


@settings(max_examples=50, deadline=None)
@given(action=ACTIONS | actions(), big=st.sampled_from([1.0, 30.0]), seed=st.integers(0, 2**16))
def test_what_is_drawn_is_legal_and_gradients_are_finite(action, big, seed):
    torch.manual_seed(seed)
    head = for_space(action)
    params = (torch.randn(64, head.size) * big).requires_grad_()
    conditional = isinstance(action, Conditional)
    mask = some_masks(action, 64, np.random.default_rng(seed)) if conditional else some_mask(action, 64)[1]
    within, edges = head.masked(params, mask), torch.rand(64, head.noise)
    edges[:2], edges[2:4] = 0.0, 1.0
    for drawn in (head.sample(within, edges), head.mode(within)):
        assert (head.logp(within, drawn) > -1e6).all(), "an illegal one has less"
    entropy = head.entropy(within)
    assert (entropy >= -1e-5).all()
    (1e3 * head.logp(within, head.sample(within, edges)).sum() + 1e3 * entropy.sum()).backward()
    assert params.grad.isfinite().all()


LANES = Conditional(
    {"primary": Discrete(8), "unit": Discrete(9), "offset": MultiDiscrete((2,), (3, 3)), "cast": MultiBinary((2,))},
    {"unit": (2, 3, 6), "offset": (1, 6), "cast": tuple(range(8))},
)


def test_draws_are_as_frequent_as_probable():
    action = Conditional({"a": Discrete(3), "b": Discrete(2)}, {"b": (1, 2)})
    head, n = for_space(action), 50_000
    params = torch.randn(1, head.size, generator=torch.Generator().manual_seed(1))
    whole = list(whole_actions(action))
    torch.manual_seed(0)
    drawn = head.sample(params.expand(n, -1), torch.rand(n, head.noise))
    p = head.logp(params.expand(len(whole), -1), as_tensors(action, whole)).exp()
    for (value, numbers), chance in zip(whole, p.tolist(), strict=True):
        share = ((drawn["a"] == value) & (drawn["b"] == numbers.get("b", (0,))[0])).float().mean().item()
        assert abs(share - chance) < 5 * math.sqrt(chance * (1 - chance) / n)


def test_what_stands_in_unused_parts_does_not_matter():
    """As a scripted player's actions may have it: the log-probability, and what the network hears of it."""
    torch.manual_seed(0)
    head = for_space(LANES)
    params, n = torch.randn(50, head.size), 50
    drawn = head.sample(params, torch.rand(n, head.noise))
    other = {k: torch.where(drawn[k] == 0, torch.ones_like(drawn[k]), drawn[k]) for k in LANES.uses}
    used = {k: torch.from_numpy(LANES.used(k))[drawn["primary"]] for k in LANES.uses}
    shaped = {k: u.view(-1, *[1] * (drawn[k].dim() - 1)) for k, u in used.items()}
    odd = {"primary": drawn["primary"], **{k: torch.where(shaped[k], drawn[k], other[k]) for k in LANES.uses}}
    assert any((odd[k] != drawn[k]).any() for k in LANES.uses)
    assert torch.equal(head.logp(params, odd), head.logp(params, drawn))
    assert torch.equal(head.embed(odd), head.embed(drawn))
    embedded = head.embed(drawn)
    assert embedded.shape == (n, head.inputs)
    assert (embedded[:, 8:17].sum(1) == used["unit"].float()).all(), "unit 0 is something else than no unit"


# polyplay/nets/action_heads.py, alone and through every kind of head, against slow NumPy twins.

KINDS = ("none", "max", "plus")
LARGE = 1e-2  # ε


def twin(logits: np.ndarray, guard: str) -> tuple[np.ndarray, np.ndarray]:
    """π and its guarded logarithm of one row of legal logits, in plain float64."""
    raw = [math.exp(x - max(logits)) for x in logits]
    pi = [x / sum(raw) for x in raw]
    logs = {"none": math.log, "max": lambda p: math.log(max(p, LARGE)), "plus": lambda p: math.log(p + LARGE)}
    return np.array(pi), np.array([logs[guard](p) for p in pi])


def scored(logits: np.ndarray, guard: str, a: int) -> tuple[float, float]:
    pi, logs = twin(logits, guard)
    return logs[a], -float(pi @ logs)


def slopes(f, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of f: [n] → number."""
    return np.array([(f(x + d) - f(x - d)) / (2 * step) for d in np.eye(len(x)) * step])


LOGITS = np.array([1.0, -2.0, 0.5, -7.0, 3.0])  # the fourth is far below ε = 0.01, the second too


@pytest.mark.parametrize("guard", KINDS)
@pytest.mark.parametrize("a", range(5))
def test_values_and_gradients_are_the_twins(guard, a, monkeypatch):
    monkeypatch.setattr(action_heads, "EPS", LARGE)
    head = action_heads.Categorical(5, guard)
    for which, got in enumerate((lambda x: head.logp(x, torch.tensor([a])), head.entropy)):
        x = torch.tensor(LOGITS[None], requires_grad=True)
        value = got(x)
        (grad,) = torch.autograd.grad(value.sum(), x)
        assert value.item() == pytest.approx(scored(LOGITS, guard, a)[which], abs=1e-12)
        want = slopes(lambda z, which=which: scored(z, guard, a)[which], LOGITS)
        np.testing.assert_allclose(grad[0].numpy(), want, atol=1e-8)


@pytest.mark.parametrize("kind", ["max", "plus"])
def test_of_probability_0_in_float32_gradients_are_finite(kind):
    x = torch.tensor([[0.0, -200.0]], requires_grad=True)
    head, second = action_heads.Categorical(2, kind), torch.tensor([1])
    (grad,) = torch.autograd.grad(head.logp(x, second).sum() + head.entropy(x).sum(), x)
    assert grad.isfinite().all()
    assert head.logp(x, second).item() == pytest.approx(math.log(1e-6))


@pytest.mark.parametrize("guard", ["max", "plus"])
def test_acting_and_unrolling_say_the_same_also_in_hybrid_spaces(guard):
    spec = hybrid(vector(3))
    policy = factory.make("mlp", spec, guard=guard)
    batch = arrivals(spec.obs, 4, 8, policy.noise)
    batch["mask"] = masks(spec, 4, 8)
    said, _ = play(policy, batch, policy.initial(8))
    out = policy.unroll({**batch, "action": said["action"]}, policy.initial(8))
    assert torch.equal(out["logp"], said["logp"])
    kinds = {type(h).__name__: getattr(h, "guard", None) for h in policy.head.heads}
    kinds.pop("Gaussian")
    assert set(kinds.values()) == {guard}


def test_guarded_logarithms_of_real_numbers_are_refused():
    with pytest.raises(UserError, match=r"^--correction max: needs actions with probabilities, but the environment's"):
        factory.make("mlp", continuous(vector(2), 3), guard="max")


# Actions that name a unit: numbers beside a plain twin, acting and learning, what is drawn, the order of units.


def naming(unit: Tensor, primary: int) -> dict[str, Tensor]:
    return {"primary": torch.full_like(unit, primary), "unit": unit, "offset": torch.zeros_like(unit)}


def test_its_numbers_are_a_plain_twins_and_stand_where_the_head_looks_for_them():
    torch.manual_seed(0)
    head = for_space(FIGHT.action)
    pointer = UnitPointer(axis("features", 7), head, "unit", 6)
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


def test_units_are_normalized_alike_wherever_they_stand():
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


def test_the_first_deviation_of_real_actions_may_be_given():
    spec = EnvSpec(Field((3,), "float32"), Box((2,), -np.ones(2, np.float32), np.ones(2, np.float32)))
    policy = factory.make("mlp", spec, deviation=0.5)
    assert policy.head.log_std.tolist() == pytest.approx([math.log(0.5)] * 2)
    noise = torch.full((1000, policy.noise), 0.5).uniform_(generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        drawn = policy.act({"obs": torch.zeros(1000, 3), "noise": noise}, policy.initial(1000))[0]["action"]
    assert drawn.std(0).tolist() == pytest.approx([0.5, 0.5], rel=0.1)
