"""How many updates a memory owes, what is remembered of a rollout, and what comes back from an update."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import repeat
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.rollout_queue import ROWS, RolloutBatches
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Envs
from polyplay.learning import LearnerSpec, VTrace, loop
from polyplay.learning.loop import Feed, Inline, Replayed, ReplayFeed, Rollouts, Source, learn
from polyplay.nets import NetworkFactory
from polyplay.weights import Local, OptimizerSpec
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role

SPEC: Any = {"obs": Field((3,), "float32"), "action": Field((), "int64"), **ROWS}
SPEC = {k: v for k, v in SPEC.items() if k != "agent"}


@pytest.fixture(autouse=True)
def _not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "divide", lambda learner, rows: None)


class Learner:
    """Counts what it is asked for; its errors are 1, 2, 3, … ."""

    def __init__(self, left: float = 1.0):
        self.revised: list[float] = []
        self.rested: list[float] = []
        self.items: list[Any] = []
        self.seen: list[Any] = []
        self.mean: float | None = None  # agent steps of all replicas, where there are others
        self.remaining = left
        self.spec = SimpleNamespace(update=SimpleNamespace(asynchronous=False, replicas=1))
        self.begins, self.begun = 0, list[Any]()
        self.checkpoints = SimpleNamespace(more=None)
        self.run, self.device, self.version = self, torch.device("cpu"), 0

    def begin(self, items) -> None:
        self.begun += [item["id"].tolist() for item in items]

    def draw_noise(self, item, version):
        """Nothing is random."""

    def observe(self, rows):
        self.seen.append(rows["obs"])

    def step_on_sample(self, item, fresh=0.0, observe=False):
        self.items.append({k: np.array(v) for k, v in item.items() if k in ("id", "weight")})
        self.revised.append(fresh)
        yield from ()
        return np.arange(1.0, len(item["id"]) + 1)

    def count_only(self, steps):
        self.rested.append(steps)
        yield from ()
        return steps if self.mean is None else self.mean


def rollout(T: int, B: int, ends: tuple[int, ...] = ()) -> Any:
    """Rows [T+1, B]; in every lane the rows `ends` are an episode's last."""
    rows: Any = {k: np.zeros((T + 1, B, *f.shape), f.dtype) for k, f in SPEC.items()}
    for t in ends:
        rows["terminated"][t] = True
        if t < T:
            rows["first"][t + 1] = True
    rows["extra"] = np.zeros((T + 1, B))  # what the memory does not keep
    return rows


class Acted(Source):
    """Rollouts of [2, lanes] steps that a test has."""

    replayable = True

    def __init__(self, lanes: int):
        self.lanes = lanes

    @property
    def shape(self) -> tuple[int, int]:
        return 2, self.lanes

    def open(self, ctx: Any, learner: Any, params: Any, replayed: bool = False) -> Feed:
        assert replayed
        return ActedFeed(ctx, learner)


class ActedFeed(Feed):
    alone = blocking = False

    def items(self) -> Any:
        return repeat(None)  # nothing came


def test_a_source_that_lacks_a_method_or_opens_something_else_is_named(monkeypatch):
    class Wrong(Acted):
        def open(self, *given: Any) -> Any:
            return 7

    def adds(source: Any) -> Role:
        policy, hyper = NetworkFactory("mlp", Envs("toy:catch", 1).spec), Hyperparameters(learning_rate=0.1)
        spec = LearnerSpec(policy, VTrace(), Local(OptimizerSpec("adam")), hyper, 1e9)
        return Crew(0).add(learn, source=source, spec=spec)

    with pytest.raises(TypeError, match=r"Unshaped.*shape"):
        type("Unshaped", (Source,), {"open": Acted.open})()
    with pytest.raises(UserError, match=r"learn: source is of type RolloutBatches; must be a .*Source, with shape"):
        adds(object.__new__(RolloutBatches))
    assert adds(Acted(4)).source.shape == (2, 4)
    monkeypatch.setattr(loop, "Learner", Mock())
    with pytest.raises(UserError, match=r"Wrong.open gave int; it must return a polyplay.learning.Feed"):
        next(learn(SimpleNamespace(), source=Wrong(4), spec=None))  # type: ignore[arg-type]


def replay_feed(learner: Learner, lanes: int = 4, incarnation: int = 0, resume: Any = None, **more: Any) -> ReplayFeed:
    told: list[Any] = []
    counters = SimpleNamespace(losses=told.append, timed=lambda column: nullcontext())
    who = {"seed": 1, "index": 0, "incarnation": incarnation, "role": "replica", "resume": resume}
    ctx: Any = SimpleNamespace(**who, counters=counters)
    replay = Replay(SPEC, lanes, **{"capacity": 400, "batch": 8, "start": 16, "ratio": 2.0, **more})
    made: Any = Replayed(Acted(lanes), replay).open(ctx, learner, None)  # type: ignore[arg-type]
    made.told = told
    return made


def run(steps) -> None:
    for _ in steps:
        pass


