"""The update as a pure function of tensors: what learners compute, traced whole for every system, loss, head and core;
every input of it moves the loss or its gradient.
"""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import polyplay
from polyplay.core import tree
from polyplay.core.tree import Batch, Field
from polyplay.envs import Envs
from polyplay.envs.pool import EnvSpec
from polyplay.games.board_pool import board_of
from polyplay.learning import losses, value_losses
from polyplay.learning.learner import Minibatches, Runner
from polyplay.learning.losses import ActorCriticLoss, AlphaZeroLoss, Loss, LossOutput
from polyplay.learning.pure_update import EAGER, make_act, make_loss, make_update
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets.device import set_precision
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.nets.policy import Policy
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.weights.params import FlatParams
from tests.nets import fights
from tests.nets.helpers import arrivals, conditional, continuous, discrete, hybrid, image, masks, play, vector

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from digests import CASES, QUIET  # type: ignore[import-not-found]

# Systems: short runs of bench/digests.py's cases, of which each update's arguments and results are kept.


SMALL: dict[str, dict[str, Any]] = {
    "a2c": {"steps": 600},
    "ppo": {"steps": 400, "learning_rate": 0.1, "epochs": 4},
    "dqn": {"steps": 64, "learning_starts": 32},
    "rainbow": {"steps": 64, "learning_starts": 32},
    "impala gru": {"steps": 400, "unroll": 4},
    "apex_dpg": {"steps": 400, "learning_starts": 32},
    "a3c": {"steps": 600},
    "accel": {"steps": 600},
    "accel_dqn": {"steps": 100, "learning_starts": 64},
    "alphago_zero": {"steps": 200, "learning_starts": 64},
    "apex": {"steps": 400, "learning_starts": 32},
    "appo": {"steps": 600},
    "five": {"steps": 1_600},
    "ftw": {"steps": 800, "unroll": 5, "memory": 3, "ranges": ("period=uniform:2:4",)},
    "ga3c": {"steps": 600},
    "gorila": {"steps": 300, "learning_starts": 32},
    "impala": {"steps": 600},
    "league": {"steps": 800},
    "pbt": {"steps": 200, "every": 100},
    "r2d2": {"steps": 200, "learning_starts": 64, "unroll": 4, "sequence": 4, "burn_in": 2},
    "a2c pong": {"steps": 160},
    "impala pong": {"steps": 320, "unroll": 4},
}
ROUNDED = {"ftw": "a temporal core's slow clock is computed in all lanes, and each use of a layer has its own gradient"}


class Example(NamedTuple):
    """One update: the arguments of the pure function, and what a learner made of them."""

    arguments: dict[str, Any]
    gradient: Tensor
    scored: LossOutput


class Recorded(NamedTuple):
    policy: Policy
    target: Policy | None
    loss: Loss
    examples: list[Example]


def vector_of(net: Policy | None) -> Tensor:
    return torch.zeros(0) if net is None else FlatParams(copy.deepcopy(net)).flat


def arguments(vector: Tensor, weights: int, target: Tensor, batch: Batch, state: Batch, hyper: Any) -> dict[str, Any]:
    named = {"weights": vector[:weights], "buffers": vector[weights:], "target": target}
    named |= {"batch": {k: v for k, v in batch.items() if k != "state"}, "state": state}
    kept = tree.map(lambda x: x.detach().clone(), named)
    return {**kept, "hyper": {k: torch.tensor(float(v)) for k, v in hyper.items()}}


@cache
def recorded(case: str) -> Recorded:
    """Up to four updates of a run that have batches of one shape."""
    found: list[tuple[Runner, Example]] = []
    run = Runner.__call__

    def note(runner: Runner, batch: Batch, state: Batch, version: int, tape: Any = None) -> LossOutput:
        given, vector = (runner.with_noise(batch, version), state, runner.hyper), runner.vector
        kept = arguments(vector.flat, vector.weights, vector_of(runner.target), *given)
        scored = run(runner, batch, state, version, tape)
        found.append((runner, Example(kept, runner.vector.grad.clone(), tree_of(scored))))
        return scored

    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as place:
        patch.setattr(Runner, "__call__", note)
        patch.setenv("OMP_NUM_THREADS", "1")
        polyplay.train(case.split()[0], run=f"{place}/run", **{**QUIET, **CASES[case], **SMALL[case]})
    runner, last = found[-1]
    alike = [x for of, x in found if of.loss == runner.loss and shapes(x.arguments) == shapes(last.arguments)]
    policy, target = copy.deepcopy((runner.policy, runner.target))
    assert len(alike) > 2, f"{len(found)} updates"
    return Recorded(policy, target, runner.loss, alike[-4:])


