"""Replicas on several machines, pretended ones: what they learn, to the bit, and what ends them."""

from __future__ import annotations

import json
import os
import signal

import pytest

import polyplay
from polyplay.core.errors import UserError
from tests.workers.hosts.runs import command, events, learning, processes_of, updates, wait_for

TOY = {"env": "toy:catch", "network": "mlp", "replicas": 2, "quiet": True, "trace": True, "tensorboard": False}
REPLAY = {"start": 500, "capacity": 2000}
SYSTEMS = {
    "a2c": {"steps": 8000},
    "ppo": {"lanes": 8, "steps": 8000},
    "accel": {"steps": 8000},
    "dqn": {**REPLAY, "lanes": 2, "steps": 3000},
    "accel_dqn": {**REPLAY, "capacity": 4000, "steps": 3000},
    "rainbow": {**REPLAY, "lanes": 2, "steps": 3000},
}
SLOW = ("ppo", "accel", "dqn", "accel_dqn", "rainbow")


@pytest.mark.parametrize("system", [pytest.param(s, marks=[pytest.mark.long] * (s in SLOW)) for s in SYSTEMS])
def test_they_learn_the_same_to_the_bit(system, tmp_path):
    polyplay.train(system, **TOY, **SYSTEMS[system], run=str(tmp_path / "here"))
    polyplay.train(system, **TOY, **SYSTEMS[system], hosts="pretend:1", run=str(tmp_path / "there"))
    assert len(updates(tmp_path / "here")) > 5
    assert updates(tmp_path / "there") == updates(tmp_path / "here")
    assert [row["event"] for row in events(tmp_path / "there")] == ["opened"]
    last = max(p for p in (tmp_path / "there/checkpoints").iterdir() if p.name[0] == "0")
    names = {p.name for folder in ("workers", "replay") for p in (last / folder).glob("*")}
    assert {name.partition(".")[0] for name in names} == {"replica-0", "replica-1"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("a2c", {"replicas": 4, "anneal": "constant"}),
        ("ppo", {"anneal": "constant"}),
        ("dqn", {"epsilon_over": 1, "epsilon": 0.1}),
    ],
)
@pytest.mark.parametrize(("first", "then"), [("pretend:2", "none"), ("none", "pretend:2")])
def test_a_run_goes_on_to_the_bit_on_other_machines(tmp_path, system, more, first, then):
    settings = {**TOY, **SYSTEMS[system], **more}
    steps = settings.pop("steps")
    polyplay.train(system, **settings, steps=steps, run=str(tmp_path / "whole"))
    polyplay.train(system, **settings, steps=steps // 2, hosts=first, run=str(tmp_path / "parts"))
    polyplay.resume(str(tmp_path / "parts"), steps=steps, hosts=then)
    assert updates(tmp_path / "parts") == updates(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("victim", ["agent", "replica 1"])
def test_a_lost_replica_ends_the_run_which_can_be_resumed(victim, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPLAY_TEST", str(tmp_path))
    run = tmp_path / "run"
    toy = {"env": "toy:catch", "network": "mlp", "replicas": 2, "steps": "10M"}
    main = command(run, "--hosts", "pretend:1", system="a2c", toy=toy)
    wait_for(lambda: learning(run))
    pid = next(n for n, title in processes_of(tmp_path).items() if title.startswith(f"polyplay: {victim}"))
    os.kill(pid, signal.SIGKILL)
    said = main.communicate(timeout=60)[0].decode()
    assert main.returncode == 1
    how = "is lost with machine pretend-1" if victim == "agent" else "was killed by SIGKILL"
    assert how in said
    assert "worker replica 1" in said
    wait_for(lambda: not processes_of(tmp_path), 5.0)
    steps = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["steps"]
    polyplay.resume(str(run), steps=int(steps) + 20_000, hosts="none")


@pytest.mark.long
def test_learners_of_a_parameter_server_elsewhere_push_and_pull(tmp_path):
    settings = {"env": "toy:catch", "network": "mlp", "learners": 2, "start": 500, "capacity": 5000, "quiet": True}
    run = tmp_path / "run"
    polyplay.train("gorila", **settings, steps=6000, hosts="pretend:1", run=str(run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["updates"] > 3000
    assert max(row["hosts"].get("pretend-1", {}).get("mb_in", 0.0) for row in rows) > 0.1
    polyplay.resume(str(run), steps=8000, hosts="pretend:1")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["steps"] >= 8000


def test_one_replica_alone_has_nothing_to_put_elsewhere(tmp_path):
    with pytest.raises(UserError, match=r"--hosts: .* is alone; take --replicas 2 or more"):
        polyplay.train("a2c", **{**TOY, "replicas": 1}, steps=1000, hosts="pretend:1", run=str(tmp_path / "run"))