def step(made: ReplayFeed, rows: Any) -> None:
    """As a feed does: insert a rollout, and make the updates that are due."""
    run(made.learn((rows, {})))
    while made.buffer.due(int(not made.ahead)):
        run(made.learn(()))


def test_what_is_owed_is_the_ratio_times_what_was_remembered_since():
    learner = Learner()
    made = replay_feed(learner)
    for turn in range(1, 30):
        step(made, rollout(2, 4))
        twin = max(0, (8 * turn - 16) * 2 // 8)
        assert made.updates == len(learner.revised) == twin
    assert learner.rested == [8.0] * 29, "steps count once"
    assert not any(learner.revised)


def test_replicas_owe_by_the_mean_of_their_steps():
    """What games end in one of them delays both alike: they make their updates together."""
    owed = []
    for ends in ((), (1,)):
        learner = Learner()
        made = replay_feed(learner)
        learner.mean = 6.0  # of 8 and 4
        for _ in range(9):
            step(made, rollout(2, 4, ends))
        owed.append((made.updates, made.buffer.steps))
    assert owed == [((54 - 16) * 2 // 8, 54.0)] * 2


@pytest.mark.parametrize("most", [1, 3])
def test_samples_drawn_ahead_are_the_next_updates_and_change_no_count(most):
    """With episodes that end, so that now and then no update is due where one was expected."""
    one, two = Learner(), Learner()
    two.begins = most
    plain, ahead = replay_feed(one, ratio=4.0), replay_feed(two, ratio=4.0)
    for turn in range(40):
        rows = rollout(2, 4, ends=(turn % 3,))
        next(ahead.items())
        step(plain, rows)
        step(ahead, rows)
        assert ahead.updates == plain.updates
    assert plain.updates > 20
    assert not one.begun
    assert len(two.begun) > 20
    learnt = [item["id"].tolist() for item in two.items]
    assert [ids for ids in learnt if ids in two.begun] == two.begun[: len(two.begun) - ahead.begun]
    assert (len(two.begun) > 50) == (most > 1), "with 3 all but those that no game's end can delay"


def test_a_sample_drawn_ahead_is_saved(tmp_path):
    one, two = Learner(), Learner()
    one.begins = two.begins = 3
    made = replay_feed(one, ratio=4.0)
    for _ in range(3):
        step(made, rollout(2, 4))
    next(made.items())
    drawn = one.begun[-made.begun :]
    assert len(drawn) == len(made.ahead) == 2
    made.write(checkpoint.CheckpointPart(tmp_path, 7))
    again = replay_feed(two, ratio=4.0, resume=checkpoint.complete(tmp_path, 7, {}))
    assert two.begun == drawn, "the other threads begin with them at once"
    assert again.updates == made.updates
    for who in (made, again):
        step(who, rollout(2, 4))
    assert [item["id"].tolist() for item in two.items[:2]] == drawn
    assert [item["id"].tolist() for item in one.items[-len(two.items) :]] == [x["id"].tolist() for x in two.items]


def test_priorities_go_back_to_whom_they_belong():
    learner = Learner()
    made = replay_feed(learner, sampler=Proportional(alpha=1.0, beta=1.0), ratio=4.0)
    for _ in range(3):
        step(made, rollout(4, 4))
    assert made.buffer.metrics()["priority_max"] == 8.0
    assert made.buffer.metrics()["late"] == 0


@pytest.mark.parametrize(("left", "beta"), [(1.0, 0.4), (0.5, 0.7), (0.0, 1.0)])
def test_beta_moves_to_its_last_value_over_the_run(left, beta):
    made = replay_feed(Learner(left), sampler=Proportional(alpha=0.5, beta=0.4, beta_end=1.0))
    run(made.learn((rollout(30, 4), {})))
    run(made.learn(()))
    assert made.buffer.metrics()["beta"] == pytest.approx(beta)
    constant = replay_feed(Learner(left), sampler=Proportional(alpha=0.5, beta=0.4))
    run(constant.learn((rollout(30, 4), {})))
    run(constant.learn(()))
    assert constant.buffer.metrics()["beta"] == 0.4


def test_who_takes_a_lost_ones_place_draws_others():
    drawn = []
    for incarnation in (0, 1, 1000):
        learner = Learner()
        made = replay_feed(learner, incarnation=incarnation)
        for _ in range(8):
            step(made, rollout(4, 4))
        drawn.append([item["id"].tolist() for item in learner.items])
    assert len(drawn[0]) == len(drawn[1]) > 3
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2], "a life that begins with a resumed run has the seed it had"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda rollouts: Replayed(rollouts, rollouts), "Replayed: Rollouts given, allowed: Inline"),
        (lambda rollouts: Inline(rollouts, 5, rollouts, episodes=True), "Inline: explore given with episodes=True"),
    ],
)
def test_sources_that_do_not_go_together_are_refused(make, says):
    with pytest.raises(UserError, match=says):
        make(Rollouts(SimpleNamespace(consumers=1, per_agent=False), 2))
