"""Workers: started, watched, replaced, seen off, as processes, as threads, and in turns."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest

from polyplay.acting import act
from polyplay.buffers import RolloutQueue
from polyplay.core import platform
from polyplay.core.errors import EnvFailure, UserError, WorkerLost
from polyplay.core.processes import ForkedProcess, Handle
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.worker import Edge, Hyperparameters, next_incarnation
from polyplay.envs import Envs
from polyplay.learning import Inline, LearnerSpec, Rollouts, VTrace, learn
from polyplay.nets import NetworkFactory
from polyplay.weights import Local, OptimizerSpec, Params
from polyplay.workers import process
from polyplay.workers.crew import Crew
from polyplay.workers.process import SerialWorker
from tests.victims import crew_of, turns, until


def count(ctx, *, block, until):
    cell = block.array(64, "int64")
    while cell[ctx.index] < until:
        cell[ctx.index] += 1
        ctx.counters.add("steps", 1)
        yield


def forever(ctx):
    while True:
        time.sleep(0.005)
        yield


def fails(ctx, *, block):
    yield
    raise ValueError(f"worker {ctx.index} had a bad day")


def predicts(ctx, *, policy):
    yield


def env_fails(ctx, *, block):
    yield
    raise EnvFailure("lane 3 of X raised five times")


def ends(crew: Crew, seconds: float = 100.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if crew.poll(0.05):
            return True
    return False


def seen_off(crew: Crew) -> bool:
    """Stop the crew; none of its workers goes on."""
    runs = [w.runs for w in crew.workers()]
    numbers = [r.pid for r in runs if r.pid is not None]
    crew.stop()
    alive = [r for r in runs if isinstance(r, threading.Thread) and r.is_alive()]
    turns = [r.turns for r in runs if isinstance(r, SerialWorker)]
    open_ = [turn for turn in turns if inspect.getgeneratorstate(turn) != inspect.GEN_CLOSED]
    return bool(runs) and not (alive or open_ or any(psutil.pid_exists(n) for n in numbers))


@pytest.mark.parametrize("how", [{"on": "process"}, {"on": "thread"}, {"serial": True}])
def test_workers_run_to_their_end(how):
    block = SharedBlock(512)
    crew = Crew(**how)
    crew.add(count, n=3, learner=True, block=block, until=10)
    crew.start()
    assert ends(crew)
    assert crew.counters.column("steps").sum() == 30
    crew.stop()
    assert block.array(64, "int64")[:3].tolist() == [10, 10, 10]


def test_in_one_thread_all_meet_within_a_round():
    """A learner that waits for another goes on as soon as that has come: nobody else has a turn in between."""
    came, order = [0, 0], []

    def meets(ctx, source):
        for number in range(1, 4):
            for part in (2 * number - 1, 2 * number):
                came[ctx.index] = part
                while min(came) < part:
                    ctx.hooks.meeting = part
                    yield
                ctx.hooks.meeting = 0
            order.append(f"{number} of {ctx.index}")
            yield

    def looks(ctx):
        while True:
            order.append("look")
            yield

    crew = Crew(serial=True)
    crew.add(looks)
    crew.add(meets, n=2, learner=True, source=Edge())
    crew.start()
    assert ends(crew)
    rounds = [sorted(part.split(",")) for part in ",".join(order).split("look")[1:4]]
    assert rounds == [["", "", f"{i} of 0", f"{i} of 1"] for i in (1, 2, 3)]


@pytest.mark.parametrize("how", [{"on": "process"}, {"on": "thread"}, {"serial": True}])
def test_a_worker_that_raises_is_one_exception_with_its_traceback(how):
    block = SharedBlock(512)
    crew = Crew(**how)
    crew.add(forever)
    crew.add(fails, learner=True, block=block)
    crew.start()
    with pytest.raises(WorkerLost, match=r"worker fails 0 raised .*had a bad day\n(.|\n)*in fails"):
        ends(crew)
    assert seen_off(crew)


@pytest.mark.parametrize("how", [{"on": "process"}, {"on": "thread"}])
def test_an_environment_that_gave_up_is_its_own_exception(how):
    crew = Crew(**how)
    crew.add(env_fails, learner=True, block=SharedBlock(8))
    crew.start()
    with pytest.raises(EnvFailure, match="lane 3 of X"):
        ends(crew)
    crew.stop()


def test_a_killed_worker_fails_the_run_where_it_must():
    crew, pids = crew_of(1)
    os.kill(int(pids[0]), signal.SIGKILL)
    with pytest.raises(WorkerLost, match="worker act 0 was killed by SIGKILL"):
        ends(crew)
    assert seen_off(crew)


def test_only_losses_of_the_last_hour_count_toward_the_limit():
    crew = Crew(serial=True, log=lambda kind, text: None)
    crew.add(count, learner=True, if_lost="replace", block=SharedBlock(512), until=5)
    crew.start()
    seats = crew._seats["count"]
    seats.recent_losses = [time.monotonic() - 3601.0] * 30

    class Gone(Handle):
        def ending(self) -> str:
            return "was killed by SIGKILL"

    def lose() -> None:
        worker = seats.workers[0]
        worker.pipe, worker.runs = SimpleNamespace(closed=True, close=lambda: None), Gone()
        crew._ended(worker)

    for _ in range(20):
        lose()
    assert (crew.lost, len(seats.recent_losses)) == (20, 20)
    with pytest.raises(WorkerLost, match=r"count 0 was killed by SIGKILL \(20 of its role were replaced within an"):
        lose()
    crew.stop()


def test_nobody_who_takes_a_seat_is_taken_for_one_that_was_there_from_the_start():
    """By its incarnation: the thousandth would read a checkpoint that its predecessors went on from long ago."""
    lives = [next_incarnation(None, 2)]
    for _ in range(2_500):
        lives.append(next_incarnation(lives[-1], 2))
    assert lives[:3] == [2_000, 2_001, 2_002]
    assert all(life // 1000 == 2 and life % 1000 and a != life for a, life in pairwise(lives))


def test_a_role_grows_and_shrinks_while_it_runs():
    crew, block = Crew(), SharedBlock(512)
    role, pids = crew.add(turns, block=block), block.array(64, "int64")
    dial = crew.dial(role, 1, 3)
    crew.start()
    dial.set(3)
    until(crew, None, lambda: pids[:3].all())
    dial.set(1)
    until(crew, None, lambda: dial.get() == 1 and not psutil.pid_exists(int(pids[2])))
    assert (psutil.pid_exists(int(pids[0])), crew.lost) == (True, 0)
    assert seen_off(crew)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), r"^--actors: .*Too many open files; use fewer workers"),
        (OSError(28, "full"), r"^starting act 1 of 3 failed: full$"),
    ],
)
def test_a_worker_that_cannot_be_started_is_a_line_that_names_the_option(why, said, monkeypatch):
    """And nobody joins it. That fewer workers cure it is said only where they do."""
    started = []

    def start(self, check):
        if started:
            raise why
        started.append(self)
        self.join = self.kill = self.close = lambda timeout=None: None
        self.is_alive = lambda: False

    monkeypatch.setattr(ForkedProcess, "start", start)
    crew = Crew()
    crew.add(count, 3, name="act", learner=True, block=SharedBlock(512), until=5)
    with pytest.raises(UserError, match=said):
        crew.start()
    crew.stop()


def test_more_workers_than_there_is_room_for_name_the_option():
    crew = Crew()
    crew.add(forever, 4, name="learn")
    with pytest.raises(UserError, match=r"^--actors 3000: must be at most 2044; a run has at most 2048 wor"):
        crew.add(forever, 3000, name="act")
    with pytest.raises(UserError, match=r"^--predictors 2045: must be"):
        crew.add(forever, 2045, name="act", drain=True)


NET = NetworkFactory("mlp", Envs("toy:catch", 1).spec)
SPEC = LearnerSpec(NET, VTrace(), Local(OptimizerSpec("adam")), Hyperparameters(learning_rate=0.1), 1e9)
SOURCE = Inline(Envs("toy:catch", 1), 5)


COUNTS = {"block": 1, "until": 2}


@pytest.mark.parametrize(
    ("work", "holds", "said"),
    [
        (count, {**COUNTS, "untill": 3}, "count: got an unexpected keyword argument 'untill'; allowed: block, until"),
        (count, {"block": 1}, "count: missing a required argument: 'until'; allowed: block, until"),
        (forever, {"envs": 1}, "forever: got an unexpected keyword argument 'envs'; allowed: none"),
        (predicts, {"policy": forever}, "predicts: policy is of type function; must be a PolicyFactory of polyplay"),
        (learn, {"source": [], "spec": SPEC}, "learn: source is of type list; must be a polyplay.learning.Source"),
        (learn, {"source": Edge(), "spec": SPEC}, "learn: source is of type Edge; must be a polyplay.learning.Source"),
        (learn, {"source": SOURCE, "spec": NET}, "learn: spec is of type NetworkFactory; must be a polyplay.learning."),
    ],
)
def test_what_a_role_cannot_hold_is_a_line_that_names_role_argument_and_class(work, holds, said):
    crew = Crew()
    with pytest.raises(UserError, match=f"^{said}") as refused:
        crew.add(work, learner=True, **holds)
    assert "\n" not in str(refused.value)
    assert not crew.roles


def test_a_role_finds_what_it_holds_by_class_and_its_edges_by_argument():
    crew, queue, params = Crew(), RolloutQueue.of(SOURCE.envs, NET(), 5, 1), Params.of(NET)
    acts = crew.add(act, envs=SOURCE.envs, policy=NET, out=queue, params=params)
    learns = crew.add(learn, source=Rollouts(queue, 1), spec=SPEC, publish=params)
    assert acts.edges() == {"out": queue, "params": params}
    assert learns.edges() == {"publish": params, "source": queue, "update": SPEC.update}
    assert (acts.find(Envs), acts.find(LearnerSpec), acts.find(Params)) == (SOURCE.envs, None, params)
    assert (learns.spec, learns.policy, learns.find(RolloutQueue)) == (SPEC, NET, queue)
    with pytest.raises(UserError, match="a role act already exists; choose another name"):
        crew.add(act, envs=SOURCE.envs, policy=NET, out=queue, params=params)


@pytest.mark.skipif(platform.PORTABLE, reason="the portable way has no fork server")
def test_the_death_of_the_fork_server_is_told_as_what_it_is():
    crew = Crew(log=lambda kind, text: None)
    crew.add(count, 2, learner=True, if_lost="replace", block=SharedBlock(512), until=10**9)
    crew.start()
    os.kill(process.SERVER._pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"^the fork server of the workers was killed by SIGKILL, and its workers"):
        ends(crew)
    crew.stop()
