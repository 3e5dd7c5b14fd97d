"""What a learner counts, saves and reports, and what it does when numbers go wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from polyplay.core import checkpoint
from polyplay.core.errors import NotFinite
from polyplay.core.tree import Field
from polyplay.core.worker import (
    Counters,
    Hyperparameters,
    HyperparameterSchedule,
    RunControl,
    SchedulePoint,
    WorkerContext,
)
from polyplay.envs import Discrete, EnvSpec
from polyplay.learning import policy_losses, returns, value_losses
from polyplay.learning.learner import Learner, LearnerSpec, unroll_before_last
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.weights.update import Local, OptimizerSpec

SPEC = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3))
POLICY = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,)})
OPTIM = OptimizerSpec("rmsprop_tf", eps=1e-3, clip=0.5)


def _me(index: int = 0, n: int = 1, directory: Path | None = None, resume: Path | None = None) -> WorkerContext:
    return WorkerContext(
        "learn",
        index,
        n,
        index,
        seed=4,
        all_counters=Counters(4, ("loss",)),
        control=RunControl(),
        directory=directory,
        resume=resume,
    )


def _task(update=None, total: float = 1e9, **more) -> LearnerSpec:
    hyperparameters = Hyperparameters(learning_rate=1e-2, entropy_cost=0.01)
    return LearnerSpec(
        more.pop("policy", POLICY),
        more.pop("loss", policy_losses.A2C()),
        update or Local(OPTIM),
        hyperparameters,
        total,
        **more,
    )


def _rows(seed: int, T: int = 4, B: int = 6, version: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    first = np.zeros((T + 1, B), bool)
    first[2, :2] = True
    floats = {k: rng.standard_normal((T + 1, B)).astype(np.float32) for k in ("reward", "value", "logp")}
    return {
        "obs": rng.standard_normal((T + 1, B, 5)).astype(np.float32),
        "action": rng.integers(0, 3, (T + 1, B)),
        "terminated": np.roll(first, -1, 0),
        "truncated": np.zeros((T + 1, B), bool),
        "first": first,
        "version": np.full((T + 1, B), version),
        **floats,
    }


def _finish(steps) -> None:
    for _ in steps:
        pass


def test_counts_lag_and_annealing():
    ctx = _me()
    learner = Learner(ctx, _task(total=220.0))
    for i in range(3):
        _finish(learner.step(_rows(i, version=max(0, i - 1)), {}))
    assert learner.version == 3
    assert learner.learnt == 3 * 22  # 24 transitions, 2 of them void
    assert ctx.counters.get("lag_sum") == 22 + 22  # lags 0, 1, 1
    assert ctx.counters.get("lag_max") == 1
    assert learner.rate() == pytest.approx(1e-2 * (1 - 66 / 220))
    assert not learner.done
    for i in range(7):
        _finish(learner.step(_rows(i), {}))
    assert learner.done
    assert Learner(_me(), _task(anneal="constant")).rate() == 1e-2


@dataclass(frozen=True)
class Broken:
    metrics: ClassVar[tuple[str, ...]] = ()

    def __call__(self, out, batch, hyperparameters):
        return returns.LossOutput((out["value"] * batch["reward"]).sum() * torch.tensor(float("nan")), {})


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved_and_the_weights_untouched(tmp_path):
    learner = Learner(_me(directory=tmp_path), _task(loss=Broken()))
    before = learner.vector.flat.clone()
    with pytest.raises(NotFinite, match=r"update 0: loss nan.*not-finite-0-0\.safetensors"):
        _finish(learner.step(_rows(1), {}))
    assert torch.equal(learner.vector.flat, before)
    from safetensors.numpy import load_file

    kept = load_file(tmp_path / "not-finite-0-0.safetensors")
    assert np.array_equal(kept["reward"], _rows(1)["reward"])


@pytest.mark.parametrize("name", ["rmsprop_tf", "adam"])
def test_a_saved_learner_goes_on_to_the_bit(name, tmp_path):
    spec = _task(Local(OptimizerSpec(name, eps=1e-3, clip=0.5)))
    learner = Learner(_me(directory=tmp_path), spec)
    for i in range(3):
        _finish(learner.step(_rows(i), {}))
    spec.hyperparameters.set("learning_rate", 2e-3)
    learner.save(lambda part: part.arrays("workers/more", {"x": np.arange(3)}))
    spec.hyperparameters.set("learning_rate", 1e-3)
    path = checkpoint.complete(tmp_path, 3, {})
    second = Learner(_me(directory=tmp_path, resume=path), spec)
    assert second.version == 3
    assert second.learnt == learner.learnt
    assert spec.hyperparameters.learning_rate == 2e-3
    assert checkpoint.open_checkpoint(path).arrays("workers/more")["x"].tolist() == [0, 1, 2]
    for i in range(3, 6):
        _finish(learner.step(_rows(i), {}))
        _finish(second.step(_rows(i), {}))
    assert torch.equal(learner.vector.flat, second.vector.flat)


def test_every_update_can_be_traced(tmp_path):
    ctx = _me(directory=tmp_path)
    ctx.trace = True
    learner = Learner(ctx, _task())
    for i in range(3):
        _finish(learner.step(_rows(i), {}))
    rows = [json.loads(line) for line in (tmp_path / "updates.jsonl").read_text().splitlines()]
    assert [r["update"] for r in rows] == [1, 2, 3]
    assert all(np.isfinite(r["loss"]) for r in rows)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_last_row_need_not_be_unrolled_where_its_value_was_said_by_the_same_weights(core):
    """Same loss, same gradient, to the float's precision, over two rollouts with an episode's end in the second."""
    policy = build_network(factory.NetworkFactory("mlp", SPEC, {"hidden": (8,), "core": core, "core_size": 6}), 3)
    state = policy.initial(2)
    for rollout in range(2):
        rows, before = _rows(rollout, T=5, B=2), state
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
        whole, short = policy.unroll(batch, before), unroll_before_last(policy, batch, before)
        assert torch.allclose(short["value"], whole["value"], atol=1e-6)
        for k in ("logp", "entropy"):
            assert torch.allclose(short[k][:-1], whole[k][:-1], atol=1e-6)
        gradients = []
        for out in (whole, short):
            policy.zero_grad()
            policy_losses.A2C(reduction="sum")(out, batch, Hyperparameters(entropy_cost=0.01)).loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
        assert gradients[0].abs().max() > 0.01
        assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


def test_metrics_of_every_third_update_are_reported_if_so_asked():
    ctx = _me()
    learner = Learner(ctx, _task(report=3))
    for i in range(7):
        _finish(learner.step(_rows(i), {}))
    assert ctx.all_counters.metrics[0, 0, 1] == 2
    assert ctx.counters.get("updates") == 7


def test_running_statistics_learn_from_what_is_drawn_where_that_is_asked_for():
    policy = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,), "inputs": "normalize"}, values=True)
    spec = _task(policy=policy, loss=value_losses.QLoss("mean"), outputs=value_losses.q_outputs, target=5)
    learner, rng = Learner(_me(), spec), np.random.default_rng(1)
    item = {"obs": rng.standard_normal((2, 6, 5)).astype(np.float32), "action": rng.integers(0, 3, 6)}
    item |= {"return": np.ones(6, np.float32), "discount": np.ones(6, np.float32), "version": np.zeros(6, np.int64)}
    counts = [dict(net.named_buffers())["inputs.moments.0.count"] for net in (learner.policy, learner.target_net)]
    _finish(learner.step_on_sample(item, 3.0))
    assert [float(c) for c in counts] == [0.0, 0.0], "the memory's rows were observed when they came"
    _finish(learner.step_on_sample(item, 3.0, observe=True))
    assert [float(c) for c in counts] == [1.0, 1.0]
    assert (learner.version, learner.learnt) == (2, 6.0)


# ---------------------------------------------------------------------------- rows that rewards are predicted from

OWN = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3), events=("kill", "death"))
HEARD: list[dict] = []


@dataclass(frozen=True)
class Listening:
    """A loss that notes what it gets."""

    metrics: ClassVar[tuple[str, ...]] = ()

    def __call__(self, out, batch, hyperparameters):
        HEARD.append({**out, **{k: batch[k] for k in ("recent", "recent_reward") if k in batch}})
        return returns.LossOutput(out["value"].sum() * 0.0, {})


def _predicting(seed: int = 4, **options) -> Learner:
    policy = factory.NetworkFactory(
        "mlp", OWN, {"hidden": (8,), "auxiliary": ("reward",), "rewards": OWN.events, **options}
    )
    ctx = _me()
    ctx.seed = seed
    spec = _task(policy=policy, loss=Listening())
    hyperparameters = Hyperparameters(learning_rate=0.0, entropy_cost=0.0, reward_kill=0.5, reward_death=-0.25)
    return Learner(ctx, replace(spec, hyperparameters=hyperparameters))


def _own_rows(seed: int, T: int = 6, B: int = 6) -> dict:
    """The environment's reward is 1 throughout, so that it would be seen."""
    events = np.random.default_rng(seed).integers(0, 2, (T + 1, B, 2)).astype(np.float32)
    return {**_rows(seed, T, B), "events": events, "reward": np.ones((T + 1, B), np.float32)}


