"""What the scripts of simulated actors, stale gradients and exploration compute, without running them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import senders
import staleness

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters

SPEC = senders.spec_of(Field((4, 3, 3), "uint8"))


def played(n: int, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Stacks [n, 4, 3, 3] of planes that are all different, after each of `starts` zeros; and which rows are first."""
    first, stacks = np.isin(np.arange(n), starts), np.zeros((n, 4, 3, 3), np.uint8)
    for t in range(n):
        if t and not first[t]:
            stacks[t, :-1] = stacks[t - 1, 1:]
        stacks[t, -1] = t + 1
    return stacks, first


def recorded(n: int = 40, lanes: int = 2) -> senders.Recording:
    obs, first = played(n, [0, 17])
    planes, newest = senders.planes_of(obs, first)
    rest = {k: np.zeros((lanes, n), f.dtype) for k, f in SPEC.items() if k not in ("obs", "version")}
    rest["first"][:], rest["action"][:] = first, np.arange(n)
    return senders.Recording(np.concatenate([planes] * lanes), np.stack([newest, newest + len(planes)]), rest)


def test_planes_are_kept_once_and_give_the_stacks_again():
    obs, first = played(40, [0, 17])
    made = recorded()
    assert len(made.arrays["planes"]) == 2 * (40 + 2 * 3)
    for at in (0, 10, 29):
        rows = tree.zeros(SPEC, (11, 1))
        made.copy(1, at, rows)
        assert np.array_equal(rows["obs"][:, 0], obs[at : at + 11])
        assert rows["action"][:, 0].tolist() == list(range(at, at + 11))
        assert np.array_equal(rows["first"][:, 0], first[at : at + 11])


def test_a_recording_is_the_same_from_its_file(tmp_path):
    made = recorded()
    made.save(tmp_path / "new" / "it.npz")
    again = senders.Recording.load(tmp_path / "new" / "it.npz")
    assert again.names == made.names
    assert all(np.array_equal(again.arrays[k], made.arrays[k]) for k in made.names)


def fleet(loss: float = 0.0, delay: float = 0.0) -> Any:
    """One simulated actor of 4 rows a second, in rollouts of 8, its stream, and what it is called with."""
    queue = RolloutQueue(SPEC, {}, 8, 1, 2, 1)
    queue.patience = 0.0
    seen = senders.Seen(1, 2, 1)
    pace = Hyperparameters(rate=4.0, actors=1.0, loss=loss, delay=delay, jitter=0.0)
    actor = senders.Simulated(0, queue.producer(0), recorded(), seen, np.random.default_rng(0))
    actor.begin(100.0, 2.0)
    return SimpleNamespace(queue=queue, seen=seen, pace=pace, actor=actor, history=senders.History())


def test_what_actors_send_is_what_a_memory_takes_whatever_gets_lost():
    f = fleet(loss=0.3)
    kept = {k: v for k, v in SPEC.items() if k != "agent"}
    memory = Replay(kept, 1, 500, 4, stack=4, n_step=3, sampler=Proportional(first="td")).open(0)
    rollouts = senders.Timed(f.queue.batches(1), f.seen).consumer(0, lambda slots: None, wait=False)
    for _ in range(60):
        f.actor.turn(f.actor.due, f.pace, f.history, 0)
        taken = next(rollouts)
        if taken is not None:
            memory.add({k: taken[0][k][:-1] for k in kept}, slice(0, 1))
    next(rollouts)
    sent, lost = f.seen.rollouts[0, [senders.SENT, senders.LOST]].tolist()
    assert sent + lost == 60
    assert 8 <= lost <= 30
    assert f.seen.ages.sum() == sent
    assert memory.metrics()["steps"] <= 8 * sent
    assert memory.index.size > 4 * sent
    item = memory.sample()
    whole = item["obs"][0, :, :, 0, 0].astype(int)
    assert ((np.diff(whole, axis=1) == 1) | (whole[:, :-1] == 0)).all(), "planes that follow each other"


def test_an_actor_without_a_slot_waits_and_one_far_behind_gives_up_what_it_missed():
    f = fleet()
    begun = f.actor.due
    f.actor.turn(begun, f.pace, f.history, 0)
    assert f.actor.due == pytest.approx(begun + 2.0)
    f.actor.turn(begun + 2.0, f.pace, f.history, 0)
    for now in (begun + 4.0, begun + 4.01):
        f.actor.turn(now, f.pace, f.history, 0)
    assert f.seen.rollouts[0].tolist()[:4] == [0, 2, 1, 0]
    taken, before = f.queue.batches(1).consumer(0), f.actor.made
    assert all(next(taken) is not None for _ in range(2)), "the first one's slot is free again"
    f.actor.turn(before + 9.0, f.pace, f.history, 0)
    assert f.actor.made == pytest.approx(before + 9.0 + 2.0 - senders.SLACK), "what it waited for is not made up"
    late = fleet()
    late.actor.turn(late.actor.due + 5.0, late.pace, late.history, 0)
    assert late.actor.made == pytest.approx(late.seen.made[0] + 2.0 + 5.0 - senders.SLACK)
    assert late.seen.rollouts[0, senders.LATE] == 1


class Bound:
    """A learner's end that only notes what is pushed."""

    def __init__(self, vector: Any):
        self.vector, self.pushed = vector, list[tuple[float, int]]()
        self.versions, self.met, self.server = np.array([0]), -1, SimpleNamespace(version=5)

    def __call__(self, rate: float, sums: Any) -> Any:
        self.pushed.append((float(self.vector.grad[0]), int(self.versions[0])))
        return 1.0, sums
        yield


def test_a_late_learner_pushes_old_gradients_with_the_versions_they_were_made_with():
    import torch

    vector: Any = SimpleNamespace(grad=torch.zeros(3))
    bound = Bound(vector)
    late = staleness._Late(bound, vector, 2)
    for k in range(5):
        vector.grad.fill_(float(k))
        bound.versions[:] = 10 + k
        for _ in late(0.1, np.zeros(3)):
            pass
        assert bound.versions[0] == 10 + k
    assert bound.pushed == [(0.0, 10), (1.0, 11), (2.0, 12)]
    assert late.met == 5
