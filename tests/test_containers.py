"""Dockerfile and compose.yaml: the user, what may be written, ports, versions, and that all they name exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRITABLE = ("/tmp", "/polyplay/runs")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    """Return (name, words) of each instruction of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", "")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [words for found, words in instructions() if found == name][-1]


def test_the_image_runs_the_command_as_a_user_who_is_not_root():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    (command,) = json.loads(last("ENTRYPOINT"))
    assert command in PROJECT["scripts"]
    assert [name for name, _ in instructions()][-4:] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"], "nothing runs as root"


def test_what_is_written_goes_to_places_that_can_be_written():
    places = dict(word.split("=", 1) for word in last("ENV").split())
    assert set(places) == {"HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"}
    assert all(place.startswith(WRITABLE) for place in places.values())
    assert WRITABLE[1].startswith(last("WORKDIR")), "runs/ of the working folder"


def test_bases_have_versions_and_only_what_is_needed_is_copied():
    args = dict(words.split("=", 1) for name, words in instructions() if name == "ARG")
    assert args["TORCH_INDEX"] == '""'
    assert set(args["EXTRAS"].split(",")) <= set(PROJECT["optional-dependencies"])
    for base in (words.split()[0] for name, words in instructions() if name == "FROM"):
        assert re.fullmatch(r"python:3\.\d+-slim", base.replace("${PYTHON}", args["PYTHON"]))
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {name for names in copied for name in names} == sent
    assert all((ROOT / name).exists() for name in sent)


def test_the_image_installs_the_packages_that_the_project_needs(tmp_path: Path):
    """The Dockerfile's own line, run here; {needs.txt} is what it writes."""
    (code,) = re.findall(r'python -c "(.*?)" >', last_run_of_the_wheel())
    for extras in ("atari,ray", ""):
        done = subprocess.run([sys.executable, "-c", code.replace("$EXTRAS", extras)], cwd=ROOT, capture_output=True)
        found = done.stdout.decode().split("\n")[:-1]
        assert found == [*PROJECT["dependencies"], *(["ale-py>=0.12", "ray>=2.54"] if extras else [])]


def last_run_of_the_wheel() -> str:
    return next(words for name, words in instructions() if name == "RUN" and "pip wheel" in words)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_machine_of_the_cluster_is_closed(name: str):
    machine = COMPOSE["services"][name]
    assert machine["read_only"]
    assert machine["cap_drop"] == ["ALL"]
    assert "ports" not in machine, "only the other machines reach it"
    assert re.fullmatch(r"polyplay:(?!latest)\w+", machine["image"])
    writable = [place.split(":")[0] for place in machine["tmpfs"]]
    writable += [place.split(":")[1] for place in machine.get("volumes", [])]
    assert sorted(writable) == sorted(WRITABLE)
    assert machine["environment"]["RAY_AUTH_MODE"] == "token"
    assert machine["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?"), "without a token nothing starts"


def test_ray_takes_the_commands_of_a_head_and_two_workers():
    click, scripts = pytest.importorskip("click"), pytest.importorskip("ray.scripts.scripts")
    head, worker = COMPOSE["services"]["head"], COMPOSE["services"]["worker"]
    assert worker["deploy"] == {"replicas": 2}
    started = [scripts.start.make_context("start", m["entrypoint"][2:]).params for m in (head, worker)]
    assert [words["head"] for words in started] == [True, False]
    assert all(words["block"] for words in started), "the container ends when Ray does"
    assert started[1]["address"] == f"head:{started[0]['port']}"
    with pytest.raises(click.exceptions.NoSuchOption):
        scripts.start.make_context("start", ["--no-such-option"])
