"""CUDA graphs, rehearsed on a CPU: a function that runs on the same memory every time gives what eager updates and acts
give, whatever its arguments are. tests/test_gpu.py has the same on a GPU.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import polyplay
from polyplay.acting import actor
from polyplay.acting.actor import CapturedPlayer
from polyplay.core import tree
from polyplay.core.tree import Batch
from polyplay.learning import runners
from polyplay.learning.learner import Learner, Minibatches, Runner
from polyplay.learning.losses import LossOutput
from polyplay.learning.runners import CompiledRunner
from polyplay.nets.device import StaticCall, set_precision
from polyplay.nets.factory import NetworkFactory
from polyplay.nets.layers import tracing
from polyplay.nets.policy import Policy
from polyplay.weights.params import FlatParams
from tests.learning.test_pure_update import made, rollout
from tests.learning.test_threads import item, learner
from tests.nets.helpers import discrete, vector

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from digests import CASES, QUIET, less  # type: ignore[import-not-found]

LEARNERS: dict[str, dict[str, Any]] = {
    "a2c": {**CASES["a2c"], "steps": 2_000},
    "ppo": {**CASES["ppo"], "steps": 1_000},
    "ppo lstm": {**less(CASES["a2c lstm"], "optimizer"), "epochs": 2, "minibatches": 2, "steps": 1_000},
    "appo": {**CASES["appo"], "steps": 2_000},
    "impala gru": {**CASES["impala gru"], "steps": 2_000},
    "dqn": {**CASES["dqn"], "steps": 450},
    "rainbow": {**CASES["rainbow"], "steps": 450},
    "r2d2": {**CASES["r2d2"], "steps": 1_400},
    "apex_dpg": {**CASES["apex_dpg"], "steps": 500},
    "alphago_zero": {**CASES["alphago_zero"], "steps": 1_500},
}


class Compared(CompiledRunner):
    """Captures on any device, and computes each update eagerly before, with hyperparameters that never are the same."""

    near = 1e-6
    made: ClassVar[list[Compared]] = []

    def __init__(self, learner: Learner):
        super().__init__(learner)
        self.captures, self.served = True, 0
        self.made.append(self)

    def __call__(self, batch: Batch, state: Batch, version: int, tape: Any = None) -> LossOutput:
        return self.both(lambda of: of.__call__(self, batch, state, version, tape), version)

    def part(self, parts: Minibatches, order: np.ndarray, at: slice, version: int) -> LossOutput:
        return self.both(lambda of: of.part(self, parts, order, at, version), version)

    def both(self, score: Any, version: int) -> LossOutput:
        self.hyper = {k: v * (1.0 + 0.1 * math.sin(version)) for k, v in self.hyper.items()}
        buffers = self.own[1].clone()
        eager = score(Eager)
        wanted = results(self, eager)
        self.own[1].copy_(buffers)
        self.vector.grad.fill_(math.nan)
        found = score(CompiledRunner)
        self.served += isinstance(found.loss, float)
        for name, x in results(self, found).items():
            scale = float(wanted[name].abs().max()) if x.numel() else 1.0
            scale = scale if name == "gradient" else max(scale, 1.0)
            torch.testing.assert_close(x, wanted[name], rtol=self.near, atol=self.near * scale, msg=name)
        return found


class Eager(Runner):
    """Runner's own methods, of which `part` calls no other class's."""

    def part(self, parts: Minibatches, order: np.ndarray, at: slice, version: int) -> LossOutput:
        return Runner.__call__(self, *parts.take(order, at), version)


def results(run: Runner, scored: LossOutput) -> dict[str, torch.Tensor]:
    found = {"gradient": run.vector.grad, "loss": scored.loss, **scored.metrics}
    found |= {f"buffers of {x.dtype}": x for x in run.vector.buffers()}
    found |= {} if scored.priority is None else {"priority": scored.priority}
    return {k: torch.as_tensor(x).detach().cpu().clone() for k, x in found.items()}


def compared(system: str, monkeypatch: Any, run: Path, near: float = 1e-6, **settings: Any) -> list[Compared]:
    """The learners of a run, whose every update was compared."""
    monkeypatch.setattr(runners, "CompiledRunner", Compared)
    monkeypatch.setattr(runners, "LOOK", -1.0)
    monkeypatch.setattr(Compared, "near", near)
    monkeypatch.setattr(Compared, "made", [])
    polyplay.train(system, run=str(run), compile="on", **{**QUIET, "trace": False, **settings})
    return Compared.made


@pytest.mark.parametrize("name", LEARNERS)
def test_an_update_with_static_arguments_is_the_eager_one(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for run in compared(name.split()[0], monkeypatch, tmp_path / "run", **LEARNERS[name]):
        assert not run.over
        assert run.served > 20


def test_a_batch_of_another_shape_is_eager(monkeypatch):
    monkeypatch.setattr(runners, "LOOK", -1.0)
    who = learner(1, "sum")
    who.ctx.control.compile = "on"
    who.run = run = Compared(who)
    for k in range(6):
        list(who.step_on_sample(item(k), 4.0))
    assert run.served == 3
    for rows in (16, 32, 8):
        list(who.step_on_sample(item(rows, rows), 4.0))
    assert run.served == 4


def test_what_cannot_be_captured_stays_eager_and_leaves_the_update_as_it_was(monkeypatch):
    monkeypatch.setattr(runners, "LOOK", -1.0)
    who, other = learner(1, "sum"), learner(1, "sum")
    who.ctx.control.compile, said = "on", list[str]()
    who.run = run = CompiledRunner(who)
    run.captures = True
    who.ctx.log = lambda kind, text: said.append(text)
    monkeypatch.setattr(StaticCall, "__call__", lambda *_: 1 / 0)
    for k in range(5):
        list(who.step_on_sample(item(k), 4.0))
        list(other.step_on_sample(item(k), 4.0))
    assert run.over
    assert [text.partition(":")[0] for text in said] == ["updates stay eager"]
    assert torch.equal(who.update.vector.flat, other.update.vector.flat)


def test_a_static_call_copies_what_may_move_and_gives_tensors_of_its_own():
    own, given = torch.ones(3), torch.arange(3.0)
    call = StaticCall(lambda w, x: (w * x, x), [own, given], 1)
    first = call([own, given])
    own.mul_(2.0)
    second = call([own, given + 1.0])
    assert [x.tolist() for x in (*first, *second)] == [[0, 1, 2], [0, 1, 2], [2, 4, 6], [1, 2, 3]]
    places = call.fill([torch.full((3,), 5.0)], 1)
    assert call([own, *places])[0].tolist() == [10, 10, 10]
    assert StaticCall(lambda: (torch.tensor(tracing()),), [], device=torch.device("cpu"))([])[0]
    assert not tracing()


# Acting.

SPEC = discrete(vector(5), 4)
PLAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "a policy with an LSTM": ({"hidden": (8,), "core": "lstm", "core_size": 6, "previous": True}, "float32"),
    "a policy with two clocks": ({"hidden": (8,), "core": "temporal", "core_size": 6, "memory": 3}, "float32"),
    "values with ε": ({"hidden": (8,)}, "float32"),
    "noisy values with ε, an LSTM": ({"hidden": (8,), "noisy": "zoo", "core": "lstm", "core_size": 6}, "float32"),
    "values with ε in bfloat16": ({"hidden": (8,), "dueling": True, "width": 8}, "bfloat16"),
}


def acting(name: str) -> tuple[Policy, Batch, Batch]:
    """A network, rows [T, B], the state before them."""
    given, precision = PLAYERS[name]
    values = "values" in name
    policy = set_precision(made(NetworkFactory("mlp", SPEC, given, "values" if values else "policy")), precision)
    rows, state = rollout(policy, SPEC, 8)
    rows = {k: torch.cat([rows[k]] * 3) for k in ("obs", "reward", "first")}
    T, B = rows["first"].shape
    rows["noise"] = torch.rand(T, B, policy.noise)
    return policy, rows | ({"epsilon": torch.rand(T, B)} if values else {}), state


@pytest.mark.parametrize("name", PLAYERS)
def test_acting_with_static_arguments_is_acting(name):
    policy, rows, state = acting(name)
    twin = copy.deepcopy(policy)
    vectors = [FlatParams(net).flat for net in (policy, twin)]
    player = CapturedPlayer(policy, torch.device("cpu"))
    for t in range(len(rows["first"])):
        vectors[0].mul_(1.01)  # weights change where they are
        vectors[1].copy_(vectors[0])
        policy.cache_weights()
        twin.cache_weights()
        step = tree.map(lambda x, t=t: x[t], rows)
        with torch.no_grad():
            wanted, found = twin.act(step, state), player.act(step, state)
        for (path, x), (_, y) in zip(*(tree.leaves(dict(enumerate(both))) for both in (found, wanted)), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6, msg=path)
        state = found[1]
    assert len(player.calls) == 1


def test_acting_captures_few_numbers_of_lanes_that_come_often():
    policy, rows, _ = acting("values with ε")
    player, steps = CapturedPlayer(policy, torch.device("cpu")), tree.map(lambda x: x[0], rows)
    for lanes in (1, 2, 3, 4, 5, 6):
        for k in range(actor.OFTEN + 1):
            player.act(tree.map(lambda x, n=lanes: x[:n], steps), {})
            assert len(player.calls) == min(lanes - (k + 1 < actor.OFTEN), actor.MOST)


def test_a_network_that_cannot_be_captured_acts_as_before():
    policy, rows, _ = acting("values with ε")

    class Asks(type(policy)):  # type: ignore[misc]
        def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
            if tracing():
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            return super().act(step, state)

    policy.__class__ = Asks
    player, step = CapturedPlayer(policy, torch.device("cpu")), tree.map(lambda x: x[0], rows)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [player.act(step, {})[0]["value"] for _ in range(2 * actor.OFTEN)]
    assert [str(w.message) for w in said] == ["acting stays eager: operation not permitted when stream is capturing"]
    assert all(torch.equal(x, found[0]) for x in found)


def test_a_tape_is_never_captured():
    policy, _, _ = acting("a policy with an LSTM")
    recorder = actor.TapeRecorder(policy, 1, 4)  # type: ignore[arg-type]
    player = CapturedPlayer(recorder, torch.device("cpu"))
    assert not player._capture("kind", [])
