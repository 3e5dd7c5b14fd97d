"""Machines whose crews, memories or shards are lost or stopped: their runs go on, or can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.hosts.runs import (
    command,
    crew_of,
    crews,
    events,
    learning,
    metrics,
    one,
    processes,
    raylets,
    wait_for,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]
WAIT = 240.0  # seconds, at most, also on a machine that is busy with other things


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    """A cluster of three machines."""
    with raylets(3) as found:
        yield found


def opened(run: Path, *rows: dict[str, Any]) -> list[tuple[str, str]]:
    found = rows or events(run)
    return [(row["event"], row["machine"]) for row in found if row["event"] in ("opened", "lost")]


@pytest.mark.parametrize(("machines", "number"), [(1, signal.SIGSTOP), (2, signal.SIGKILL)], ids=["silent", "killed"])
def test_actors_go_on_where_they_were(machines, number, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPLAY_TEST", str(tmp_path))
    mark, run = f"POLYPLAY_TEST={tmp_path}", tmp_path / "run"
    main = command(run, "--hosts", f"local:{machines}", "--steps", "100M", "--host-timeout", "2")
    try:
        for lost in (1, 2):
            at = metrics(run)[-1]["updates"] if run.exists() and metrics(run) else 0
            wait_for(lambda at=at: learning(run, at + 20), WAIT)
            for pid in crews(mark):
                os.kill(pid, number)
            for what, times in (("lost", lost), ("opened", 1 + lost)):
                wait_for(lambda of=(what, "local-1"), times=times: opened(run).count(of) == times, WAIT)
        at = metrics(run)[-1]["updates"]
        wait_for(lambda: learning(run, at + 20), WAIT)
        assert [row["retry"] for row in events(run) if opened(run, row) == [("lost", "local-1")]] == [2, 4]
        wait_for(lambda: len(crews(mark)) == machines)
    finally:
        main.terminate()
        said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 143, said
    assert "Traceback" not in said
    assert said.count("machine local-1 has a new crew") == 2
    wait_for(lambda: not processes(mark), 5.0)


TOY = {"env": "toy:catch", "network": "mlp", "actors": 2, "lanes": 4, "unroll": 10, "batch": 16, "learning_starts": 300}

APEX = {**TOY, "replay_workers": 2, "capacity": 4_000}

GORILA = {"env": "toy:catch", "network": "mlp", "learners": 2, "learning_starts": 300, "capacity": 5_000}

FREE = {**GORILA, "actors": 2, "replay_workers": 1}

MEMORIES = ("apex", APEX, "serve_replay=others")

SHARDS = ("gorila", GORILA, "serve_parameters[0]=local-1,serve_parameters[1]=local-2")

BOTH = ("gorila", FREE, "serve_parameters[0]=local-1,serve_replay=local-2")


@pytest.fixture
def begin(hosts, tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a run and waits until it learns. Once it has ended no process of it may be left."""
    mains = list[subprocess.Popen[bytes]]()

    def begin(case: tuple[str, dict[str, Any], str], *words: str) -> subprocess.Popen[bytes]:
        system, toy, place = case
        run, where = tmp_path / "run", ("--hosts", hosts, "--place", place)
        mains.append(command(run, *where, "--steps", "100M", *words, system=system, toy=toy))
        wait_for(lambda: learning(run))
        return mains[-1]

    yield begin
    for main in mains:
        main.kill()
    wait_for(lambda: not processes(), 5.0)


def newest(run: Path) -> Path:
    return max(path for path in (run / "checkpoints").iterdir() if path.name[:1].isdigit())


def resume(run: Path, steps: int, hosts: str, *words: str) -> None:
    """In a process of its own, so that its fork server ends with it."""
    given = ["resume", str(run), "--steps", str(steps), "--hosts", hosts, *words]
    subprocess.run([sys.executable, "-m", "polyplay", *given], check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("victim", "number", "within"),
    [("crew", signal.SIGKILL, 1.0), ("crew", signal.SIGSTOP, 6.0), ("serve_replay", signal.SIGKILL, None)],
)
def test_a_lost_memory_begins_anew_and_learning_goes_on(tmp_path, begin, victim, number, within):
    run = tmp_path / "run"
    main = begin(MEMORIES)
    pid = one("serve_replay")
    os.kill(crew_of(pid) if victim == "crew" else pid, number)
    began = time.time()
    if within is not None:
        lost = wait_for(lambda: [row for row in events(run) if row["event"] == "lost"], within + 1.0)
        assert lost[0]["time"] - began < within
        assert lost[0]["workers"] == 2, "a memory and the actor that writes to it"
    wait_for(lambda: len([row for row in events(run) if row["event"] == "replaced"]) == (1 if within is None else 2))
    made = metrics(run)[-1]["updates"]
    wait_for(lambda: learning(run, made + 300))
    main.send_signal(signal.SIGTERM)
    said = main.communicate(timeout=60)[0].decode()
    assert main.returncode == 143
    assert "worker serve_replay " in said
    assert "a new worker replaces it" in said


@pytest.mark.parametrize("victim", ["crew", "worker"])
def test_a_lost_shard_ends_the_run_which_can_be_resumed(tmp_path, begin, victim):
    run = tmp_path / "run"
    main = begin(SHARDS, "--checkpoint-every", "2")
    wait_for(lambda: learning(run, 100) and max((run / "checkpoints").glob("0*"), default=run).name[-6:] > "000000")
    shard = one("serve_parameters 1")
    os.kill(crew_of(shard) if victim == "crew" else shard, signal.SIGKILL)
    said = main.communicate(timeout=60)[0].decode()
    assert main.returncode == 1, said
    assert "worker serve_parameters " in said
    assert ("is lost with machine local-" if victim == "crew" else "was killed by SIGKILL") in said
    steps = json.loads((newest(run) / "manifest.json").read_text())["counters"]["steps"]
    resume(run, int(steps) + 2_000, "none")


@pytest.mark.parametrize("case", [MEMORIES, SHARDS, BOTH], ids=["memories", "shards", "both"])
def test_sigterm_saves_what_is_elsewhere_and_the_run_goes_on_here_and_there(tmp_path, hosts, begin, case):
    run = tmp_path / "run"
    main = begin(case)
    main.send_signal(signal.SIGTERM)
    main.communicate(timeout=60)
    assert main.returncode == 143
    for where, place in (("none", None), (hosts, case[2])):
        saved = json.loads((newest(run) / "manifest.json").read_text())
        learner = json.loads((newest(run) / "agents/0/learner.json").read_text())
        if case[0] == "apex":
            names = {f"replay/serve_replay-{m}/replay.json" for m in range(2)}
            assert names | {f"workers/act-{i}.json" for i in range(2)} <= set(saved["files"])
        else:
            assert [shard > 0 for shard in learner["shards"]] == [True, True]
        steps = int(saved["counters"]["steps"])
        resume(run, steps + 2_000, where, *(() if place is None else ("--place", place)))
        assert metrics(run)[-1]["steps"] > steps + 1_900  # counts of other machines may be behind what was learnt
        assert metrics(run)[-1]["updates"] > saved["counters"]["updates"]
