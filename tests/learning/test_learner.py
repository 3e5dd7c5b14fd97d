"""What a learner counts, saves and reports, and what it does when numbers go wrong."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from polyplay.buffers import Replay, RolloutQueue
from polyplay.buffers.rollout_queue import rows_of
from polyplay.core import checkpoint
from polyplay.core.errors import NotFinite, UserError
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters, HyperparameterSchedule, RunControl, SchedulePoint
from polyplay.envs import Discrete, Envs, EnvSpec
from polyplay.learning import Inline, Replayed, Rollouts, learn, losses, try_loss, value_losses
from polyplay.learning.checkpoints import LearnerCheckpoints
from polyplay.learning.learner import Epochs, Learner, Minibatches, shuffled_order
from polyplay.learning.parts import RateDrops, TargetNetwork
from polyplay.learning.unreal import KL, UnrealWindows, WithAuxiliary
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.workers.crew import Crew
from tests.weights.ends import SPEC, finish, me, some_rows, task


def test_counts_lag_and_annealing():
    ctx = me()
    learner = Learner(ctx, task(total=220.0))
    for i in range(3):
        finish(learner.step(some_rows(i, version=max(0, i - 1)), {}))
    assert learner.version == 3
    assert learner.learnt == 3 * 22  # 24 transitions, 2 of them void
    learner.close()
    assert ctx.counters.get("lag_sum") == 22 + 22  # lags 0, 1, 1
    assert ctx.counters.get("lag_max") == 1
    learner.adjust()
    assert learner.run.hyper["learning_rate"] == pytest.approx(1e-2 * (1 - 66 / 220))
    assert not learner.done
    for i in range(7):
        finish(learner.step(some_rows(i), {}))
    assert learner.done
    dropping = Learner(me(), task(parts=(RateDrops((1, 3)),)))
    for i, rate in enumerate((1e-2, 1e-3, 1e-3, 1e-4)):
        finish(dropping.step(some_rows(i), {}))
        assert dropping.update.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@dataclass(frozen=True)
class Broken(losses.Loss):
    metrics = ()

    def __call__(self, policy, target, batch, state, hyper):
        value = policy.unroll(batch, state)["value"]
        return losses.LossOutput((value * batch["reward"]).sum() * torch.tensor(float("nan")), {})


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved_and_the_weights_untouched(tmp_path):
    learner = Learner(me(directory=tmp_path), task(loss=Broken()))
    before = learner.update.vector.flat.clone()
    with pytest.raises(NotFinite, match=r"update 0: loss nan.*not-finite-0-0\.safetensors"):
        finish(learner.step(some_rows(1), {}))
    assert torch.equal(learner.update.vector.flat, before)
    from safetensors.numpy import load_file

    kept = load_file(tmp_path / "not-finite-0-0.safetensors")
    assert np.array_equal(kept["reward"], some_rows(1)["reward"])


class Gives(losses.Loss):
    """A loss of a user's own that gives what a test wants of it."""

    def __init__(self, made: Any):
        self.made = made

    def __call__(self, policy, target, batch, state, hyper):
        return self.made(policy.unroll(batch, state)["value"].sum())


class Lacks(losses.Loss):
    pass


class Unnamed(Gives):
    metrics = "loss"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda *given: None, "class function: it must inherit polyplay.learning.Loss"),
        (Lacks(), r"class Lacks lacks __call__\(policy, target, batch, state, hyper\) -> LossOutput"),
        (Unnamed(None), r"class Unnamed: metrics is 'loss'; it must be a tuple of names, such as \('loss',\)"),
        (Gives(lambda x: x), r"class Gives: __call__ gave Tensor, it must give LossOutput\(loss, metrics, priority\)"),
        (
            Gives(lambda x: losses.LossOutput(x.view(1), {})),
            r"__call__ gave a loss Tensor \[1\], it must be a tensor \[\]",
        ),
        (Gives(lambda x: losses.LossOutput(x.detach(), {})), r"it must be a tensor \[\] with a gradient"),
        (Gives(lambda x: losses.LossOutput(x, {})), r"gave no tensor \[\] as metric 'loss', which `metrics` names"),
    ],
)
def test_a_loss_of_a_users_own_that_does_not_fit_is_one_line(loss, said):
    with pytest.raises(UserError, match=f"LearnerSpec.loss: .*{said}") as e:
        finish(Learner(me(), task(loss=loss)).step(some_rows(1), {}))
    assert "\n" not in str(e.value)