def _inner(rows: dict) -> np.ndarray:
    return 0.5 * rows["events"][..., 0] - 0.25 * rows["events"][..., 1]


def test_rows_are_kept_and_examples_are_of_the_inner_reward():
    HEARD.clear()
    learner, given = _predicting(), [_own_rows(i) for i in range(3)]
    for rows in given:
        _finish(learner.step(rows, {}))
    kept = learner.auxiliary.recent.rows
    for i, rows in enumerate(given):
        assert np.array_equal(kept["obs"][:, 6 * i : 6 * i + 6], rows["obs"])
        np.testing.assert_allclose(kept["reward"][:, 6 * i : 6 * i + 6], _inner(rows))
    followed = {}  # of an observation: the three that it ends, and the reward behind them
    for rows in given:
        for t, lane in np.ndindex(4, 6):
            seen = rows["obs"][t : t + 3, lane]
            followed[seen.tobytes()] = _inner(rows)[t + 3, lane], rows["first"][t + 1 : t + 4, lane].any()
    assert len(HEARD) == 3
    for heard in HEARD:
        assert heard["recent"].shape == (3, 6, 5)
        assert heard["reward_logits"].shape == (6, 3)
        for i, reward in enumerate(heard["recent_reward"].tolist()):
            expected, begins = followed[heard["recent"][:, i].numpy().tobytes()]
            assert reward == pytest.approx(expected)
            assert not begins
    assert {x for heard in HEARD for x in heard["recent_reward"].tolist()} >= {0.0, 0.5}


