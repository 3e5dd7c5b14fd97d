from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyplay.cli import doctor, main
from polyplay.core.errors import Finding
from tests.verbs import refused

ROOT = Path(__file__).parents[2]


def test_the_command_tells_all_is_well():
    """The whole command once, with its training."""
    done = subprocess.run(
        [sys.executable, "-m", "polyplay", "doctor", "--json"], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is True
    lines = {f["name"]: f for f in told["lines"]}
    assert {"polyplay", "packages", "platform", "cpu", "memory", "open files", "torch", "gpu"} <= set(lines)
    assert {f["level"] for f in told["lines"]} <= {"ok", "warning"}
    assert lines["training"]["level"] == "ok", lines["training"]
    for secret in (str(ROOT), str(Path.home()) + "/", os.uname().nodename):
        assert secret not in done.stdout


def test_what_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def odd() -> Iterator[Finding]:
        yield Finding("first", "ok", "fine")
        raise OSError(f"no\nspace in {Path.home()}/x")

    monkeypatch.setattr(doctor, "CHECKS", (odd,))
    assert main.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("polyplay doctor: odd failed\n")
    assert "OSError: no space in ~/x" in out
    assert "fix: report it" in out


def test_packages_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[<>=\[]", line)[0] for line in lines}

    assert names(project["dependencies"]) == set(doctor.NEEDED)
    assert set(doctor.EXTRAS) <= names(project["optional-dependencies"]["dev"])


def test_a_lost_package_fails_and_a_lost_extra_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.this_machine, "version", lambda name: None if name in ("rich", "av") else "1.0")
    _, packages = doctor.versions()
    assert (packages.level, packages.fix) == ("failed", "pip install rich")
    assert "av" not in packages.seen
    monkeypatch.setattr(doctor.this_machine, "version", lambda name: None)
    (atari,) = doctor.atari()
    assert (atari.level, "extra atari" in atari.fix) == ("warning", True)


def test_limits_that_bite_are_warnings(monkeypatch: pytest.MonkeyPatch):
    def found(check: Callable[[], Iterator[Finding]], name: str) -> Finding:
        return next(f for f in check() if f.name == name)

    for soft, hard, fix in ((256, 4096, "ulimit -n 4096"), (20_000, 20_000, ""), (-1, -1, "")):  # -1: without a limit
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=(soft, hard): pair)
        assert found(doctor.limits, "open files").fix == fix
    given = {"cpu.max": "max 100000"}
    monkeypatch.setattr(doctor, "cpu_limit", lambda: given["cpu.max"])
    monkeypatch.setattr(doctor, "memory_limit", lambda: 536870912)
    monkeypatch.setattr(doctor.this_machine, "cores", lambda: 2)
    memory = found(doctor.machine, "memory")
    assert memory.level == "warning"
    assert "the container's limit is 0.5 GB" in memory.seen
    assert found(doctor.machine, "cpu").level == "ok"
    given["cpu.max"] = "150000 100000"
    assert "for 1.5 cores' time" in found(doctor.machine, "cpu").seen


def test_other_machines_are_asked_for_their_versions_and_links(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", ())
    assert main.main(["doctor", "--hosts", "local:1", "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)["lines"]
    assert (line["name"], line["level"]) == ("local-1", "ok")
    link = r"[\d.]+: \d+ cores, [\d.]+ GB, \d GPUs; round trip [\d.]+ ms"
    assert re.fullmatch(link, line["seen"])
    theirs = {"versions": {"python": "3.9"}, "cores": 4, "memory": 2**33, "gpus": 2, "round_trip": 1}
    monkeypatch.setattr(doctor, "measure_machine", lambda engine, info: theirs)
    assert main.main(["doctor", "--hosts", "local:1", "--json"]) == 1
    [line] = json.loads(capsys.readouterr().out)["lines"]
    assert line["level"] == "failed"
    assert re.search(r"local-1 \([\d.]+\) has python 3\.9 there and ", line["seen"])


def test_wrong_hosts_are_one_line(capsys):
    assert "--hosts two: must be none, ray" in refused(capsys, "doctor", "--hosts", "two")