class GivesOfItems(Gives):
    def __call__(self, policy, target, batch, state, hyper):
        return self.made(policy.scores({"obs": batch["obs"]}, {}).sum())


@pytest.mark.parametrize("source", ["inline", "passes", "queue", "replay"])
def test_a_loss_of_a_users_own_is_tried_before_anything_starts(source):
    envs = Envs("toy:catch", 4)
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (8,)}, "values" if source == "replay" else "policy")
    rows = {k: v for k, v in rows_of(envs.spec, policy().spec()).items() if k != "agent"}
    made = {
        "inline": lambda: Inline(envs, 5),
        "passes": lambda: Inline(envs, 5),
        "queue": lambda: Rollouts(RolloutQueue.of(envs, policy(), 5, 1), 1),
        "replay": lambda: Replayed(Inline(envs, 5), Replay(rows, 4, 400, 8)),
    }[source]()
    kind = GivesOfItems if source == "replay" else Gives
    fits = kind(lambda x: losses.LossOutput(x, {"loss": x.detach()}))
    for loss, wrong in ((kind(lambda x: x), True), (fits, False)):
        crew = Crew(seed=1, serial=True)
        spec = replace(task(policy=policy, loss=loss), passes=Epochs(2, 2) if source == "passes" else None)
        with pytest.raises(UserError, match="gave Tensor, it must give") if wrong else nullcontext():
            crew.add(learn, source=made, spec=spec)


def test_a_loss_that_asks_for_a_hyperparameter_that_is_not_there_is_refused_before_anything_starts():
    envs = Envs("toy:catch", 4)
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (8,)})

    class Asks(Gives):
        def __call__(self, policy, target, batch, state, hyper):
            return super().__call__(policy, target, batch, state, hyper)._replace(loss=hyper["temperature"])

    with pytest.raises(UserError, match=r"there is no hyperparameter 'temperature'; use one of learning_rate"):
        Crew(seed=1, serial=True).add(
            learn, source=Inline(envs, 5), spec=task(policy=policy, loss=Asks(lambda x: losses.LossOutput(x, {})))
        )


def test_passes_over_what_a_replay_drew_are_refused():
    source, spec = SimpleNamespace(replay=Mock()), replace(task(), passes=Epochs(2, 2))
    with pytest.raises(UserError, match="passes given with a replay, but need a source of rollouts, such as Inline"):
        try_loss(source, spec)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_last_row_need_not_be_unrolled_where_its_value_was_said_by_the_same_weights(core):
    """Same loss, same gradient, to the float's precision, over two rollouts with an episode's end in the second."""
    policy = build_network(factory.NetworkFactory("mlp", SPEC, {"hidden": (8,), "core": core, "core_size": 6}), 3)
    state = policy.initial(2)
    for rollout in range(2):
        rows, before = some_rows(rollout, T=5, B=2), state
        rows["first"][:] = False
        rows["first"][3, 0] = rollout == 1
        rows["terminated"] = np.roll(rows["first"], -1, 0)
        for t in range(6):
            step = {k: torch.from_numpy(rows[k][t]) for k in ("obs", "reward", "first")}
            with torch.no_grad():
                out, after = policy.act({**step, "noise": torch.rand(2, 1)}, state)
            for k in ("action", "logp", "value"):
                rows[k][t] = out[k].numpy()
            state = state if t == 5 else after  # row 5 is the next rollout's row 0: its state is the one before it
        batch = {k: torch.from_numpy(v) for k, v in rows.items()}
        assert torch.allclose(batch["value"], policy.unroll(batch, before)["value"], atol=1e-6)
        gradients = []
        for recalls in (False, True):
            policy.zero_grad()
            loss = losses.A2C(reduction="sum", recalls=recalls)
            loss(policy, None, batch, before, {"entropy_cost": 0.01}).loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
        assert gradients[0].abs().max() > 0.01
        assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


def test_what_is_of_another_class_is_refused():
    with pytest.raises(UserError, match=r"LearnerSpec: update is of class str; use a .*Update, such as Local"):
        replace(task(), update="adam")
    with pytest.raises(UserError, match=r"explore=0\.1 given, allowed: an Exploration"):
        Inline(Envs("toy:catch", 4), 5, explore=0.1)
    with pytest.raises(UserError, match=r"LearnerSpec: policy is of class ActorCritic; use a .*PolicyFactory"):
        task(policy=build_network(factory.NetworkFactory("mlp", SPEC, {"hidden": (8,)}), 3))