def tree_of(scored: LossOutput) -> LossOutput:
    """Without its graph."""
    return scored._replace(loss=scored.loss.detach(), metrics=dict(scored.metrics))


def shapes(given: Any) -> dict[str, Any]:
    return {path: (x.shape, x.dtype) for path, x in tree.leaves(given)}


def results(update: tuple[Tensor, Tensor, LossOutput]) -> dict[str, Tensor]:
    """By name."""
    gradient, buffers, scored = update
    found = {"gradient": gradient, "buffers": buffers, "loss": scored.loss, **scored.metrics}
    return found if scored.priority is None else {**found, "priority": scored.priority}


def check_same(found: dict[str, Tensor], wanted: dict[str, Tensor], rounded: bool = False) -> None:
    """Equal to the bit, or but for rounding."""
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        scale = max(float(x.abs().max()), 1.0) if x.numel() else 1.0
        bound = {"rtol": 1e-4, "atol": 1e-5 * scale} if rounded else {"rtol": 0.0, "atol": 0.0}
        assert torch.allclose(found[name], x, equal_nan=True, **bound), name


def fresh(net: Policy | None) -> Any:
    """Another module of the kind, with other weights, which a pure function must not look at."""
    made = copy.deepcopy(net)
    for x in () if made is None else made.parameters():
        x.data.normal_()
    return made


def called(update: Callable[..., Any], given: dict[str, Any]) -> Any:
    return update(*given.values())


def check_traced(policy: Policy, loss: Loss, target: Policy | None, given: list[dict[str, Any]], rounded: bool) -> None:
    """A trace with the first arguments gives what the function does of all."""
    update = make_update(fresh(policy), loss, fresh(target))
    graph = make_fx(make_update(fresh(policy), loss, fresh(target)))(*given[0].values())
    for each in given:
        before = tree.map(torch.clone, each)
        check_same(results(called(graph, each)), results(called(update, each)), rounded)
        assert all(x.equal(y) for (_, x), (_, y) in zip(tree.leaves(each), tree.leaves(before), strict=True))


@pytest.mark.parametrize("case", SMALL)
def test_a_system_s_update_is_a_pure_function_and_traced_whole(case):
    run = recorded(case)
    update = make_update(fresh(run.policy), run.loss, fresh(run.target))
    for example in run.examples:
        found = results(called(update, example.arguments))
        wanted = results((example.gradient, found["buffers"], example.scored))
        check_same(found, wanted)
    check_traced(run.policy, run.loss, run.target, [x.arguments for x in run.examples], case in ROUNDED)


