"""Updates compiled ahead of time: the numbers of eager ones, the change-over in a run, and all that may go wrong."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import polyplay
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.core.worker import RunControl
from polyplay.learning import losses, packages, runners
from polyplay.learning.learner import Epochs, Learner, Minibatches, Runner, shuffled_order
from polyplay.learning.losses import Loss
from polyplay.learning.packages import CompileJob, Package
from polyplay.learning.pure_update import UpdateFunction, make_update
from polyplay.learning.runners import CompiledRunner, compile_updates
from polyplay.nets.device import to_device
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.optimizers import optimizer_state
from polyplay.weights.params import param_sizes
from polyplay.weights.update import Hogwild, Local
from tests.learning import test_pure_update as pure
from tests.weights.ends import FORK, OPTIM, POLICY, finish, me, some_rows, task

# The function that is compiled, of a policy, a loss and arguments of tests.learning.test_pure_update.


@dataclass(frozen=True)
class Copies(PolicyFactory):
    """Networks such as this one."""

    net: Any

    def __call__(self) -> Any:
        return copy.deepcopy(self.net)


def leaves_of(given: dict[str, Any]) -> dict[str, Tensor]:
    return dict(tree.leaves({"batch": given["batch"], "state": given["state"]}))


def tensors_of(given: dict[str, Any]) -> list[Tensor]:
    """The function's arguments; those that it writes to are copies."""
    hyper, written = torch.stack([*given["hyper"].values()]), torch.full_like(given["weights"], 7.0)
    own = [given["weights"], given["buffers"].clone(), given["target"], written, hyper]
    return [*own, *(x.contiguous() for x in leaves_of(given).values())]


def job_of(policy: Any, loss: Loss, target: Any, given: dict[str, Any]) -> CompileJob:
    names, paths = tuple(given["hyper"]), tuple(leaves_of(given))
    make = UpdateFunction(Copies(policy), loss, target is not None, names, paths)
    return CompileJob(make, tuple((tuple(x.shape), x.dtype) for x in tensors_of(given)))


Call = Callable[[list[Tensor]], list[Tensor]]


def graph_of(job: CompileJob) -> Call:
    """As it is compiled: traced with other numbers."""
    graph = packages.trace(job.make(), packages.arguments(job.shapes))
    return lambda given: list(graph(*given))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this process compiles."""
    place = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "cache"))
        yield place


def compiled(job: CompileJob, folder: Path) -> Call:
    """For real, in this process."""
    path = folder / f"{len(list(folder.glob('*.pt2')))}.pt2"
    packages.build_package(job, path)
    return packages._load(str(path))


def answers(loss: Loss, call: Call, given: dict[str, Any]) -> dict[str, Tensor]:
    tensors = tensors_of(given)
    numbers, *priority = call(list(tensors))
    found = {"gradient": tensors[3], "buffers": tensors[1], "loss": numbers[0]}
    found |= dict(zip(loss.metrics, numbers[1:], strict=True))
    return found if not priority else {**found, "priority": priority[0]}


def check_near(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    """Away by at most so much of the size; of single numbers, which are means of terms that may cancel, of at least 1.
    Buffers may hold numbers of float64.
    """
    for name, x in found.items():
        most = 10 * bound if name == "priority" else bound  # a divergence is a difference of large numbers
        far = float((x - wanted[name]).norm() / wanted[name].norm().clamp_min(1e-3 if x.ndim else 1.0))
        same = x.view(torch.int32).equal(wanted[name].float().view(torch.int32)) if x.is_contiguous() else False
        assert same or far <= most, f"{name} differs by {far:.2g}"


COUNTS = ("rho_clipped", "clip_fraction")  # of ratios beyond a bound: some are at it, but for rounding


def check_function(run: pure.Recorded, call: Call, bound: float, but: tuple[str, ...] = ()) -> None:
    """The gradient, the buffers and all that is said are those of the run."""
    update = make_update(pure.fresh(run.policy), run.loss, pure.fresh(run.target))
    for example in run.examples:
        _, buffers, _ = pure.called(update, example.arguments)
        wanted = pure.results((example.gradient, buffers, example.scored))
        found = answers(run.loss, call, example.arguments)
        check_near({name: x for name, x in found.items() if name not in but}, wanted, bound)


@pytest.mark.parametrize("case", sorted(pure.SMALL, key=lambda case: case not in ("dqn", "rainbow")))
def test_what_is_compiled_gives_the_run_s_numbers_and_every_input_moves_it(case):
    run = pure.recorded(case)
    call = graph_of(job_of(run.policy, run.loss, run.target, run.examples[0].arguments))
    check_function(run, call, 1e-6 if case not in pure.ROUNDED else 1e-4)
    still = {path for path, x in tree.leaves(run.examples[0].arguments) if x.numel()}
    for example in run.examples:
        flat, before = dict(tree.leaves(example.arguments)), answers(run.loss, call, example.arguments)
        for path in sorted(still):
            nested = tree.nest({**flat, path: pure.other(flat[path])})
            given = {name: nested.get(name, {}) for name in example.arguments}
            given = pure.following(run, given) if path.startswith("hyper") else given
            now = answers(run.loss, call, given)
            if not (now["gradient"].equal(before["gradient"]) and now["loss"].equal(before["loss"])):
                still.remove(path)
    assert all(path in pure.NEVER or case in pure.UNUSED.get(path, ("", ()))[1] for path in still), still


# Everything compiled for real.


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", pure.SMALL)
def test_every_system_s_update_is_compiled(case, folder):
    run = pure.recorded(case)
    job = job_of(run.policy, run.loss, run.target, run.examples[0].arguments)
    check_function(run, compiled(job, folder), 1e-5, COUNTS)


@pytest.fixture
def compiling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests of pure updates trace is compiled instead."""

    def check_traced(policy: Any, loss: Loss, target: Any, given: list[dict[str, Any]], rounded: bool) -> None:
        update = make_update(pure.fresh(policy), loss, pure.fresh(target))
        call = compiled(job_of(policy, loss, target, given[0]), folder)
        for each in given:
            check_near(answers(loss, call, each), pure.results(pure.called(update, each)), 1e-5)

    monkeypatch.setattr(pure, "check_traced", check_traced)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize(("name", "head", "core"), pure.POLICIES)
