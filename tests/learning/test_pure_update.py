"""The update as a pure function of tensors: what learners compute, traced whole for every system, loss, head and core;
every input of it moves the loss or its gradient.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import polyplay
from polyplay.core import tree
from polyplay.core.tree import Batch
from polyplay.learning.returns import Loss, LossOutput
from polyplay.learning.runners import Runner, make_loss, make_update
from polyplay.nets.policy import Policy
from polyplay.weights.params import FlatParams

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

    def note(runner: Runner, batch: Batch, state: Batch, tape: Any = None) -> LossOutput:
        given = runner.vector.flat, runner.vector.weights, vector_of(runner.target), batch, state, runner.hyper
        kept, scored = arguments(*given), run(runner, batch, state, tape)
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
        scale = float(x.abs().max()) if x.numel() else 1.0
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
        return x + 0.1 * torch.randn(x.shape, generator=generator).to(x.dtype) * (1.0 + x.abs())
    low, high = x.min(), x.max()
    return torch.where(x == high, low, x + 1) if low < high else (x - 1).abs()


def following(run: Recorded, given: dict[str, Any]) -> dict[str, Any]:
    """The same with buffers that have the network's hyperparameters, as a learner puts them there."""
    vector = FlatParams(copy.deepcopy(run.policy), torch.cat([given["weights"], given["buffers"]]), write=False)
    vector.module.apply_hyperparameters({k: float(v) for k, v in given["hyper"].items()})
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