@pytest.mark.parametrize("case", SMALL)
def test_dynamo_takes_a_system_s_loss_as_one_graph_and_new_hyperparameters_without_another(case):
    run = recorded(case)
    torch._dynamo.reset()
    plain, graph = (make_loss(fresh(run.policy), run.loss, fresh(run.target)) for _ in range(2))
    compiled = torch.compile(graph, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for k, example in enumerate(run.examples):
            hyper = {name: x * (1 + 0.1 * k) for name, x in example.arguments["hyper"].items()}
            given = {**example.arguments, "hyper": hyper}
            found, wanted = (differentiated(score, given) for score in (compiled, plain))
            check_same(results(found), results(wanted), case in ROUNDED)


def differentiated(score: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, Tensor, LossOutput]:
    """A pure loss and its gradient, from outside."""
    weights = given["weights"].clone().requires_grad_()
    scored, buffers = called(score, {**given, "weights": weights})
    (gradient,) = torch.autograd.grad(scored.loss, weights)
    return gradient, buffers, tree_of(scored)


# Every input of a system's update moves the loss or its gradient: what was forgotten would be a constant of a graph.


NEVER = {  # inputs that are for others
    "hyper/learning_rate": "the optimizer's",
    "batch/version": "lags are counted of it",
    "batch/agent": "says whose row it is",
    "batch/id": "says where a priority goes",
    "batch/game": "says which game it is of",
    "batch/truncated": "the value of its row is the bootstrap",
    "batch/team_reward": "events have it too",
}
A2C = {"a2c", "a2c pong", "a3c", "accel", "ga3c", "pbt"}
TRANSITIONS = {"dqn", "rainbow", "accel_dqn", "apex", "apex_dpg", "gorila"}
PREPARED = {"ppo", "five"}
UNUSED = {  # by input, why it does not count, and where
    "batch/logp": ("without a ratio of policies it is a metric's", A2C),
    "batch/value": (
        "targets are of the present values, or prepared, or another network's",
        {*PREPARED, "a3c", "impala", "impala gru", "impala pong", "league", "ftw", "appo", "apex", "apex_dpg", "r2d2"},
    ),
    "batch/chosen": ("first priorities are made of it", {"apex", "apex_dpg", "r2d2"}),
    "batch/reward": ("advantages are made of it before, or it is made of events", {*PREPARED, "ftw"}),
    "batch/terminated": ("discounts and advantages are made of it before", PREPARED),
    "batch/first": ("a transition is within an episode, and no core forgets", {*TRANSITIONS, "ppo", "alphago_zero"}),
    "batch/action": ("the search's visits are learnt", {"alphago_zero"}),
    "batch/discount": ("the outcome is the return", {"alphago_zero"}),
    "batch/events": ("here rewards are the game's", {"league"}),
    "buffers": ("batches have statistics of their own; rewards are scaled before", {"alphago_zero", "five"}),
    "hyper/remaining": ("only PPO's clip range falls", {"accel"}),
    "hyper/horizon": ("returns are made with it before", {"five"}),
    "hyper/step_time": ("returns are made with it before", {"five"}),
    "hyper/team_spirit": ("rewards are made with it before", {"five"}),
}


def other(x: Tensor) -> Tensor:
    """Other numbers of the kind: within the same bounds, or with some flags flipped."""
    generator = torch.Generator().manual_seed(0)
    if x.dtype == torch.bool:
        return x ^ (torch.rand(x.shape, generator=generator) < 0.3)
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=generator).to(x.dtype)
        return 2.0 * x + 1.0 if x.dim() == 0 else x + 0.1 * noise * (1.0 + x.abs())
    low, high = x.min(), x.max()
    return torch.where(x == high, low, x + 1) if low < high else (x - 1).abs()


def following(run: Recorded, given: dict[str, Any]) -> dict[str, Any]:
    """The same with buffers that have the network's hyperparameters, as a learner puts them there."""
    vector = FlatParams(copy.deepcopy(run.policy), torch.cat([given["weights"], given["buffers"]]), write=False)
    for tuned in vector.module.tuned:
        tuned.apply_hyperparameters({k: float(v) for k, v in given["hyper"].items()})
    return {**given, "buffers": vector.flat[vector.weights :].clone()}


def still(run: Recorded) -> set[str]:
    """Inputs that move neither loss nor gradient in any of the examples."""
    update = make_update(fresh(run.policy), run.loss, fresh(run.target))
    found = {path for path, x in tree.leaves(run.examples[0].arguments) if x.numel()}
    for example in run.examples:
        flat = dict(tree.leaves(example.arguments))
        gradient, _, scored = called(update, example.arguments)
        for path in sorted(found):
            nested = tree.nest({**flat, path: other(flat[path])})
            given = {name: nested.get(name, {}) for name in example.arguments}
            moved, _, now = called(update, following(run, given) if path.startswith("hyper") else given)
            if not (moved.equal(gradient) and now.loss.equal(scored.loss)):
                found.remove(path)
    return found


@pytest.mark.parametrize("case", SMALL)
def test_every_input_of_a_system_s_update_moves_it(case):
    run = recorded(case)
    inputs = {path for path, x in tree.leaves(run.examples[0].arguments) if x.numel()}
    assert still(run) == {path for path in inputs if path in NEVER or case in UNUSED.get(path, ("", ()))[1]}


# Every loss, head and core, on small shapes.


ROWS, LANES = 4, 3
OBS = vector(5)
HEADS: dict[str, tuple[str, EnvSpec]] = {
    "categorical": ("mlp", discrete(OBS, 4, mask=Field((4,), "bool"))),
    "several at once": ("mlp", hybrid(OBS)),
    "numbers": ("mlp", continuous(OBS, 2)),
    "conditional": ("mlp", conditional(OBS)),
    "pointer": ("five", fights.FIGHT),
}
CORES = ("none", "lstm", "gru", "temporal")
POLICY_LOSSES: dict[str, ActorCriticLoss | WithAuxiliary] = {
    "V-trace": losses.VTrace(),
    "A2C": losses.A2C(recalls=True),
    "A2C, unrolled": losses.A2C(values="unrolled", baseline="present", reduction="sum", reward="scale"),
    "PPO": losses.PPO(normalize_advantage=True, value_clip=True),
    "APPO": losses.APPO(),
}
HYPER = {"entropy_cost": 0.02, "remaining": 0.7}