@pytest.mark.parametrize(("lanes", "small", "reported"), [(6, 0, 2), (30, 0, 12), (30, 1_000_000, 2)])
def test_of_updates_with_few_rows_or_weights_every_tenth_reports_its_metrics(monkeypatch, lanes, small, reported):
    monkeypatch.setattr("polyplay.learning.learner.SMALL", small)
    ctx = me()
    learner = Learner(ctx, task())
    for i in range(12):
        finish(learner.step(some_rows(i, B=lanes), {}))
    assert ctx.all_counters.metrics[0, 0, 1] == reported
    assert ctx.counters.get("updates") == 12


def test_running_statistics_learn_from_what_is_drawn_where_that_is_asked_for():
    policy = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,), "inputs": "normalize"}, "values")
    spec = task(policy=policy, loss=value_losses.QLoss("mean"), parts=(TargetNetwork(5),))
    learner, rng = Learner(me(), spec), np.random.default_rng(1)
    item = {"obs": rng.standard_normal((2, 6, 5)).astype(np.float32), "action": rng.integers(0, 3, 6)}
    item |= {"return": np.ones(6, np.float32), "discount": np.ones(6, np.float32), "version": np.zeros(6, np.int64)}
    counts = [dict(net.named_buffers())["inputs.moments.0.count"] for net in (learner.policy, learner.run.target)]
    finish(learner.step_on_sample(item, 3.0))
    assert [float(c) for c in counts] == [0.0, 0.0], "the memory's rows were observed when they came"
    finish(learner.step_on_sample(item, 3.0, observe=True))
    assert [float(c) for c in counts] == [1.0, 1.0]
    assert (learner.version, learner.learnt) == (2, 6.0)


def test_a_spec_adds_what_its_network_and_its_loss_need():
    given = {"hidden": (8,), "core": "temporal", "core_size": 6, "auxiliary": {"value": 0.5}}
    policy, ppo = factory.NetworkFactory("mlp", OWN, given), losses.PPO(clip_range=0.2)
    spec = task(policy=policy, loss=ppo)
    assert spec.loss.terms == {**KL, "value_replay": 0.5}
    assert [type(part) for part in spec.parts] == [UnrealWindows]
    assert spec.hyperparameters.configured["remaining"] == 1.0
    again = replace(spec, total=1.0)
    assert (again.loss, again.parts, again.hyperparameters) == (spec.loss, spec.parts, spec.hyperparameters)
    plain = task(policy=policy, loss=Broken())
    assert type(plain.loss) is Broken, "only losses of actor-critics have terms added"
    assert "remaining" not in task(loss=replace(ppo, anneal_clip=False)).hyperparameters.configured


OWN = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3), events=("kill", "death"))


def test_auxiliary_tasks_draw_from_rows_and_states_as_they_came_with_the_agent_s_own_rewards():
    given = {"hidden": (8,), "core": "lstm", "core_size": 6, "auxiliary": ("reward", "value"), "rewards": OWN.events}
    spec = task(policy=factory.NetworkFactory("mlp", OWN, given))
    hyper = Hyperparameters(learning_rate=0.0, entropy_cost=0.0, reward_kill=0.5, reward_death=-0.25)
    spec, columns = replace(spec, hyperparameters=hyper, parts=(UnrealWindows(),)), []
    learner = Learner(me(), spec)
    windows = learner.parts[0]
    for i in range(3):
        rng = np.random.default_rng(i)
        events = rng.integers(0, 2, (7, 6, 2)).astype(np.float32)
        rows = {**some_rows(i, 6, 6), "events": events, "reward": np.ones((7, 6), np.float32)}
        state = {k: rng.random((6, *f.shape)).astype(f.dtype) for k, f in learner.policy.state_spec().items()}
        own = 0.5 * events[..., 0] - 0.25 * events[..., 1]
        columns += [({**rows, "reward": own}, state, b) for b in range(6)]
        drawn = windows.inputs(rows, *({k: torch.from_numpy(v) for k, v in x.items()} for x in (rows, state)))
        replayed = drawn["replayed"]
        assert drawn["recent"].shape == (3, 6, 5)
        for j in range(6):
            seen = drawn["recent"][:, j].numpy()
            ((r, b, t),) = [
                (r, b, t) for r, _, b in columns for t in range(4) if (r["obs"][t : t + 3, b] == seen).all()
            ]
            assert float(drawn["recent_reward"][j]) == r["reward"][t + 3, b]
            assert not r["first"][t + 1 : t + 4, b].any()
            ((r, before, b),) = [x for x in columns if (x[0]["obs"][:, x[2]] == replayed["obs"][:, j].numpy()).all()]
            assert all((replayed[k][:, j].numpy() == r[k][:, b]).all() for k in ("reward", "first", "action"))
            assert all((replayed["state"][k][j].numpy() == before[k][b]).all() for k in before)
    void = {**rows, "first": np.ones((7, 6), bool)}
    other = Learner(me(), spec).parts[0]
    drawn = other.inputs(void, *({k: torch.from_numpy(v) for k, v in x.items()} for x in (void, state)))
    assert float(drawn["recent_weight"]) == 0.0, "there is no example yet"
    assert drawn["recent"].shape == (3, 6, 5)
    assert not drawn["recent_reward"].any()
    assert Learner(me(), task(parts=(UnrealWindows(),))).parts[0].inputs(rows, {}, {}) == {}


