"""Windows of rollouts: their targets against a plain twin, and what is said where data is too old or used too often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.buffers.experience import Experience
from polyplay.buffers.rollout_queue import ROWS, RolloutQueue
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, Hyperparameters
from polyplay.learning.agents import METRICS, ExperienceSource, discount_of
from polyplay.learning.policy_losses import PPO

T, LANES, WINDOW = 12, 3, 4
POLICY = {"action": Field((), "int64"), "logp": Field((), "float32"), "value": Field((), "float32")}


def source(horizon: float = 10.0, said: list[str] | None = None, **given: Any) -> ExperienceSource:
    queue = RolloutQueue({"obs": Field((), "float32"), **ROWS, **POLICY}, {"h": Field((2,), "float32")}, T, LANES, 2,
                         window=WINDOW)  # fmt: skip
    hyper = Hyperparameters(learning_rate=0.1, entropy_cost=0.0, horizon=horizon, step_time=0.5)
    policy = SimpleNamespace(inputs=None, returns=None, rewarded=lambda rows: rows)
    spec = SimpleNamespace(loss=PPO(0.5, 0.9, reward="none"), hyperparameters=hyper)
    learner = SimpleNamespace(policy=policy, spec=spec, device=torch.device("cpu"), adjust=lambda: None, version=200)
    counters = Counters(1, METRICS).row(0)
    say = lambda kind, text: said.append(text) if said is not None else None  # noqa: E731
    ctx = SimpleNamespace(index=1, seed=0, incarnation=0, resume=None, counters=counters, say=say)
    params: Any = SimpleNamespace(each=[None])
    return ExperienceSource(Experience(queue, 9, 3, **given), ctx, learner, params)  # type: ignore[arg-type]


def rollout(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    ended = rng.random((T + 1, LANES)) < 0.2
    first = np.concatenate([rng.random((1, LANES)) < 0.5, ended[:-1]])
    rows = {
        "obs": rng.random((T + 1, LANES), np.float32),
        "action": rng.integers(0, 3, (T + 1, LANES)),
        "logp": rng.normal(size=(T + 1, LANES)).astype(np.float32),
        "value": rng.normal(size=(T + 1, LANES)).astype(np.float32),
        "reward": np.where(first, 0, rng.normal(size=(T + 1, LANES))).astype(np.float32),
        "terminated": ended & (rng.random((T + 1, LANES)) < 0.5) & ~first,
        "truncated": np.zeros((T + 1, LANES), bool),
        "first": first,
        "version": np.full((T + 1, LANES), 7),
        "agent": np.zeros((T + 1, LANES), np.int32),
    }
    return rows, {"h": rng.random((T // WINDOW, LANES, 2), np.float32)}


def plain_gae(rows: dict[str, np.ndarray], lane: int, gamma: float, lam: float) -> list[float]:
    """Advantages of one lane of the whole rollout, float64, step by step from behind."""
    value, found, ahead = rows["value"][:, lane].astype(float), [0.0] * T, 0.0
    for t in reversed(range(T)):
        if rows["first"][t + 1, lane]:
            ahead = 0.0
            continue
        goes_on = 0.0 if rows["terminated"][t + 1, lane] else gamma
        delta = float(rows["reward"][t + 1, lane]) + goes_on * value[t + 1] - value[t]
        ahead = found[t] = delta + goes_on * lam * ahead
    return found


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_windows_know_the_whole_rollout_behind_them(seed):
    feed = source(horizon=8.0)
    rows, state = rollout(seed)
    feed._add(rows, state)
    assert feed.buffer.arrived == 9
    for lane in range(LANES):
        want = plain_gae(rows, lane, discount_of(8.0, 0.5), 0.9)
        for w in range(T // WINDOW):
            at, steps = w * LANES + lane, slice(w * WINDOW, (w + 1) * WINDOW)
            found = {k: v[:, at] for k, v in feed.buffer.rows.items()}
            np.testing.assert_allclose(found["advantage"], want[steps], atol=1e-5)
            valid = ~rows["first"][1:][steps, lane]
            assert (found["valid"] == valid).all()
            np.testing.assert_allclose(found["target"], np.add(want[steps], rows["value"][steps, lane]), atol=1e-5)
            for name in ("obs", "action", "logp", "first", "reward", "version"):
                assert (found[name] == rows[name][steps, lane]).all(), name
            assert (feed.buffer.state["h"][at] == state["h"][w, lane]).all()
    assert feed.fresh == np.count_nonzero(~rows["first"][1:])


def test_a_horizon_changes_what_comes_next():
    feed = source(horizon=8.0)
    rows, state = rollout(0)
    feed._add(rows, state)
    before = feed.buffer.rows["advantage"].copy()
    feed.learner.spec.hyperparameters.set("horizon", 2.0)
    feed._add(rows, state)
    after = feed.buffer.rows["advantage"][:, 0]
    np.testing.assert_allclose(after, plain_gae(rows, 0, 0.75, 0.9)[:WINDOW], atol=1e-5)
    assert not np.allclose(after, before[:, 0])


def test_the_discount_of_the_papers_horizons():
    found = [round(discount_of(h, 0.1333), 6) for h in (60, 180, 360, 840)]
    assert found == [0.997778, 0.999259, 0.99963, 0.999841]


@pytest.mark.parametrize(
    ("reuse", "lag", "words"), [(1, 2, []), (2.5, 2, ["reuse is 2.5"]), (1, 9, ["staleness is 9.0"])]
)
def test_too_much_reuse_and_too_old_data_are_said_once(reuse, lag, words):
    said = list[str]()
    feed = source(said=said)
    feed.first = True
    for _ in range(400):
        feed.since = round(3 / reuse * 100) / 100  # type: ignore[assignment]
        feed._measure(np.full(5, lag))
        feed.learner.version += 1
    assert [text[: len(word)] for text, word in zip(said, words, strict=True)] == words