def policy_of(name: str, spec: EnvSpec, core: str, **more: Any) -> NetworkFactory:
    """A network with statistics of its inputs and of returns."""
    hidden = {} if name == "five" else {"hidden": (8,)}
    given = {"core": core, "core_size": 6, "previous": True, "inputs": "normalize", "returns": 0.9}
    return NetworkFactory(name, spec, {**hidden, **given, "memory": 3 if core == "temporal" else 0, **more})


def rollout(policy: Policy, spec: EnvSpec, lanes: int = LANES) -> tuple[Batch, Batch]:
    """Rows as acting leaves them, some weights older than those that learn, and the state before them."""
    if spec is fights.FIGHT:
        rows = fights.rows(ROWS, lanes, policy.noise)
    else:
        rows = arrivals(spec.obs, ROWS, lanes, policy.noise)
        rows |= {} if spec.mask is None else {"mask": masks(spec, ROWS, lanes)}
    state = tree.map(lambda x: torch.rand_like(x) if x.is_floating_point() else x, policy.initial(lanes))
    said, _ = play(policy, rows, state)
    rows |= {**said, "terminated": torch.rand(ROWS, lanes) < 0.1}
    if "logp" in rows:
        rows["logp"] = rows["logp"] + 0.2 * torch.randn(ROWS, lanes)
    return {k: v for k, v in rows.items() if k != "noise"}, state


def prepared(policy: Policy, loss: Loss, rows: Batch, state: Batch) -> tuple[Batch, Batch]:
    """What the loss takes of a rollout: of several passes one of whole lanes."""
    if not isinstance(loss, losses.PPO | losses.APPO):
        return rows, state
    targets = loss.prepare(rows, policy.reward_scale())
    parts = Minibatches(rows, {"lanes": torch.zeros(LANES)}, targets, np.zeros((ROWS, LANES)), loss.whole)
    return parts.take(np.arange(LANES))[0], state


def check(policy: Policy, loss: Loss, target: Policy | None, batches: list[tuple[Batch, Batch]], rounded: bool) -> None:
    """The module that is bound to a vector, the pure function and its trace give the same."""
    bound = FlatParams(policy)
    runner = Runner(policy, target, loss, bound)
    runner.hyper = HYPER
    given = list[dict[str, Any]]()
    for k, (batch, state) in enumerate(batches):
        noisy = runner.with_noise(batch, k)
        given.append(arguments(bound.flat, bound.weights, vector_of(target), noisy, state, HYPER))
    check_traced(policy, loss, target, given, rounded)
    update = make_update(fresh(policy), loss, fresh(target))
    for k, ((batch, state), each) in enumerate(zip(batches, given, strict=True)):
        bound.flat.copy_(torch.cat([each["weights"], each["buffers"]]))
        scored = tree_of(runner(batch, state, k))
        check_same(results(called(update, each)), results((bound.grad, bound.flat[bound.weights :], scored)))


def made(factory: NetworkFactory, seed: int = 0) -> Any:
    """A network whose heads don't say nearly the same of all."""
    net = build_network(factory, seed)
    for x in net.parameters():
        x.data += 0.2 * torch.randn(x.shape)
    return net


POLICIES = [(loss, head, core) for core in CORES for head in HEADS for loss in POLICY_LOSSES]
POLICIES.sort(key=lambda x: (x[0] != "V-trace") + (x[1] != "several at once") + (x[2] != "lstm") + (x[2] == CORES[-1]))


@pytest.mark.parametrize(("name", "head", "core"), POLICIES)
def test_every_loss_of_a_policy_is_traced_whole_with_every_head_and_core(name, head, core):
    loss, (network, spec) = POLICY_LOSSES[name], HEADS[head]
    policy = made(policy_of(network, spec, core))
    policy.observe(rollout(policy, spec)[0])
    if core == "temporal":
        loss = WithAuxiliary(loss, {"kl_posterior": 0.1, "kl_prior": 0.1})
        policy.core.apply_hyperparameters({"period": 2.0, "gradient_scale": 0.5})
    batches = [prepared(policy, POLICY_LOSSES[name], *rollout(policy, spec)) for _ in range(2)]
    check(policy, loss, None, batches, core == "temporal")