def test_scheduled_values_are_those_of_the_agent_steps_learnt_and_are_told_once(tmp_path):
    def begin(index: int, resume: Path | None = None) -> tuple[Learner, list[str]]:
        spec = task(total=200.0)
        points = (SchedulePoint(0.5, 0.3, True), SchedulePoint(0.25, 80, False))
        spec.hyperparameters.schedules = (HyperparameterSchedule("entropy_cost", points),)
        told: list[str] = []
        ctx = me(index, 2, directory=tmp_path, resume=resume)
        ctx.log = lambda kind, text: told.append(f"{kind}: {text}")
        return Learner(ctx, spec), told

    lines = ["note: from 60 agent steps on: entropy_cost 0.5", "note: from 80 agent steps on: entropy_cost 0.25"]
    for index, expected in ((0, lines), (1, [])):
        learner, told = begin(index)
        for i in range(5):
            before = learner.learnt
            finish(learner.step(some_rows(i), {}))
            held = learner.spec.hyperparameters.entropy_cost
            assert held == (0.01 if before < 60 else 0.5 if before < 80 else 0.25)
        assert told == expected
        if index == 0:
            learner.spec.hyperparameters.set("entropy_cost", 0.7)
            learner.checkpoints.save()
            path = checkpoint.complete(tmp_path, learner.version, {})
    again, told = begin(0, path)
    assert again.spec.hyperparameters.entropy_cost == 0.25, "no state: it follows from where the run is"
    finish(again.step(some_rows(1), {}))
    assert told == lines[1:]
    assert again.spec.hyperparameters.entropy_cost == 0.25


# Which rows a pass takes, in which order, and when it stops.


def test_every_pass_takes_every_place_once_in_an_order_of_its_own():
    places = np.array([3, 5, 8, 13, 21, 34, 55])
    found = [order[at].tolist() for order, at in shuffled_order(places, Epochs(3, 2), (1, 2))]
    assert [len(part) for part in found] == [4, 3] * 3
    orders = [found[i] + found[i + 1] for i in (0, 2, 4)]
    assert all(sorted(o) == places.tolist() for o in orders)
    assert len({tuple(o) for o in orders}) == 3
    assert found == [order[at].tolist() for order, at in shuffled_order(places, Epochs(3, 2), (1, 2))]


def _parts(loss: Any, state: Any = None) -> tuple[dict, Minibatches]:
    rows = {k: torch.from_numpy(v) for k, v in some_rows(3, version=5).items()}
    rows["version"][1] = 7
    return rows, Minibatches(rows, state or {}, loss.prepare(rows), rows["version"].numpy(), loss.whole)


def test_single_transitions_are_those_of_the_rollout_and_all_valid():
    rows, parts = _parts(losses.PPO())
    assert len(parts.places) == 22  # 24 transitions, 2 of them void
    order, part = parts.places[[3, 0, 7, 21]], slice(1, 4)
    at, version = order[part], parts.versions(order, part)
    taken, state = parts.take(order, part)
    assert state == {}
    assert bool(taken["valid"].all())
    for k, place in enumerate(at):
        t, b = divmod(int(place), 6)
        assert torch.equal(taken["obs"][0, k], rows["obs"][t, b])
        assert taken["logp"][0, k] == rows["logp"][t, b]
        assert version[k] == rows["version"][t, b]