def test_what_is_drawn_depends_on_the_seed_and_the_version_only():
    rows = _own_rows(0, T=30)

    def drawn(seed: int, version: int, again: int = 0) -> torch.Tensor:
        learner = _predicting(seed)
        learner.version = version
        torch.manual_seed(again)
        np.random.seed(again)
        _finish(learner.step(rows, {}))
        return HEARD[-1]["recent"]

    assert torch.equal(drawn(4, 0), drawn(4, 0, again=1))
    assert not torch.equal(drawn(4, 0), drawn(4, 1))
    assert not torch.equal(drawn(4, 0), drawn(5, 0))


def test_nothing_is_kept_where_no_reward_is_predicted_and_nothing_drawn_before_there_is_an_example():
    HEARD.clear()
    learner = _predicting(auxiliary=())
    _finish(learner.step(_own_rows(0), {}))
    assert learner.auxiliary.recent is None
    learner, rows = _predicting(), _own_rows(0)
    rows["first"][:] = True
    _finish(learner.step(rows, {}))
    assert learner.auxiliary.recent.counts == (0, 0)
    assert all("recent" not in heard and "reward_logits" not in heard for heard in HEARD)
    _finish(learner.step(_own_rows(1), {}))
    assert "reward_logits" in HEARD[-1]


# -------------------------------------------------------------------------------------- rows whose values are replayed


@dataclass(frozen=True)
class Noted:
    """A loss that notes what it gets and gives."""

    inner: returns.Loss
    seen: list
    metrics: ClassVar[tuple[str, ...]] = ()

    def __call__(self, out, batch, hyperparameters):
        scored = self.inner(out, batch, hyperparameters)
        self.seen.append((out, batch, scored.loss.item()))
        return scored


REPLAYING = {"hidden": (8,), "core": "lstm", "core_size": 6, "previous": True, "auxiliary": ("value",)}


