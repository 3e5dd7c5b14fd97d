"""Populations whose processes are killed, and whose disk is full: each goes on, and no member or decision is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyplay.core import checkpoint
from polyplay.core.files import Row
from polyplay.population.store import DONE, Store, ancestry, read_lineage
from polyplay.runs.load import weights_digest
from tests.population.fake_members import CLOCKS
from tests.reports import rows

OPTIONS: dict[str, Any] = {"over": "a2c", "env": "toy:catch", "network": "mlp", "lanes": 4, "unroll": 5, "replicas": 1}
OPTIONS |= {"tensorboard": False, "quiet": True, "seed": 1, "checkpoint_every": 0.1, "report_every": 0.2, "trace": True}
OPTIONS |= {"population": 3, "every": 400, "steps": 1200, "vary": ["learning_rate=log:1e-4:1e-2"]}
SERIAL = {**OPTIONS, "serial": True, "at_once": 1, "population": 2, "every": 240, "steps": 720}
PATIENCE = 240.0  # seconds for anything to happen


def begin(run: Path, options: dict[str, Any], tick: int = 0, number: int = signal.SIGKILL) -> subprocess.Popen[str]:
    given = [f"{name}={json.dumps(value)}" for name, value in options.items()]
    command = [sys.executable, "-m", "tests.population.harmed", str(run), str(tick), str(int(number)), *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def known(run: Path) -> Row:
    """What a population has become, without clocks."""
    store = Store(run)
    population = {k: v for k, v in store.read().items() if k not in CLOCKS}
    members = [{k: v for k, v in m.items() if k not in CLOCKS} for m in population.pop("members")]
    newest = [checkpoint.everything(store.member(m["member"]))[-1] for m in members]
    return {
        "population": population,
        "members": members,
        "lineage": [{k: v for k, v in row.items() if k not in CLOCKS} for row in read_lineage(run)],
        "weights": [(found.name, weights_digest(found)) for found in newest],
        "updates": [rows(store.member(m["member"]) / "updates.jsonl") for m in members],
    }


def is_whole(run: Path, members: int = 3) -> None:
    """What holds of every population that has come to its end."""
    store, lineage = Store(run), read_lineage(run)
    population = store.read()
    assert [m["state"] for m in population["members"]] == [DONE] * members
    assert [row["decision"] for row in lineage] == list(range(population["decisions"]))
    for m in population["members"]:
        directory, own = store.member(m["member"]), [row for row in lineage if row["member"] == m["member"]]
        assert own[-1]["new"] == m["values"] == {k: config_of(directory)[k] for k in m["values"]}
        assert m["turns"] == sum("its run failed" not in row["why"] for row in own) - 1
        line = ancestry(lineage, m["member"])
        assert line[0].begin == 0
        assert all(part.end >= part.begin for part in line)
        found = checkpoint.everything(directory)[-1]
        assert checkpoint.resume_flaw(found) is None
        assert checkpoint.manifest(found)["counters"]["steps"] == m["steps"] >= population["total"]
        assert not checkpoint.partials(directory)
        for name in ("metrics", "episodes"):
            steps = [row["steps"] for row in rows(directory / f"{name}.jsonl")]
            assert steps == sorted(steps), name
        updates = [row["update"] for row in rows(directory / "updates.jsonl")]
        assert updates == sorted(set(updates))


def config_of(directory: Path) -> Row:
    found: Row = json.loads((directory / "config.json").read_text())["config"]
    return found


CUTS = [(3, signal.SIGTERM), (3, signal.SIGKILL), (1, signal.SIGTERM), (3, signal.SIGKILL)]


@pytest.mark.long
def test_in_turns_it_becomes_the_same_to_the_bit_wherever_it_is_cut(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert end(begin(whole, SERIAL))[0] == 0
    is_whole(whole, 2)
    assert any(row["donor"] is not None for row in read_lineage(whole)), "nothing is copied: this shows nothing"
    for tick, number in CUTS:
        status, said = end(begin(cut, SERIAL, tick, number))
        assert status == (-number if number == signal.SIGKILL else 128 + number), said
    status, said = end(begin(cut, SERIAL))
    assert status == 0, said
    is_whole(cut, 2)
    assert known(cut) == known(whole)