@pytest.mark.parametrize(("loss", "length"), [(losses.PPO(), 4), (losses.APPO(), 5)], ids=["PPO", "APPO"])
def test_whole_lanes_are_taken_with_the_state_before_them(loss, length):
    """With a memory; for a loss that makes its own targets, with the last row too. All are no copy."""
    rows, parts = _parts(loss, {"h": torch.arange(6.0)})
    assert parts.places.tolist() == [0, 1, 2, 3, 4, 5], "also those with a void transition"
    some = np.array([4, 0])
    taken, state = parts.take(some)
    version = parts.versions(some)
    assert torch.equal(taken["obs"], rows["obs"][:length, [4, 0]])
    assert state["h"].tolist() == [4.0, 0.0]
    valid = ~rows["first"][1:, [4, 0]].numpy()
    assert version.tolist() == rows["version"][:-1, [4, 0]].numpy()[valid].tolist()
    assert len(version) == 7
    assert 7 in version
    everyone = np.array([5, 3, 0, 1, 2, 4])
    taken, state = parts.take(everyone)
    version = parts.versions(everyone)
    assert taken["obs"].data_ptr() == rows["obs"].data_ptr()
    assert state["h"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "in the rows' order"
    assert len(version) == 22


def _learner(ctx, passes):
    return Learner(ctx, replace(task(loss=losses.PPO(anneal_clip=False), total=1e6), passes=passes))


def test_steps_count_once_and_every_update_has_its_own_lag():
    ctx = me()
    learner = _learner(ctx, Epochs(3, 2))
    assert learner.spec.passes.updates == 6
    for i in range(2):
        finish(learner.step(some_rows(i, version=6 * i), {}))
    assert learner.version == 12
    assert learner.learnt == 2 * 22
    learner.close()
    assert ctx.counters.get("lag_count") == 2 * 3 * 22
    assert ctx.counters.get("lag_sum") == 2 * 11 * (0 + 1 + 2 + 3 + 4 + 5)
    assert ctx.counters.get("lag_max") == 5


def test_too_far_from_the_policy_that_acted_ends_the_passes():
    near, far = (_learner(me(), Epochs(5, 2, target_kl)) for target_kl in (1e9, 1e-9))
    for learner in (near, far):
        finish(learner.step(some_rows(0), {}))
    assert near.version == 10
    assert far.version == 1, "rows that another policy acted on"
    assert near.learnt == far.learnt == 22


# Saves of one update: each has a mark of its own, and waits until the parts of the one before were taken.


def checkpoints(serial: bool = False) -> Any:
    """Those of a learner with a counter `saved`."""
    values = {"saved": 0.0}
    counters = SimpleNamespace(get=values.__getitem__, set=values.__setitem__)
    control = RunControl()
    ctx: Any = SimpleNamespace(counters=counters, control=control, serial=serial, turn=control.check, index=0)
    return LearnerCheckpoints(Mock(), ctx, task())


def test_marks_grow_and_tell_repeated_saves_apart():
    marks, told = checkpoints(), list[float]()
    for number, failed in ((None, False), (0, False), (0, False), (0, True), (4, False), (4, False)):
        marks.tell(number, failed)
        told.append(marks.ctx.counters.get("saved"))
    assert [abs(m) for m in told] == sorted({abs(m) for m in told})
    assert [int(abs(m)) for m in told] == [0, 1, 1, 1, 5, 5]
    assert [m < 0 for m in told] == [False, False, False, True, False, False]


@pytest.mark.parametrize(("first", "then"), [(None, 0), (0, 0), (6, 6)])
def test_a_save_of_the_same_update_waits_until_the_one_before_was_taken(first, then):
    marks = checkpoints()
    marks.tell(first)
    waiting = threading.Thread(target=marks.wait_taken, args=(then,), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    marks.ctx.control.take(abs(marks.ctx.counters.get("saved")))
    waiting.join(30.0)
    assert not waiting.is_alive()


def test_auxiliary_tasks_take_no_passes_and_no_recalled_rows():
    given = {"hidden": (8,), "auxiliary": {"reward": 1.0}}
    policy = factory.NetworkFactory("mlp", OWN, given)
    for more, says in (({"passes": Epochs(1, 2)}, "passes given"), ({}, "loss with recalls=True given")):
        loss = losses.PPO(clip_range=0.2) if more else losses.A2C(recalls=True)
        with pytest.raises(UserError, match=f"LearnerSpec: {says} with auxiliary tasks reward_prediction: remove one"):
            replace(task(), policy=policy, loss=loss, **more)


def test_a_loss_that_calls_its_network_itself_is_left_as_it_is():
    class Own(losses.A2C):
        def __call__(self, policy, target, batch, state, hyper):
            return super().__call__(policy, target, batch, state, hyper)

    policy = factory.NetworkFactory("mlp", OWN, {"hidden": (8,), "core": "temporal", "core_size": 6})
    assert type(task(policy=policy, loss=Own()).loss) is Own
    assert type(task(policy=policy, loss=losses.A2C()).loss) is WithAuxiliary
