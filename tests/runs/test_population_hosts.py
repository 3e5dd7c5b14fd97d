"""Members of a population on other machines: a Ray cluster of two raylets on this one, started once for this file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.files import JsonLines, read_object, write_json
from polyplay.population.store import DONE, Store, read_lineage
from polyplay.runs.directory import is_ours, read_config
from polyplay.runs.remote_members import PIECE, SWEEP, DirectoryChanges, put_piece, take_pieces
from tests.population.fake_members import save
from tests.population.test_killed import is_whole, known
from tests.verbs import refused
from tests.workers.hosts.runs import raylets, wait_for

TOY = "--over a2c --env toy:catch --network mlp --lanes 4 --unroll 5 --replicas 1 --seed 1 --trace --no-tensorboard "
TOY += "--vary learning_rate=log:1e-4:1e-2 --population 3 --report-every 0.2 --checkpoint-every 0.2 "
SHORT = TOY + "--every 400 --steps 800"
LONG = TOY + "--every 40k --steps 80M"
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    """What --hosts takes."""
    with raylets(2) as found:
        yield found


def start(run: Path, words: str) -> subprocess.Popen[str]:
    given = [sys.executable, "-m", "polyplay", *words.split()]
    environment = os.environ | {"POLYPLAY_TEST": str(run)}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(given, env=environment, text=True, **pipes)


def finished(run: Path, words: str, status: int = 0) -> str:
    process = start(run, words)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == status, said
    return said


def actors() -> set[int]:
    """Processes of Ray's that run sessions of members."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::MemberActor"):
                found.add(int(path.parent.name))
    return found


def below(pids: set[int]) -> set[int]:
    """These and all that they started."""
    found, parents = set(pids), {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def folders() -> set[str]:
    """Where actors work."""
    return {name for name in os.listdir("/tmp") if name.startswith("polyplay-member-")}


def learnt(run: Path) -> bool:
    """Whether a member has a checkpoint of an update, and lines."""
    return any(checkpoint.update_of(p) > 0 for p in run.glob("members/*/checkpoints/[0-9]*")) and any(
        p.stat().st_size for p in run.glob("members/*/metrics.jsonl")
    )


def states(run: Path) -> list[str]:
    return [m["state"] for m in Store(run).read()["members"]]


def test_members_learn_elsewhere(hosts, tmp_path):
    run, before = tmp_path / "run", folders()
    said = finished(run, f"train pbt {SHORT} --run {run} --hosts {hosts} --at-once 2")
    assert "members run on local-1 (2 cores), local-2 (2 cores)" in " ".join(said.split())
    is_whole(run)
    config = read_object(run / "members/01/config.json")
    assert (config["options"]["hosts"], config["options"]["run"]) == (None, str(run / "members/01"))
    assert len(config["resumed"]) == 1
    assert not list(run.glob("members/*/.coming-*"))
    assert len(read_lineage(run)) == 3 + 3
    wait_for(lambda: not folders() - before, 5.0)


@pytest.mark.long
def test_a_population_goes_on_here_and_elsewhere_again(hosts, tmp_path):
    run = tmp_path / "run"
    finished(run, f"train pbt {SHORT} --run {run} --hosts {hosts} --at-once 2")
    finished(run, f"resume {run} --hosts none --steps 1200")
    is_whole(run)
    finished(run, f"resume {run} --hosts {hosts} --steps 1600")
    is_whole(run)
    assert len(read_object(run / "members/01/config.json")["resumed"]) == 3


@pytest.mark.long
def test_one_after_the_other_they_become_the_same_to_the_bit(hosts, tmp_path):
    for name, where in (("here", "none"), ("there", hosts)):
        words = f"{SHORT} --run {tmp_path / name} --at-once 1 --compile off"
        finished(tmp_path / name, f"train pbt {words} --hosts {where}")
    assert known(tmp_path / "there") == known(tmp_path / "here")


@pytest.mark.long
def test_a_killed_actor_costs_little_and_a_signal_ends_all_with_checkpoints(hosts, tmp_path):
    run, before = tmp_path / "run", folders()
    process = start(run, f"train pbt {LONG} --run {run} --hosts {hosts} --at-once 2")
    wait_for(lambda: len(actors()) == 2 and learnt(run))
    killed = max(actors())
    crew = below({killed})
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in crew), 5.0)
    wait_for(lambda: len(actors() - {killed}) == 2)
    wait_for(lambda: states(run).count("training") == 2 and max(m["falls"] for m in Store(run).read()["members"]) == 1)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert time.monotonic() - begun < 10.0
    assert process.returncode == 128 + signal.SIGINT, said
    assert "no crew on local-" in said
    assert "it is tried again" in said
    for m in Store(run).read()["members"]:
        for found in checkpoint.everything(Store(run).member(m["member"]))[-1:]:
            assert checkpoint.resume_flaw(found) is None
            assert checkpoint.steps_of(found) == m["steps"]
    wait_for(lambda: not actors() and not folders() - before, 5.0)


