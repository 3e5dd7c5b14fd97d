"""A batch's gradient by several threads is that of one, but for rounding, and the same every time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import polyplay
from polyplay.core import checkpoint
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, Hyperparameters, RunControl, WorkerContext
from polyplay.envs import Discrete, EnvSpec
from polyplay.envs.spaces import Box
from polyplay.learning import SACLoss, runners, threads
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.learning.parts import TargetNetwork
from polyplay.learning.runners import compile_updates
from polyplay.learning.threads import LARGE, ThreadedRunner, divide, split_size
from polyplay.learning.value_losses import CategoricalLoss, QLoss
from polyplay.nets import factory
from polyplay.weights.update import Local, OptimizerSpec
from tests.learning.test_compiled import Traced, TracedCall

SPEC = EnvSpec(obs=Field((20,), "float32"), action=Discrete(3))
LOSSES: Any = {"sum": QLoss("sum"), "mean": QLoss("mean"), "atoms": CategoricalLoss()}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def learner(
    threads: int,
    loss: str,
    optimizer: str = "rmsprop_dqn",
    trace: bool = False,
    inputs: str = "raw",
    precision: str = "float32",
    how: str = "off",
    said: list[str] | None = None,
) -> Learner:
    torch.set_num_threads(threads)
    control = RunControl(trace, compile=how)
    ctx = WorkerContext("learn", 0, 1, 0, 4, Counters(4, ("loss",)), control, precision=precision)
    ctx.log = lambda kind, text: said.append(text) if said is not None else None
    options: Any = {
        "hidden": (400, 300),
        "inputs": inputs,
        **({"atoms": 11, "noisy": "zoo", "sigma": 0.5} if loss == "atoms" else {}),
    }
    policy = factory.NetworkFactory("mlp", SPEC, options, "values")
    update, rate = Local(OptimizerSpec(optimizer, eps=1e-2)), Hyperparameters(learning_rate=1e-3)
    parts = (TargetNetwork(5),)
    return Learner(ctx, LearnerSpec(policy, LOSSES[loss], update, rate, 1e9, parts))


def item(seed: int, B: int = 32) -> Any:
    rng = np.random.default_rng(seed)
    each = {"return": rng.normal(size=B), "discount": np.full(B, 0.9), "weight": rng.uniform(0.5, 1.0, B)}
    numbers = {k: v.astype(np.float32) for k, v in each.items()}
    obs = rng.normal(size=(2, B, 20)).astype(np.float32)
    whole = {"action": rng.integers(0, 3, B), "version": np.zeros(B, np.int64), "first": np.zeros((2, B), bool)}
    return {"obs": obs, **numbers, **whole}


def end_of(steps: Generator[None, None, Any]) -> Any:
    """What a generator gives at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def begin(who: Learner, given: Any) -> None:
    who.run.begin([given], who.version)


