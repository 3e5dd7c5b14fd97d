"""Workers killed and stopped at random in real crews and a real run (tests/faults.py): all go on, and none is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from polyplay.buffers.rollout_queue import RolloutQueue, row_spec
from polyplay.cli import main as cli
from polyplay.core import checkpoint, tree
from polyplay.core.tree import Field
from tests.faults import injected
from tests.reports import rows
from tests.runs.test_run import ENDLESS, gone, meanwhile, training, wait_for

MAIN = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from tests.victims import crew_of
crew, pids = crew_of(1)
pid = int(pids[0])
os.kill(pid, signal.SIGSTOP)
print(pid, flush=True)
crew.poll(1000)
"""


@pytest.mark.long
def test_a_stopped_worker_ends_with_the_main_process_too():
    code = MAIN.format(tests=str(Path(__file__).parents[2]))
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    worker = psutil.Process(int(main.stdout.readline()))
    assert wait_for(lambda: worker.status() == psutil.STATUS_STOPPED)
    main.kill()
    main.communicate()
    assert gone([worker])


# ------------------------------------------------------------------------------------------------- a whole run


def recovered(run: Path, what: str) -> int:
    """Faults of a kind that are over."""
    lines = rows(run / "chaos.jsonl")[1:]
    began = {line["event"] for line in lines if line.get("what") == what}
    return sum(line.get("what") == "back" and line["event"] in began for line in lines)


def test_a_run_recovers_and_can_be_resumed(tmp_path):
    run = tmp_path / "run"

    def end() -> None:
        wait_for(lambda: recovered(run, "killed") >= 3 and recovered(run, "hung") >= 1)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(end):
        words = [*ENDLESS, "--trace", "--checkpoint-every", "0.5"]
        with injected("kill=act:0.3,hang=learn:0.3:0.1"):
            assert cli.main(training("impala", run, *words)) == 143
    *lines, report = rows(run / "chaos.jsonl")
    for index in range(2):
        seat = [line for line in lines if (line.get("role"), line.get("index")) == ("act", index)]
        assert [line["what"] for line in seat] == (["killed", "back"] * len(seat))[: len(seat)], (
            "struck before it was back"
        )
        lives = [line["incarnation"] for line in seat if line["what"] == "back"]
        assert lives == list(range(1, len(lives) + 1)), "at the same seat, with other seeds"
    assert report["roles"]["act"]["replaced"] >= 3
    assert report["roles"]["learn"]["hung"] >= 1
    assert report["ended_by"] is None
    assert json.loads((run / "summary.json").read_text())["restarts"] == report["roles"]["act"]["killed"]
    with injected("kill=learn:0.1"):
        assert cli.main(["resume", str(run)]) == 1
    ended = rows(run / "chaos.jsonl")[-1]["ended_by"]
    assert (ended["role"], ended["index"]) == ("learn", 0)
    steps = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"]
    assert cli.main(["resume", str(run), "--steps", str(steps + 2000)]) == 0
    told_ = [r["steps"] for r in rows(run / "metrics.jsonl")]
    assert told_ == sorted(told_)
    updates = [r["update"] for r in rows(run / "updates.jsonl")]
    assert updates == list(range(1, len(updates) + 1)), "what was learnt after a checkpoint is learnt again, once"
    assert not list(run.glob("not-finite*"))


# ----------------------------------------------------------------------------------------- no half-written rows

T, LANES, LIVES = 4, 2, 50


def act(stream: RolloutQueue, life: int, dies: tuple[int, int] | None) -> None:
    """Rollouts whose cells are all the same number; dies: in that one, at that row."""
    end, made = stream.producer(0), 0
    while True:
        if (slot := end.slot()) is None:
            continue
        mark, leaves = 10_000 * life + made, tree.at(end.rows, slot)
        tree.at(end.state, slot)["h"][:] = mark
        for t in range(T + 1):
            if (made, t) == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            for name in ("obs", "reward", "action", "version"):
                leaves[name][t] = mark
        end.commit(slot, life)
        made += 1


def test_of_50_producers_killed_at_random_no_half_written_slot_is_learnt_and_none_is_lost():
    draw, marks, killed = random.Random(3), [-1], 0
    rows = row_spec(Field((500,), "float32"), {"action": Field((), "int64")})
    stream = RolloutQueue(rows, {"h": Field((8,), "float32")}, T, LANES, slots=3)
    stream.patience = 0.01
    source = stream.batches(1).consumer(0)

    def look() -> None:
        """Take a rollout, if there is one."""
        if (batch := next(source)) is not None:
            found, state = batch
            marks.append(int(found["action"][0, 0]))
            assert all((found[k] == marks[-1]).all() for k in ("obs", "reward", "action", "version")), "torn"
            assert (state["h"] == marks[-1]).all()

    for life in range(LIVES):
        dies = (draw.randrange(4), draw.randrange(1, T + 1)) if life % 2 else None  # by itself, or from outside
        worker = multiprocessing.get_context("fork").Process(target=act, args=(stream, life, dies))
        until = len(marks) + 1 + draw.randrange(4)
        worker.start()
        while worker.is_alive() if dies else len(marks) < until:
            look()
        if not dies:
            os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        killed += worker.exitcode == -signal.SIGKILL
    while stream.depth:
        look()
    next(source)  # the last one's slot goes back
    end = stream.producer(0)
    assert (killed, len({end.slot() for _ in range(3)})) == (LIVES, 3), "every slot comes back"
    assert len(marks) > LIVES
    assert marks == sorted(set(marks)), "twice, or out of order"