@pytest.mark.parametrize("core", CORES)
def test_auxiliary_tasks_are_traced_whole(core):
    spec = discrete(image(2, 7), 3)
    policy = made(policy_of("mlp", spec, core, inputs="raw", auxiliary=("pixel", "reward", "value")))
    terms = {"pixel_control": 0.1, "reward_prediction": 1.0, "value_replay": 1.0}
    batches = []
    for weight in (1.0, 0.0):
        (rows, state), (others, before) = rollout(policy, spec), rollout(policy, spec)
        drawn = {"recent": rows["obs"][:3].flip(1), "recent_reward": torch.tensor([0.0, 1.0, -2.0])}
        drawn |= {"recent_weight": torch.tensor(weight), "replayed": {**others, "state": before}}
        batches.append(({**rows, **drawn}, state))
    check(policy, WithAuxiliary(losses.VTrace(), terms), None, batches, True)


VALUES: dict[str, tuple[Loss, dict[str, Any]]] = {
    "C51, dueling, noisy": (
        value_losses.CategoricalLoss(double=True),
        {"atoms": 7, "dueling": True, "scale": 0.7, "width": 8, "noisy": "fortunato"},
    ),
    "values": (value_losses.QLoss(), {}),
    "dueling": (value_losses.QLoss("sum", clip=0.0, double=True), {"dueling": True, "width": 8}),
    "noisy": (value_losses.QLoss(double=True), {"noisy": "zoo", "bias": "shared"}),
    "C51": (value_losses.CategoricalLoss(priority="ce"), {"atoms": 7}),
}
Q_SPEC = discrete(OBS, 4, mask=Field((4,), "bool"))


def transitions(action: Tensor, lanes: int = 20) -> Batch:
    """Such as a replay draws; where the discount is 0 the episode ended."""
    ends = torch.rand(lanes) < 0.3
    return {
        "obs": torch.randn(2, lanes, 5),
        "action": action,
        "return": torch.randn(lanes),
        "discount": torch.where(ends, 0.0, 0.9),
        "weight": torch.rand(lanes),
    }


@pytest.mark.parametrize("name", VALUES)
def test_every_loss_of_transitions_is_traced_whole_with_every_head(name):
    loss, given = VALUES[name]
    factory = NetworkFactory("mlp", Q_SPEC, {"hidden": (8,), "inputs": "normalize", **given}, "values")
    policy, target, batches = made(factory), made(factory, 1), []
    for _ in range(2):
        batches.append(({**transitions(torch.randint(0, 4, (20,))), "mask": masks(Q_SPEC, 2, 20)}, {}))
    policy.observe({"obs": batches[0][0]["obs"]})
    check(policy, loss, target, batches, False)


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
@pytest.mark.parametrize("name", ["values", "dueling", "noisy"])
def test_the_loss_of_sequences_is_traced_whole_with_every_head_and_core(name, core):
    given = {"hidden": (8,), "core": core, "core_size": 6, "previous": True, **VALUES[name][1]}
    factory = NetworkFactory("mlp", Q_SPEC, given, "values")
    policy, target, loss = made(factory), made(factory, 1), value_losses.SequenceLoss(0.9, 2, burn_in=1)
    batches = []
    for _ in range(2):
        rows, state = rollout(policy, Q_SPEC)
        rows |= {"weight": torch.rand(LANES), "valid": torch.rand(ROWS, LANES) < 0.9}
        batches.append((rows, state))
    check(policy, loss, target, batches, False)


def test_the_loss_of_deterministic_policies_is_traced_whole():
    spec = continuous(OBS, 2)
    factory = NetworkFactory("mlp", spec, {"actor": (8, 8), "critic": (8, 8)}, "deterministic")
    batches = [(transitions(torch.rand(20, 2) * 2.0 - 1.0), {}) for _ in range(2)]
    check(made(factory), value_losses.DPGLoss(0.01, 0.5), made(factory, 1), batches, False)