@pytest.mark.parametrize(("reduction", "core"), [("mean", "lstm"), ("sum", "lstm"), ("mean", "temporal")])
def test_the_loss_of_replayed_values_joins_by_its_cost(reduction, core):
    seen: list = []
    inner = policy_losses.A2C(0.9, reduction=reduction)
    loss = Noted(WithAuxiliary(inner, {"value_replay": 0.3}), seen)
    policy = factory.NetworkFactory("mlp", SPEC, {**REPLAYING, "core": core})
    hyperparameters = Hyperparameters(learning_rate=0.0, entropy_cost=0.01)
    learner = Learner(_me(), replace(_task(policy=policy, loss=loss), hyperparameters=hyperparameters))
    columns: list[tuple[dict, dict]] = []
    for i in range(4):
        rows, rng = _rows(i, B=3), np.random.default_rng(50 + i)
        if core == "temporal":
            rows["latent_noise"] = rng.standard_normal((5, 3, 6)).astype(np.float32)
        state = {
            k: (2 * rng.random((3, *field.shape))).astype(field.dtype)
            for k, field in learner.policy.state_spec().items()
        }
        _finish(learner.step(rows, state))
        for b in range(3):
            lane = slice(b, b + 1)
            columns.append(({k: v[:, lane] for k, v in rows.items()}, {k: v[lane] for k, v in state.items()}))
        out, batch, found = seen[-1]
        drawn = np.random.default_rng((4, 0, i)).integers(len(columns), size=3)
        parts = [_replayed(learner.policy, *columns[c], gamma=0.9) for c in drawn]
        term = sum(sum(errors) for errors in parts) / sum(len(errors) for errors in parts)
        times = sum(len(errors) for errors in parts) if reduction == "sum" else 1
        alone = inner(out, batch, hyperparameters).loss.item()
        assert term > 0.01
        assert found == pytest.approx(alone + 0.3 * times * term, rel=1e-5)
    assert len({*drawn.tolist()}) > 1


def _replayed(policy, rows: dict, state: dict, gamma: float) -> list[float]:
    """½ (R − V)² of the transitions of one column [T+1, 1], by plain loops; rewards are clipped."""
    with torch.no_grad():
        given = ({k: torch.from_numpy(v.copy()) for k, v in x.items()} for x in (rows, state))
        value = policy.unroll(*given)["value"][:, 0].tolist()
    errors = []
    for t in range(len(value) - 1):
        if rows["first"][t + 1, 0]:
            continue
        ret, weight, at = 0.0, 1.0, t
        while True:
            at += 1
            ret += weight * min(1.0, max(-1.0, float(rows["reward"][at, 0])))
            weight *= gamma
            if rows["terminated"][at, 0]:
                break
            if at == len(value) - 1 or rows["first"][at + 1, 0]:
                ret += weight * value[at]
                break
        errors.append(0.5 * (ret - value[t]) ** 2)
    return errors


def test_replayed_values_have_a_gradient_and_their_rows_what_it_takes():
    seen: list = []
    loss = Noted(WithAuxiliary(policy_losses.A2C(), {"value_replay": 1.0}), seen)
    learner = Learner(_me(), _task(policy=factory.NetworkFactory("mlp", SPEC, REPLAYING), loss=loss))
    state = {k: v.numpy() for k, v in learner.policy.initial(6).items()}
    _finish(learner.step(_rows(0), state))
    out, batch, _ = seen[0]
    value = out["replayed_value"]
    assert value.requires_grad
    assert value.shape == batch["replayed"]["reward"].shape == (5, 6)
    assert {*batch["replayed"]} == {"obs", "reward", "first", "terminated", "action", "state"}


def test_scheduled_values_are_those_of_the_agent_steps_learnt_and_are_told_once(tmp_path):
    def begin(index: int, resume: Path | None = None) -> tuple[Learner, list[str]]:
        spec = _task(total=200.0, anneal="constant")
        points = (SchedulePoint(0.5, 0.3, True), SchedulePoint(0.25, 80, False))
        spec.hyperparameters.schedules = (HyperparameterSchedule("entropy_cost", points),)
        told: list[str] = []
        ctx = _me(index, 2, tmp_path, resume)
        ctx.say = lambda kind, text: told.append(f"{kind}: {text}")
        return Learner(ctx, spec), told

    lines = ["note: from 60 agent steps on: entropy_cost 0.5", "note: from 80 agent steps on: entropy_cost 0.25"]
    for index, expected in ((0, lines), (1, [])):
        learner, told = begin(index)
        for i in range(5):
            before = learner.learnt
            _finish(learner.step(_rows(i), {}))
            held = learner.spec.hyperparameters.entropy_cost
            assert held == (0.01 if before < 60 else 0.5 if before < 80 else 0.25)
        assert told == expected
        if index == 0:
            learner.save()
            path = checkpoint.complete(tmp_path, learner.version, {})
    again, told = begin(0, path)
    assert again.spec.hyperparameters.entropy_cost == 0.01, "no state: it follows from where the run is"
    _finish(again.step(_rows(1), {}))
    assert told == lines[1:]
    assert again.spec.hyperparameters.entropy_cost == 0.25