def learnt(who: Learner, updates: int = 4) -> tuple[torch.Tensor, list[np.ndarray]]:
    """Weights after some updates, and each update's priorities."""
    priorities = []
    for i in range(updates):
        priorities.append(end_of(who.step_on_sample(item(i), 4.0)))
    return who.update.vector.flat.clone(), priorities


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", ["rmsprop_dqn", "adam"])
def test_two_threads_learn_what_one_does(loss: str, optimizer: str):
    alone = learner(1, loss, optimizer)
    assert not divide(alone, 32)
    together = learner(2, loss, optimizer)
    assert divide(together, 32)
    (one, first), (two, second) = learnt(alone), learnt(together)
    torch.testing.assert_close(two, one, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(np.stack(second), np.stack(first), rtol=1e-3, atol=1e-4)


def test_one_thread_makes_it_where_that_shall_repeat_the_run():
    assert divide(learner(2, "sum"), 32)
    assert not divide(learner(2, "sum", trace=True), 32)
    assert not divide(learner(1, "sum"), 32)  # as in a serial run, and where workers are threads


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_that_was_begun_before_is_learnt_to_the_bit(loss: str):
    paths = []
    for ahead in (False, True):
        torch.set_num_threads(2)
        who = learner(2, loss)
        assert divide(who, 32)
        for i in range(4):
            if ahead:
                begin(who, item(i))
            list(who.step_on_sample(item(i), 4.0))
        paths.append(who.update.vector.flat)
    assert torch.equal(*paths)


@pytest.mark.parametrize("ahead", [False, True])
def test_in_bfloat16_what_acts_has_the_newest_weights(ahead: bool):
    """One copy of the large layers' weights serves acting and learning."""
    who = learner(2, "mean", precision="bfloat16")
    assert divide(who, 32)
    twin = learner(1, "mean", precision="bfloat16")
    rows = {"obs": torch.as_tensor(item(9)["obs"][0])}
    for i in range(5):
        if ahead:
            begin(who, item(i))
        list(who.step_on_sample(item(i), 4.0))
        who.policy.cache_weights()
        twin.update.vector.flat.copy_(who.update.vector.flat)
        twin.policy.cache_weights()
        with torch.no_grad():
            values = [w.policy.act(rows, {})[0]["value"] for w in (who, twin)]
        assert torch.equal(*values)


def test_statistics_of_inputs_change_after_what_was_begun():
    who = learner(2, "sum", inputs="normalize")
    assert divide(who, 32)
    begin(who, item(0))
    assert isinstance(who.run, ThreadedRunner)
    who.observe({"obs": np.ones((5, 4, 20), np.float32)})
    assert all(f.done() for f in (*who.run.targets, *who.run.begun))


@pytest.mark.parametrize(
    ("rows", "threads", "n"), [(32, 1, 1), (32, 2, 2), (32, 3, 2), (32, 64, 4), (30, 4, 3), (15, 8, 1), (512, 14, 8)]
)
def test_threads_get_equal_parts_of_at_least_eight_rows(rows: int, threads: int, n: int):
    assert split_size(rows, threads, LARGE) == n
    assert split_size(rows, threads, LARGE - 1) == 1


# Compiled: the package is the graph, and there at once.


def compiling(
    monkeypatch: pytest.MonkeyPatch, loss: str = "mean", how: str = "on", **more: Any
) -> tuple[Learner, list[str]]:
    """A learner of two threads that compiles from its first update on, and its log."""
    said = list[str]()
    monkeypatch.setattr(threads, "Package", Traced)
    monkeypatch.setattr(threads, "BackgroundCall", TracedCall)
    who = learner(2, loss, how=how, said=said, **more)
    assert divide(who, 32)
    compile_updates(who)
    return who, said


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ahead", [False, True])
def test_compiled_parts_learn_what_eager_ones_do(loss: str, ahead: bool, monkeypatch):
    (made, said), eager = compiling(monkeypatch, loss), learner(2, loss)
    assert divide(eager, 32)
    for i in range(6):
        for who in (made, eager):
            if ahead:
                begin(who, item(i))
        assert bool(made.run.begun) == ahead
        found = [end_of(who.step_on_sample(item(i), 4.0)) for who in (made, eager)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        assert not made.run.begun
    torch.testing.assert_close(made.update.vector.flat, eager.update.vector.flat, rtol=1e-3, atol=2e-5)
    assert len(said) == 1
    assert said[0].startswith("updates are compiled, in 2 parts: ")


def test_hyperparameters_and_the_target_network_are_those_of_now(monkeypatch):
    """They are arguments of a package, not constants in it."""
    (made, _), eager = compiling(monkeypatch), learner(2, "mean")
    divide(eager, 32)
    for i in range(12):  # the target network is copied twice
        for who in (made, eager):
            who.spec.hyperparameters.set("learning_rate", 1e-3 * (1 + i))
            list(who.step_on_sample(item(i), 4.0))
    torch.testing.assert_close(made.update.vector.flat, eager.update.vector.flat, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_compiled_part_that_fails_is_computed_eagerly(ahead: bool, monkeypatch):
    (made, said), eager = compiling(monkeypatch), learner(2, "mean")
    divide(eager, 32)
    for i in range(4):
        if i == 2:
            monkeypatch.setattr(TracedCall, "wait", Mock(side_effect=RuntimeError("a compiled update failed")))
        for who in (made, eager):
            if ahead:
                begin(who, item(i))
            list(who.step_on_sample(item(i), 4.0))
    assert said[-1].startswith("updates stay eager: RuntimeError: a compiled update failed")
    torch.testing.assert_close(made.update.vector.flat, eager.update.vector.flat, rtol=1e-3, atol=2e-5)


def test_what_fails_before_statistics_change_is_computed_eagerly(monkeypatch):
    made, said = compiling(monkeypatch)
    list(made.step_on_sample(item(0), 4.0))
    begin(made, item(1))
    monkeypatch.setattr(TracedCall, "wait", Mock(side_effect=RuntimeError("a compiled update failed")))
    made.run.settle()  # type: ignore[misc]
    assert len(said) == 1
    list(made.step_on_sample(item(1), 4.0))
    assert said[-1].startswith("updates stay eager: RuntimeError: a compiled update failed")
    assert made.version == 2


def test_a_network_that_changes_its_buffers_while_it_learns_stays_eager(monkeypatch):
    load = Traced.load

    def writing(self: Traced) -> Any:
        call = load(self)

        def written(given: list[torch.Tensor]) -> list[torch.Tensor]:
            buffers = given[1]
            found = call(given)
            buffers.add_(1.0)
            return found

        return written

    monkeypatch.setattr(Traced, "load", writing)
    made, said = compiling(monkeypatch, inputs="normalize")
    list(made.step_on_sample(item(0), 4.0))
    assert said == ["updates stay eager: the network changes its buffers while it learns"]


def test_parts_that_give_another_gradient_or_take_longer_stay_eager(monkeypatch):
    monkeypatch.setattr(Traced, "scale", 1.01)
    made, said = compiling(monkeypatch)
    learnt(made)
    assert said == ["updates stay eager: the compiled gradient differs by 0.01 of its size"]
    monkeypatch.setattr(Traced, "scale", 1.0)
    for name in ("GAIN", "LOOK"):
        monkeypatch.setattr(threads, name, -1.0)
    made, said = compiling(monkeypatch, how="auto")
    learnt(made)
    assert len(said) == 1
    assert said[0].startswith("updates stay eager: compiled updates take")
    eager = learner(2, "mean")
    divide(eager, 32)
    assert torch.equal(learnt(eager)[0], made.update.vector.flat), "to the bit"


@pytest.mark.long
def test_two_threads_compile_their_parts_and_a_resumed_run_repeats(tmp_path, capfd):
    given: Any = {"env": "Pendulum-v1", "learning_starts": 100, "compile": "on", "tensorboard": False, "on": "process"}
    given |= {"cores": 2, "seed": 5, "network": "mlp(256,256,relu)"}
    polyplay.train("sac", run=str(tmp_path / "whole"), steps=180, **given)
    assert "updates are compiled, in 2 parts" in "".join(capfd.readouterr())
    polyplay.train("sac", run=str(tmp_path / "parts"), steps=140, **given)
    polyplay.resume(str(tmp_path / "parts"), steps=180)
    ends = [checkpoint.open_checkpoint(checkpoint.everything(tmp_path / name)[-1]) for name in ("whole", "parts")]
    for name in ("policy", "optimizer", "target"):
        mine, theirs = (end.arrays(f"agents/0/{name}") for end in ends)
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine), name


def test_updates_that_move_running_statistics_are_compiled_whole(monkeypatch):
    """CrossQ's: by the same weights and statistics they learn what eager ones do."""
    monkeypatch.setattr(runners, "Package", Traced)
    action = Box((2,), np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
    policy = factory.NetworkFactory("mlp", EnvSpec(SPEC.obs, action), {"normalization": "batch"}, "critics")
    paths, said = [], list[str]()
    for how in ("on", "off"):
        ctx = WorkerContext("learn", 0, 1, 0, 4, Counters(4, ("loss",)), RunControl(compile=how))
        ctx.log = lambda kind, text: said.append(text)
        update, rate = Local(OptimizerSpec("adam")), Hyperparameters(learning_rate=1e-3)
        who = Learner(ctx, LearnerSpec(policy, SACLoss(-2.0, delay=2, joint=True), update, rate, 1e9))
        assert not divide(who, 32)  # statistics are of a whole batch
        compile_updates(who)
        for i in range(6):
            acted = np.random.default_rng(i).uniform(-1.0, 1.0, (32, 2)).astype(np.float32)
            list(who.step_on_sample({**item(i), "action": acted}, 4.0))
        paths.append(who.update.vector.flat)
    assert [text.partition(":")[0] for text in said] == [f"updates are compiled from update {k} on" for k in (1, 2)]
    torch.testing.assert_close(*paths, rtol=1e-3, atol=1e-5)


def test_noise_that_was_drawn_before_its_time_is_that_of_its_update():
    who = learner(2, "atoms")
    wanted = [who.run.noise_of(item(0), version) for version in (3, 4)]
    who.run.draw_noise(item(0), 3)
    drawn = who.run.drawn[1]
    found = who.run.noise_of(item(0), 3)
    assert found is drawn
    who.run.draw_noise(item(0), 3)
    for mine, theirs in zip((found, who.run.noise_of(item(0), 4)), wanted, strict=True):  # of weights that came else
        assert mine.keys() == theirs.keys() != set()
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine)