def test_alphago_zero_s_loss_is_traced_whole_and_gives_the_statistics_behind_it():
    envs = Envs("game:connect_four", 1)
    board, policy = board_of(envs), made(BoardNetworkFactory(envs.spec, 1, 4, 8))
    loss, batches = AlphaZeroLoss(board), []
    for _ in range(2):
        legal = masks(envs.spec, 2, 8)
        batch = {"action": torch.zeros(8), "mask": legal, "return": torch.randint(-1, 2, (8,)).float()}
        batch["visits"] = torch.rand(8, board.actions).masked_fill(~legal[0], 0.0)
        size = math.prod(board.planes)
        batch["obs"] = torch.randint(0, 256, (2, 8, -(-size // 8)), dtype=torch.uint8)
        batches.append((batch, {}))
    check(policy, loss, None, batches, False)


@pytest.mark.parametrize("kind", ["values", "policy"])
def test_networks_in_bfloat16_are_traced_whole(kind):
    spec, target = discrete(image(), 4), None
    if kind == "values":
        given = {"dueling": True, "width": 8, "noisy": "zoo"}
        factory, loss = NetworkFactory("a3c", spec, given, "values"), VALUES["dueling"][0]
        target = set_precision(made(factory, 1), "bfloat16")
    else:
        factory, loss = NetworkFactory("a3c", spec, {"inputs": "center", "hidden": 8}), POLICY_LOSSES["V-trace"]
    policy, batches = set_precision(made(factory), "bfloat16"), []
    for _ in range(2):
        if kind == "policy":
            batches.append(rollout(policy, spec))
            continue
        obs = torch.randint(0, 256, (2, 20, 4, 84, 84), dtype=torch.uint8)
        batches.append(({**transitions(torch.randint(0, 4, (20,))), "obs": obs}, {}))
    check(policy, loss, target, batches, False)


# What stays eager, and acting.


def memory(seed: int = 0) -> tuple[Policy, Batch, Batch]:
    """A network with two clocks and a memory, rows, and the state before them."""
    policy = made(policy_of("mlp", Q_SPEC, "temporal"), seed)
    policy.core.apply_hyperparameters({"period": 2.0})
    return policy, *rollout(policy, Q_SPEC)


def test_what_only_eager_updates_do_is_listed_and_no_trace_meets_it(monkeypatch):
    policy, rows, state = memory()
    loss, bound = POLICY_LOSSES["V-trace"], FlatParams(policy)
    few = tree.map(lambda x: x[:2], rows)
    given = arguments(bound.flat, bound.weights, torch.zeros(0), few, state, HYPER)
    assert len(EAGER) <= 4
    for name in EAGER:
        module, _, attribute = f"polyplay.{name}".rpartition(".")
        only = Mock(side_effect=AssertionError(name))
        only.apply.side_effect = AssertionError(name)
        monkeypatch.setattr(importlib.import_module(module), attribute, only)
    given["weights"].requires_grad_()
    make_fx(make_loss(fresh(policy), loss))(*given.values())
    with pytest.raises(AssertionError, match="nets"):
        called(make_loss(fresh(policy), loss), given)


def test_a_network_with_copies_of_its_weights_is_refused():
    policy = set_precision(made(NetworkFactory("mlp", Q_SPEC, {"hidden": (8,)})), "bfloat16")
    make_loss(policy, POLICY_LOSSES["V-trace"])
    policy.cache_weights()
    with pytest.raises(ValueError, match="copies"):
        make_loss(policy, POLICY_LOSSES["V-trace"])


@pytest.mark.parametrize("kind", ["policy", "values"])
def test_acting_is_a_pure_function_and_traced_whole(kind):
    policy, rows, state = memory()
    if kind == "values":
        given = {"hidden": (8,), "noisy": "zoo", "core": "lstm", "core_size": 6, "previous": True}
        policy = made(NetworkFactory("mlp", Q_SPEC, given, "values"))
        rows, state = rollout(policy, Q_SPEC)
        rows["epsilon"] = torch.full((ROWS, LANES), 0.5)
    bound, act = FlatParams(policy), make_act(fresh(policy))
    rows = {k: rows[k] for k in ("obs", "reward", "first", "mask", "epsilon") if k in rows}
    rows["noise"] = torch.rand(ROWS, LANES, policy.noise)
    vectors = bound.flat[: bound.weights], bound.flat[bound.weights :]
    steps = [tree.map(lambda x, t=t: x[t], rows) for t in range(ROWS)]
    graph = make_fx(act)(*vectors, steps[0], state)
    for step in steps:
        with torch.no_grad():
            wanted = policy.act(step, state)
        for found in (act(*vectors, step, state), graph(*vectors, step, state)):
            for (path, x), (_, y) in zip(
                tree.leaves(dict(enumerate(found))), tree.leaves(dict(enumerate(wanted))), strict=True
            ):
                assert torch.allclose(x, y, rtol=1e-6, atol=1e-6), path
        state = wanted[1]