def test_every_loss_of_a_policy_is_compiled_with_every_head_and_core(name, head, core):
    pure.test_every_loss_of_a_policy_is_traced_whole_with_every_head_and_core(name, head, core)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("core", pure.CORES)
def test_auxiliary_tasks_are_compiled(core):
    pure.test_auxiliary_tasks_are_traced_whole(core)


@pytest.mark.long
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("name", pure.VALUES)
def test_every_loss_of_transitions_is_compiled_with_every_head(name):
    pure.test_every_loss_of_transitions_is_traced_whole_with_every_head(name)


@pytest.mark.long
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
@pytest.mark.parametrize("name", ["values", "dueling", "noisy"])
def test_the_loss_of_sequences_is_compiled_with_every_head_and_core(name, core):
    pure.test_the_loss_of_sequences_is_traced_whole_with_every_head_and_core(name, core)


@pytest.mark.long
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("kind", ["deterministic", "alphago_zero"])
def test_other_losses_are_compiled(kind):
    if kind == "deterministic":
        pure.test_the_loss_of_deterministic_policies_is_traced_whole()
    else:
        pure.test_alphago_zero_s_loss_is_traced_whole_and_gives_the_statistics_behind_it()


def make_small() -> Callable[..., tuple[Tensor, ...]]:
    """A function that writes to its first argument."""

    def function(weights: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        weights.copy_(weights + x.sum())
        return (weights * x[0]).sum().reshape(1), x @ x.t()

    return function


def test_a_package_is_called_by_another_thread_on_its_own_tensors(folder):
    shapes = (((3,), torch.float32), ((2, 3), torch.float32))
    path = folder / "small.pt2"
    packages.build_package(CompileJob(make_small, shapes), path)
    weights = torch.zeros(3)
    mine, results = torch.zeros(3), [[torch.zeros(1), torch.zeros(2, 2)] for _ in range(3)]
    given = [[mine, torch.zeros(2, 3)] for _ in range(3)]
    call = packages.BackgroundCall(path, given, results, [(mine, weights)])
    load = packages._load(str(path))
    for k in range(1, 4):
        for i, (_, x) in enumerate(given):
            x.fill_(k + 10.0 * i)
        weights.fill_(k)
        call.start(k)
        for _ in range(k):
            call.wait()
        wanted = weights.clone()
        for (_, x), (number, product) in zip(given[:k], results[:k], strict=True):
            one, two = load([wanted, x.clone()])
            assert number.equal(one)
            assert product.equal(two)
        assert mine.equal(wanted)
        assert weights.equal(torch.full((3,), float(k))), "only its own copy is written to"
    with pytest.raises(ValueError, match="views"):
        packages.BackgroundCall(path, given[:1], [[results[0][1][:, 0], results[0][1]]])
    before = torch.get_num_threads()
    thread: Any = call.thread.thread
    call.start(3)
    call.close()
    assert not thread.is_alive()
    assert torch.get_num_threads() == before


# A learner's change-over, without a compiler: the package is the graph, and there at once.


class Traced:
    """In place of a Package."""

    failure, done, process, scale, stride = "", True, None, 1.0, 1.0

    def __init__(self, job: CompileJob):
        self.job, self.path, self.call = job, self, graph_of(job)

    def load(self) -> Call:
        def call(given: list[Tensor]) -> list[Tensor]:
            weights = given[0].clone()
            made = self.call(given)
            given[3].mul_(self.scale)
            given[0].copy_(weights.lerp(given[0], self.stride))
            return made

        return call

    def close(self) -> None:
        """Nothing runs."""


class TracedCall:
    """In place of a BackgroundCall; calls are made at once."""

    def __init__(self, path: Any, given: list[list[Tensor]], results: list[list[Tensor]], copies: Any, thread: Any):
        self.call, self.given, self.results, self.copies = path.load(), given, results, copies

    def start(self, calls: int = 1) -> None:
        for to, x in self.copies:
            to.copy_(x)
        for given, results in zip(self.given[:calls], self.results[:calls], strict=True):
            for to, x in zip(results, self.call(given), strict=True):
                to.copy_(x)

    def wait(self) -> None:
        """They are there."""

    def close(self) -> None:
        """There is no thread."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "Package", Traced)
    monkeypatch.setattr(runners, "BackgroundCall", TracedCall)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that doesn't wait looks at every update, and compiles from the first on, whether that is faster or not."""
    for name in ("WAIT", "LOOK", "LEFT"):
        monkeypatch.setattr(runners, name, -1.0)
    monkeypatch.setattr(runners, "GAIN", math.inf)


def learner(how: str = "on", **more: Any) -> tuple[Learner, list[str]]:
    said = list[str]()
    ctx = replace(me(), control=RunControl(compile=how), log=lambda kind, text: said.append(text))
    made = Learner(ctx, replace(task(total=1e5), **more))
    compile_updates(made)
    return made, said


def learn(made: Learner, *seeds: int, T: int = 4) -> None:
    for seed in seeds:
        finish(made.step(some_rows(seed, T), {}))


def kinds(made: Learner) -> list[bool]:
    """Which kinds of batches are compiled, in their order."""
    return [kind.call is not None for kind in made.run.kinds.values()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["on", "auto"])
def test_a_run_that_waits_or_finds_a_package_is_compiled_from_its_first_update_on(how, traced, monkeypatch):
    monkeypatch.setattr(runners, "GAIN", math.inf)
    (made, said), (eager, none) = learner(how), learner("off")
    for k in range(4):
        for each in (made, eager):
            each.spec.hyperparameters.set("entropy_cost", 0.3 * k)
            learn(each, k)
        assert torch.allclose(made.update.vector.flat, eager.update.vector.flat, rtol=1e-5, atol=1e-7)
    assert "updates are compiled from update 1 on" in said[0]
    assert len(said) == 1
    assert not none
    assert type(eager.run) is Runner


@pytest.mark.usefixtures("traced", "at_once")
def test_an_update_that_is_made_beside_acting_is_the_same(monkeypatch):
    """Acting, and whoever saves, has the weights of before meanwhile."""
    monkeypatch.setattr(runners, "cores", lambda: 2)
    (made, said), (plain, _) = learner("auto"), learner("on")
    for who in (made, plain):
        learn(who, 0)
    assert made.run.begins, said
    for k in range(1, 12, 3):
        own = [made.update.vector.flat, *optimizer_state(made.update.optimizer).values()]
        before = [x.clone() for x in own]
        made.begin([some_rows(k + i) for i in range(3)])
        assert made.run.begun
        assert all(x.equal(y) for x, y in zip(own, before, strict=True)), "only copies of what is saved are changed"
        for who in (made, plain):
            learn(who, k, k + 1, k + 2)
        assert made.run.begun is None
        assert made.version == k + 3
        # but for the learning rate, which falls: the three have the first one's
        assert torch.allclose(made.update.vector.flat, plain.update.vector.flat, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("traced", "at_once")
def test_of_batches_of_several_kinds_those_of_the_first_are_begun(monkeypatch):
    """As TD3's, of which every second changes the actor too."""
    monkeypatch.setattr(runners, "cores", lambda: 2)
    (made, _), (plain, _) = learner("auto"), learner("off")
    for k in (0, 3, 6):
        if k:
            made.begin([some_rows(k + i, T) for i, T in enumerate((4, 3, 4))])
            assert made.run.asked == 1
        for who in (made, plain):
            for i, T in enumerate((4, 3, 4)):
                learn(who, k + i, T=T)
        assert made.run.begun is None
        assert torch.allclose(made.update.vector.flat, plain.update.vector.flat, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("traced", "at_once")
def test_an_update_that_fails_beside_acting_is_made_eagerly_and_no_more_are_begun(monkeypatch):
    monkeypatch.setattr(runners, "cores", lambda: 2)
    (made, said), (plain, _) = learner("auto"), learner("off")
    for who in (made, plain):
        learn(who, 0)
    monkeypatch.setattr(TracedCall, "wait", Mock(side_effect=RuntimeError("a compiled update failed")))
    made.begin([some_rows(1)])
    for who in (made, plain):
        learn(who, 1)
    made.begin([some_rows(2)])
    assert made.run.begun is None
    for who in (made, plain):
        learn(who, 2)
    assert said[-1].startswith("updates stay eager: RuntimeError: a compiled update failed")
    assert torch.allclose(made.update.vector.flat, plain.update.vector.flat, rtol=1e-5, atol=1e-7)


@dataclass(eq=False)
class Doubled(Local):
    """Steps otherwise than its optimizer's name says."""

    def open(self, ctx: Any, module: Any) -> Any:
        opened = super().open(ctx, module)
        opened.optimizer.param_groups[0]["betas"] = (0.5, 0.5)
        return opened


def test_the_step_of_an_update_of_ones_own_is_its_own(traced):
    (made, said), (plain, _) = (learner(how, update=Doubled(OPTIM)) for how in ("on", "off"))
    for who in (made, plain):
        learn(who, 0, 1, 2)
    assert "updates are compiled" in said[0]
    assert torch.allclose(made.update.vector.flat, plain.update.vector.flat, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("traced", "at_once")
@pytest.mark.parametrize(("how", "cores", "notes"), [("auto", 1, 0), ("auto", 2, 1), ("on", 2, 0)])
def test_without_a_core_for_it_or_what_it_takes_no_update_is_made_beside_acting(how, cores, notes, monkeypatch):
    monkeypatch.setattr(runners, "cores", lambda: cores)
    monkeypatch.setattr(runners, "BackgroundCall", Mock(side_effect=ValueError("no C interface")))
    made, said = learner(how)
    learn(made, 0)
    if made.run.begins:
        made.begin([some_rows(1)])
    learn(made, 1)
    assert not made.run.begins
    assert not made.run.begun
    assert made.version == 2
    texts = [text for text in said if "beside" in text]
    assert len(texts) == notes
    assert all(text.startswith("updates are not made beside acting: ValueError: no C interface") for text in texts)


@pytest.mark.usefixtures("traced", "at_once")
def test_the_kinds_of_batches_that_come_often_are_compiled(monkeypatch):
    made, _ = learner("on")
    learn(made, 0, T=2)
    learn(made, 1, 2, T=3)
    assert kinds(made) == [True, True]
    made, said = learner("auto")
    monkeypatch.setattr(Traced, "done", False)  # others compile it
    monkeypatch.setattr(Traced, "begin", lambda self: None, raising=False)
    learn(made, 0, T=2)
    learn(made, *range(8), T=3)
    monkeypatch.setattr(Traced, "done", True)
    learn(made, 0, T=2)
    learn(made, 0, T=3)
    learn(made, 0, T=5)
    assert kinds(made) == [True, True, False], said


@pytest.mark.usefixtures("traced", "at_once")
def test_what_takes_longer_compiled_or_gives_another_gradient_or_step_stays_eager(monkeypatch):
    monkeypatch.setattr(Traced, "scale", 1.01)
    made, said = learner("on")
    learn(made, 0, 1)
    assert said == ["updates stay eager: the compiled gradient differs by 0.01 of its size"]
    assert not any(kinds(made))
    monkeypatch.setattr(Traced, "scale", 1.0)
    monkeypatch.setattr(Traced, "stride", 1.01)
    made, said = learner("on")
    learn(made, 0, 1)
    assert said == ["updates stay eager: the compiled step of the optimizer differs"]
    monkeypatch.setattr(Traced, "stride", 1.0)
    monkeypatch.setattr(runners, "GAIN", 0.0)
    made, said = learner("auto")
    learn(made, 0, 1)
    assert said[0].startswith("updates stay eager: compiled updates take")


def test_weights_that_others_change_meanwhile_are_no_other_gradient(traced, monkeypatch):
    update = Hogwild(OPTIM, *param_sizes(POLICY), 1, copy=False)
    made, said = learner("on", update=update)
    score = made.run.score

    def meanwhile(*given: Any) -> Any:
        scored = score(*given)
        made.update.vector.flat.add_(0.1)
        return scored

    monkeypatch.setattr(made.run, "score", meanwhile)
    learn(made, 0)
    assert kinds(made) == [True], said


@pytest.mark.parametrize("whole", [False, True])
def test_minibatches_of_fewer_rows_are_filled_up_and_every_row_counts(traced, monkeypatch, whole):
    loss = losses.APPO() if whole else losses.PPO(normalize_advantage=True, value_clip=True)
    spec: Any = {"loss": loss, "passes": Epochs(1, 2), "policy": POLICY}
    (made, said), (eager, _) = learner("on", **spec), learner("off", **spec)
    run: Any = made.run
    monkeypatch.setattr(made, "rate", lambda: 0.0)  # eager gradients are not applied either
    for seed in range(4):
        rows = some_rows(seed)  # 22 of 24 rows are valid, in the last ones 20
        rows["first"][3, seed:3] = True
        batch = to_device(rows, made.device)
        parts = [Minibatches(batch, {}, loss.prepare(batch), rows["version"], loss.whole) for _ in range(2)]
        for order, at in shuffled_order(parts[0].places, made.spec.passes, (seed,)):
            scored = [of.score_part(each, order, at) for of, each in zip((made, eager), parts, strict=True)]
            check_near({"gradient": made.update.vector.grad}, {"gradient": eager.update.vector.grad}, 1e-5)
            said_by = [{k: torch.as_tensor(x) for k, x in one.metrics.items()} for one in scored]
            check_near(*said_by, 1e-5)
    assert kinds(made) == [True], said
    if whole:
        return
    run.index[:], run.inside[:] = np.arange(len(run.index)), True
    call, before = run.rollout.call, run.vector.grad.clone()
    call([*run.own, *run.leaves])
    assert not run.vector.grad.equal(before), "of other rows"
    before = run.vector.grad.clone()
    run.inside[0] = False
    call([*run.own, *run.leaves])
    assert not run.vector.grad.equal(before), "of fewer rows"


@dataclass(frozen=True)
class AllRows(losses.PPO):
    """A user's, for which all rows that come are valid."""

    def score(self, out, batch, hyper):
        return super().score(out, {**batch, "valid": torch.ones_like(batch["valid"])}, hyper)


def test_a_user_s_loss_is_given_no_rows_to_leave_out(traced):
    spec: Any = {"loss": AllRows(), "passes": Epochs(1, 2)}
    (made, _), (eager, _) = learner("on", **spec), learner("off", **spec)
    for seed in range(3):
        learn(made, seed)
        learn(eager, seed)
        assert torch.allclose(made.update.vector.flat, eager.update.vector.flat, rtol=1e-4, atol=1e-6)


CASES = ["ppo", "r2d2", "a2c", "a2c lstm", "ga3c", "appo", "impala gru", "accel", "rainbow", "apex_dpg", "league"]
CASES += ["ftw", "five", "alphago_zero", "a2c pong", "impala two tasks", "ppo two tasks"]


@pytest.mark.parametrize("case", CASES)
def test_runs_learn_the_same(case, traced, tmp_path, monkeypatch, capsys):
    rows = []
    for how in ("off", "on"):
        given = {**pure.QUIET, **pure.CASES[case], **pure.SMALL.get(case, {"steps": 600}), "compile": how}
        run = polyplay.train(case.split()[0], run=str(tmp_path / how), **given)
        rows.append(list(read_lines(run.directory / "updates.jsonl")))
    assert "updates are compiled from update" in capsys.readouterr().out
    for one, other in zip(rows[0][:12], rows[1][:12], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3, abs=1e-5)


# What may go wrong.


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def command(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The process that compiles does this instead; `path` is where the package shall be."""
    code = f"import os, sys, time; path, data = sys.argv[1], sys.stdin.buffer.read(int(sys.argv[2]))\n{code}"
    monkeypatch.setattr(packages, "COMMAND", (sys.executable, "-c", code))


def until(there: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def failure(how: str = "auto") -> str:
    """What a run says that goes on eagerly."""
    made, said = learner(how)
    until(lambda: said or learn(made, 0))
    learn(made, 1)
    assert len(said) == 1
    assert not any(kinds(made))
    made.run.close()
    return said[0].removeprefix("updates stay eager: ")


BROKEN = {
    "an error": ("sys.exit('Error: of the compiler (mine.py:3)')", "Error: of the compiler (mine.py:3)"),
    "a kill": ("print('began', flush=True); os.kill(os.getpid(), 9)", "the compiler was killed by SIGKILL"),
    "nothing": ("", "the compiler ended with exit status 0"),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["auto", "on"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_compiler_that_fails_ends_no_run(kind, how, monkeypatch):
    code, text = BROKEN[kind]
    command(monkeypatch, code)
    assert failure(how) == text


@pytest.mark.usefixtures("at_once")
def test_without_a_compiler_or_a_folder_updates_stay_eager(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert "NotADirectoryError" in failure()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert failure() == "there is no C++ compiler: install g++"


def test_to_wait_for_a_compiler_that_is_not_there_is_refused_before_the_run_has_a_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = r"^--compile: on given, but there is no C\+\+ compiler: install g\+\+; allowed here: auto, off$"
    with pytest.raises(UserError, match=text):
        polyplay.train("ppo", env="toy:catch", compile="on", run=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_what_is_not_compiled_by_design_is_said_where_a_run_would_wait():
    said = list[str]()
    ctx = replace(me(), log=lambda kind, text: said.append(text), precision="bfloat16")
    made = Learner(ctx, task())
    for how in ("auto", "on"):
        assert not said
        ctx.control.compile = how
        compile_updates(made)
        assert not isinstance(made.run, CompiledRunner)
    assert "bfloat16" in said[0]


def members(group: int) -> list[str]:
    """Names of the living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            state, _, its, *_ = rest.split()
            if int(its) == group and state != "Z":
                found.append(name.partition("(")[2])
    return found


@pytest.mark.usefixtures("at_once")
def test_a_compiler_that_hangs_is_ended_with_what_it_started(monkeypatch):
    command(monkeypatch, "import subprocess; subprocess.Popen(['sleep', '1000']); time.sleep(1000)")
    monkeypatch.setattr(packages, "LIMIT", 0.5)
    begun = list[int]()
    start = Package._start
    monkeypatch.setattr(Package, "_start", lambda self, *given: (start(self, *given), begun.append(self.process.pid)))
    assert failure() == "the compiler took longer than 0.5 s"
    until(lambda: not members(begun[0]))


SLEEPING = CompileJob(partial(subprocess.run, ["sleep", "1000"]), ())  # its compiler never ends


def test_the_compiler_ends_with_a_run_that_is_killed():
    here, there = FORK.Pipe()

    def train() -> None:
        package = Package(SLEEPING)
        package.begin()
        there.send(package.process.pid)  # type: ignore[union-attr]
        time.sleep(1000)

    run = FORK.Process(target=train)
    run.start()
    group = here.recv()
    until(lambda: "sleep" in members(group))
    os.kill(run.pid, signal.SIGKILL)  # type: ignore[arg-type]
    run.join()
    until(lambda: not members(group))
    assert not members(group), "the compiler's processes"


@pytest.mark.usefixtures("at_once")
def test_a_damaged_package_is_removed(monkeypatch):
    command(monkeypatch, "open(path, 'w').write('not whole')")
    assert "Error" in failure()
    assert not list(packages.packages_folder().glob("*.pt2"))


def test_of_two_runs_that_want_a_package_one_compiles_it_and_another_does_if_that_dies(monkeypatch, tmp_path):
    log = tmp_path / "log"
    command(
        monkeypatch,
        f"""
log = open('{log}', 'a+')
log.write('begun\\n')
log.flush()
log.seek(0)
if len(log.readlines()) < 2:
    time.sleep(1000)
open(path, 'w')""",
    )
    one, two = (Package(SLEEPING) for _ in range(2))
    one.begin()
    two.begin()
    assert one.process is not None
    assert two.process is None
    assert not two.done
    until(lambda: log.exists() and log.read_text())
    os.kill(one.process.pid, signal.SIGKILL)
    until(lambda: one.done)
    assert one.failure == "the compiler was killed by SIGKILL"
    two.begin()
    until(lambda: two.done)
    assert not two.failure
    assert log.read_text() == "begun\nbegun\n"


@dataclass(frozen=True)
class Reads(losses.A2C):
    """A user's, which asks for a number."""

    def score(self, out, batch, hyper):
        if out["value"].mean().item() > 100.0:
            raise ValueError
        return super().score(out, batch, hyper)


def test_a_user_s_loss_that_is_not_traced_is_named_with_its_line():
    made, _ = learner("on", loss=Reads())
    run: Any = made.run
    kind, leaves = run._kind_of({"batch": to_device(some_rows(0), made.device), "state": {}})
    job = run._job(kind, leaves)
    assert job.modules == (__name__,)
    with pytest.raises(Exception) as found:  # noqa: PT011 - torch's own
        packages.trace(job.make(), packages.arguments(job.shapes))
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "].mean().item()" in text)
    text = packages.why_failed(found.value)
    assert text.endswith(f"(test_compiled.py:{line})")
    assert "\n" not in text


def test_too_large_a_function_is_not_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "NODES", 10)
    made, _ = learner("on")
    run: Any = made.run
    job = run._job(*run._kind_of({"batch": to_device(some_rows(0), made.device), "state": {}}))
    with pytest.raises(ValueError, match=r"^too large to compile: \d+ operations, at most 10$"):
        packages.build_package(job, tmp_path / "package.pt2")


# A real run.
RUN = """
import sys
import polyplay
given = {given!r}
run = polyplay.train("ppo", **given)
if given["compile"] == "auto":
    slow = sorted(name for name in sys.modules if name in ("torch._inductor", "torch._dynamo"))
    print("imported", slow)
"""


def real_run(directory: Path, **given: Any) -> str:
    more = {"network": "separate", "hidden": (8,), "steps": 600, "tensorboard": False, "trace": True, **given}
    code = RUN.format(given={**pure.CASES["ppo"], **more, "run": str(directory)})
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert not done.returncode, done.stderr
    return done.stdout + done.stderr


def test_a_run_compiles_its_updates_and_the_next_one_finds_them(tmp_path):
    assert "updates are compiled from update 1 on" in real_run(tmp_path / "one", serial=True, compile="on")
    (package,) = packages.packages_folder().glob("*.pt2")
    assert not list(packages.packages_folder().glob("compiling-*"))
    made = package.stat().st_ino
    said = real_run(tmp_path / "two", on="thread", trace=False, compile="auto")
    assert "updates are compiled from update 1 on" in said
    assert "imported []" in said
    assert [path.stat().st_ino for path in packages.packages_folder().glob("*.pt2")] == [made]
    eager = real_run(tmp_path / "three", serial=True, compile="off")
    assert "are compiled" not in eager
    rows = [list(read_lines(tmp_path / name / "updates.jsonl")) for name in ("one", "three")]
    for one, other in zip(*(some[:20] for some in rows), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4, abs=1e-6)


def test_a_replay_s_updates_are_made_beside_acting(tmp_path, monkeypatch):
    given = {**pure.CASES["dqn"], "network": "mlp", "hidden": (8,), "tensorboard": False, "on": "thread"}
    polyplay.train("dqn", run=str(tmp_path / "one"), compile="on", **{**given, "steps": 400})
    begun = list[int]()
    start = packages.BackgroundCall.start
    monkeypatch.setattr(packages.BackgroundCall, "start", lambda self, n: begun.append(n) or start(self, n))
    monkeypatch.setattr(runners, "cores", lambda: 2)
    more = {**given, "compile": "auto", "steps": 3000, "checkpoint_every": 0.5}
    run = polyplay.train("dqn", run=str(tmp_path / "two"), **more)
    assert sum(begun) > 50
    polyplay.resume(str(run.directory), steps=4000)
    assert json.loads((run.directory / "summary.json").read_text())["steps"] >= 4000
