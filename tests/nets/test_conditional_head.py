"""Conditional actions: against a slow twin in float64 that lists every whole action."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.envs.spaces import Box, Conditional, Discrete, MultiBinary, MultiDiscrete
from polyplay.nets import factory
from polyplay.nets.action_heads import ConditionalHead, Gaussian, LogProbGuard, for_space
from tests.nets.helpers import arrivals, conditional, masks, play, vector

LEAVES = st.sampled_from([Discrete(1), Discrete(3), MultiDiscrete((2,), (2, 3)), MultiBinary((2,))])


@st.composite
def actions(draw):
    n = draw(st.integers(1, 4))
    users = st.sets(st.integers(0, n - 1), min_size=1).map(lambda v: tuple(sorted(v)))
    rest = draw(st.dictionaries(st.sampled_from("abc"), st.tuples(LEAVES, users), min_size=1, max_size=2))
    leaves, uses = {k: leaf for k, (leaf, _) in rest.items()}, {k: u for k, (_, u) in rest.items()}
    return Conditional({"verb": Discrete(n), **leaves}, uses)


def some_masks(action, n, rng):
    """Masks [n, …] in either form; rows that no legal value uses have nothing legal, where that can be."""
    verbs, found = action[action.first].n, {}
    legal = rng.random((n, verbs)) < 0.6
    legal[np.arange(n), rng.integers(0, verbs, n)] = True
    found[action.first] = legal
    for name, users in action.uses.items():
        sizes = action[name].classes
        parts = []
        for k in sizes:
            part = rng.random((n, verbs, k)) < 0.6
            part[np.arange(n)[:, None], np.arange(verbs), rng.integers(0, k, (n, verbs))] = True
            parts.append(part)
        each = np.concatenate(parts, 2)
        needed = legal & np.isin(np.arange(verbs), users)
        found[name] = (each & needed[..., None]) if rng.random() < 0.5 else each[:, 0] & needed.any(1)[:, None]
    return tree.map(torch.from_numpy, found)


def every_action(action):
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


@settings(max_examples=30, deadline=None)
@given(action=actions(), masked=st.booleans(), seed=st.integers(0, 2**16))
def test_whole_actions_have_the_twins_probabilities_which_add_up_to_1(action, masked, seed):
    rng = np.random.default_rng(seed)
    head, whole = for_space(action), list(every_action(action))
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


def legal_actions(action, mask, drawn):
    """bool [n]: the value is legal, and of the parts that it uses every number; unused ones are 0."""
    value = drawn[action.first]
    n = torch.arange(len(value))
    good = mask[action.first][n, value]
    for name, leaf in action.items():
        if name != action.first:
            used = torch.from_numpy(action.used(name))[value]
            allowed = mask[name] if mask[name].dim() == 2 else mask[name][n, value]
            numbers, at = drawn[name].reshape(len(n), -1).long(), 0
            good &= used | (numbers == 0).all(1)
            for i, k in enumerate(leaf.classes):
                good &= ~used | allowed[n, at + numbers[:, i]]
                at += k
    return good


LANES = Conditional(
    {"primary": Discrete(8), "unit": Discrete(9), "offset": MultiDiscrete((2,), (3, 3)), "cast": MultiBinary((2,))},
    {"unit": (2, 3, 6), "offset": (1, 6), "cast": tuple(range(8))},
)


@pytest.mark.parametrize("draws", [200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_no_illegal_action_is_drawn(draws):
    rng, n, head = np.random.default_rng(draws), 20_000, for_space(LANES)
    torch.manual_seed(0)
    seen = torch.zeros(8, dtype=torch.int64)
    for _ in range(draws // n):
        mask = some_masks(LANES, n, rng)
        params = head.masked(torch.randn(n, head.size) * 5, mask)
        drawn = head.sample(params, torch.rand(n, head.noise))
        assert legal_actions(LANES, mask, drawn).all()
        assert (head.logp(params, drawn) > -1e6).all()
        seen += drawn["primary"].bincount(minlength=8)
    assert legal_actions(LANES, mask, head.mode(params)).all()
    assert (seen > draws / 100).all()


def test_draws_are_as_frequent_as_probable():
    action = Conditional({"a": Discrete(3), "b": Discrete(2)}, {"b": (1, 2)})
    head, n = for_space(action), 50_000
    params = torch.randn(1, head.size, generator=torch.Generator().manual_seed(1))
    whole = list(every_action(action))
    torch.manual_seed(0)
    drawn = head.sample(params.expand(n, -1), torch.rand(n, head.noise))
    p = head.logp(params.expand(len(whole), -1), as_tensors(action, whole)).exp()
    for (value, numbers), chance in zip(whole, p.tolist(), strict=True):
        share = ((drawn["a"] == value) & (drawn["b"] == numbers.get("b", (0,))[0])).float().mean().item()
        assert abs(share - chance) < 5 * math.sqrt(chance * (1 - chance) / n)


def test_what_is_not_used_hears_exactly_nothing_and_what_is_used_hears_something():
    torch.manual_seed(0)
    head = for_space(LANES)
    n = 64
    params = torch.randn(n, head.size, dtype=torch.float64).requires_grad_()
    mask = some_masks(LANES, n, np.random.default_rng(0))
    mask = {**mask, "unit": mask["primary"].new_ones(n, 9)}
    within = head.masked(params, mask)
    drawn = head.sample(within.float(), torch.rand(n, head.noise))
    assert head.used.index_select(1, drawn["primary"]).float().mean(1).min() > 0.05, "every part is used somewhere"
    (chosen,) = torch.autograd.grad(head.logp(within, drawn).sum(), params, retain_graph=True)
    blocks = {"primary": [(None, 0, 8)]}
    at = 8
    for name, users in LANES.uses.items():
        width = {"unit": 9, "offset": 6, "cast": 2}[name]
        blocks[name] = [(user, at + i * width, at + (i + 1) * width) for i, user in enumerate(users)]
        at += len(users) * width
    assert at == head.size
    value = drawn["primary"]
    for name in LANES.uses:
        for user, start, end in blocks[name]:
            assert (chosen[value != user][:, start:end] == 0).all()
    assert (chosen[:, :8].abs().sum(1) > 0)[mask["primary"].sum(1) > 1].all()
    for user, start, end in blocks["unit"]:  # all of them are legal: every one is heard
        assert (chosen[value == user][:, start:end] != 0).all()
    for user, start, end in [*blocks["offset"], *blocks["cast"]]:
        assert chosen[value == user][:, start:end].abs().sum() > 0
    (spread,) = torch.autograd.grad(head.entropy(within).sum(), params)
    assert spread.isfinite().all()
    for name in LANES.uses:
        for user, start, end in blocks[name]:
            legal = mask["primary"][:, user]
            assert (spread[~legal][:, start:end] == 0).all()
            assert spread[legal][:, start:end].abs().sum() > 0


def test_every_group_of_inputs_is_heard_by_what_uses_it():
    """Through a network: gradients of log-probabilities at the observation."""
    torch.manual_seed(0)
    spec = conditional(vector(7))
    policy = factory.make("mlp", spec, "lstm", 16, init="torch")
    batch = arrivals(spec.obs, 4, 9, policy.noise)
    batch["obs"].requires_grad_()
    said, _ = play(policy, tree.map(torch.Tensor.detach, batch), policy.initial(9))
    out = policy.unroll({**batch, "action": said["action"]}, policy.initial(9))
    (out["logp"].sum() + out["entropy"].sum()).backward()
    assert (batch["obs"].grad.abs().sum((0, 1)) > 0).all()
    used = policy.head.used.index_select(1, said["action"]["a"].flatten()).any(1)
    assert used.all()
    assert (policy.actions.weight.grad.abs().sum(1) > 0).all(), "by the entropy every number counts"


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


def test_real_numbers_may_be_conditional_too():
    torch.manual_seed(0)
    box = Box((2,), np.float32([-1, -1]), np.float32([1, 1]))
    head = for_space(Conditional({"a": Discrete(3), "aim": box}, {"aim": (0, 2)}))
    params = torch.randn(40, head.size).requires_grad_()
    drawn = head.sample(params, torch.rand(40, head.noise))
    assert (drawn["aim"][drawn["a"] == 1] == 0).all()
    plain = Gaussian((2,))
    logp, first = head.logp(params, drawn), params[:, :3].log_softmax(1)
    for i, value in enumerate(drawn["a"].tolist()):
        own = {0: params[i : i + 1, 3:5], 2: params[i : i + 1, 5:7]}
        more = plain.logp(own[value], drawn["aim"][i : i + 1]).item() if value in own else 0.0
        assert logp[i].item() == pytest.approx(first[i, value].item() + more, abs=1e-5)
    (drawn["aim"].detach().sum() + logp.sum()).backward()
    assert (params.grad[drawn["a"] == 1, 3:] == 0).all()
    spread = -(first.exp() * first).sum(1) + (first.exp()[:, [0, 2]] * plain.entropy(params[:1, :2])).sum(1)
    torch.testing.assert_close(head.entropy(params), spread)


def test_guards_of_probabilities_hold_for_every_part():
    action = Conditional({"a": Discrete(2), "b": Discrete(2)}, {"b": (1,)})
    head = for_space(action, LogProbGuard("max", 1e-2))
    params = torch.tensor([[0.0, 30.0, 30.0, 0.0]])
    logp = head.logp(params, {"a": torch.tensor([1]), "b": torch.tensor([1])})
    assert logp.item() == pytest.approx(math.log(1e-2))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_acting_and_learning_say_the_same_to_the_bit_on_rows_of_the_toy(core):
    """At lag 0: the pool's own rows and masks, the weights that acted, previous actions heard."""
    torch.manual_seed(0)
    envs = Envs("toy:conditional", 7)
    pool, policy = envs.open(0), factory.make("mlp", envs.spec, core, 24, previous=True)
    for p in policy.parameters():
        p.data += 0.3 * torch.randn_like(p)
    state = before = policy.initial(7)
    rows, said = [], []
    for _ in range(12):
        lanes, row = pool.recv()
        step = tree.map(torch.from_numpy, tree.map(np.copy, {k: row[k] for k in ("obs", "mask", "reward", "first")}))
        with torch.no_grad():
            out, state = policy.act({**step, "noise": torch.rand(7, policy.noise)}, state)
        rows.append(step)
        said.append(out)
        pool.send(lanes, tree.map(lambda x: x.numpy(), out["action"]))
        assert not (row["reward"] < 0).any(), "nothing illegal"
    batch, acted = (tree.map(lambda *x: torch.stack(x), *part) for part in (rows, said))
    out = policy.unroll({**batch, "action": acted["action"]}, before)
    assert torch.equal(out["logp"], acted["logp"])
    assert torch.equal(out["value"], acted["value"])
    verb = acted["action"]["verb"]
    assert (acted["action"]["unit"][(verb == 0) | (verb == 2)] == 0).all()
    assert (acted["action"]["offset"][verb < 2] == 0).all()
    assert set(verb.flatten().tolist()) == {0, 1, 2, 3}


def test_helpers_masks_fit_the_specs_fields():
    spec = conditional(vector(3))
    drawn = masks(spec, 2, 5)
    assert {k: tuple(v.shape[2:]) for k, v in drawn.items()} == {k: f.shape for k, f in spec.mask.items()}