@pytest.mark.long
def test_a_killed_actor_changes_nothing_in_the_end(hosts, tmp_path):
    run = tmp_path / "run"
    process = start(run, f"train pbt {TOY} --every 20k --steps 60k --run {run} --hosts {hosts} --at-once 2")
    wait_for(lambda: actors() and learnt(run))
    os.kill(max(actors()), signal.SIGKILL)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert states(run) == [DONE] * 3
    is_whole(run)


@pytest.mark.long
def test_nothing_is_left_of_a_population_whose_main_process_is_killed(hosts, tmp_path):
    run, before = tmp_path / "run", folders()
    process = start(run, f"train pbt {LONG} --run {run} --hosts {hosts}")
    wait_for(lambda: len(actors()) == 3 and learnt(run))
    left = below(actors())
    assert len(left) > 4
    process.kill()
    process.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), 10.0)
    wait_for(lambda: not folders() - before, 5.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hosts local:2 --place act=here", "--place: act=here given, but members of a population run where cores"),
        ("--hosts local:2 --serial", "--hosts local:2: workers must be processes; remove --se"),
        ("--ship .", "--ship .: needs other machines; add --hosts"),
    ],
)
def test_what_cannot_work_is_one_line(words, said, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capfd, *f"train pbt {SHORT} {words}".split())
    assert list(tmp_path.iterdir()) == []


def test_the_figure_says_where_members_run(capsys):
    assert main.main(f"systems pbt --diagram {SHORT} --hosts local:2".split()) == 0
    assert "runs    members on local-1 (" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------- pieces


def carry(changes: DirectoryChanges, there: Path) -> int:
    n, pieces = 0, changes.pieces()
    while batch := take_pieces(pieces):
        for piece in batch:
            put_piece(there, piece)
        n += len(batch)
    return n


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_what_changes_in_a_directory_is_the_same_elsewhere(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    changes = DirectoryChanges(here)
    write_json(here / "config.json", {"a": 1})
    lines = JsonLines(here / "metrics.jsonl")
    lines.write({"updates": 1})
    carry(changes, there)
    assert [*files(there)] == ["config.json"], "lines of updates without a checkpoint"
    save(here, 1, np.arange(2 * PIECE // 4 + 5), 10)
    (here / ".lock").touch()
    (here / "empty").touch()
    carry(changes, there)
    carry(changes, there)
    assert files(there) == {name: data for name, data in files(here).items() if name != ".lock"}
    assert carry(changes, there) == 0
    lines.write({"updates": 2})
    assert carry(changes, there) == 1
    lines.close()
    (here / "metrics.jsonl").write_bytes(b'{"updates": 9}\n' * 9)
    carry(changes, there)
    save(here, 1, [3.0], 10)  # the same update once more, by another count
    checkpoint.prune(here, 1)
    shutil.rmtree(here / ".none", ignore_errors=True)
    carry(changes, there)
    assert files(there) == {name: data for name, data in files(here).items() if name != ".lock"}


def test_a_checkpoint_that_came_damaged_is_none(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    save(here, 1, [1.0], 10)
    pieces = [*DirectoryChanges(here).pieces()]
    *parts, last = [(name, at, data[:-1] if "policy" in name else data, final) for name, at, data, final in pieces]
    for piece in parts:
        put_piece(there, piece)
    with pytest.raises(OSError, match="arrived damaged"):
        put_piece(there, last)
    assert checkpoint.everything(there) == []


def test_the_folder_of_a_process_is_removed_after_it_however_it_ends(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    sweeper = subprocess.Popen(["sh", "-c", SWEEP, str(folder)], stdin=subprocess.PIPE)
    assert sweeper.stdin is not None
    time.sleep(0.5)
    sweeper.send_signal(signal.SIGTERM)
    sweeper.stdin.close()
    sweeper.wait(5.0)
    assert not folder.exists()


@pytest.mark.long
def test_modules_are_taken_along(hosts, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/mygame.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'mine'}{os.pathsep}{Path(main.__file__).parents[2]}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # with another key than the machines have
    run = tmp_path / "run"
    words = f"{SHORT.replace('toy:catch', 'mygame:make')} --run {run} --hosts {hosts} --at-once 2"
    finished(run, f"train pbt {words} --ship {tmp_path / 'mine'}")
    is_whole(run)
    config = read_config(run / "members/00")
    assert is_ours(config)
    assert config["options"]["ship"] is None
