"""OpenAI Five amid faults: who is lost is replaced or the run goes on, with experience, versions, knobs, ratings."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay.core import checkpoint, tree
from polyplay.core.errors import WorkerLost
from polyplay.core.files import read_lines, read_object
from polyplay.core.tree import Field
from polyplay.evaluation.agent import load_agent
from polyplay.learning.agents import ExperienceSource
from polyplay.learning.policy_losses import PPO
from polyplay.population.ratings import RATINGS, rate_lines
from tests import leftovers
from tests.systems.test_five import GIVEN, Shared
from tests.systems.test_league import _command, _learners, _lines, _options, _processes, _until, rated


@dataclass(frozen=True)
class Named(Shared):
    """Who sees a row sees whose it is: a number of the match, the seat, and how old the match is."""

    obs = Field((6,), "float32")

    def reset(self, draw: Any, n: int) -> dict[str, np.ndarray]:
        return {**super().reset(draw, n), "name": draw()}

    def see(self, s: dict[str, np.ndarray]) -> np.ndarray:
        seen = super().see(s)
        about = np.broadcast_arrays(s["name"][:, None], np.arange(4.0), s["age"][:, None] / 64)
        return np.concatenate([seen, np.stack(about, 2)], 2).astype(np.float32)


FULL: dict[str, Any] = {**GIVEN, "env": f"toy:{__name__}:Named", "opponents": "past:0.3", "selves": 10, "matches": 10}
STILL = {"learning_rate": 1e-30, "checkpoint_every": 1.0, "report_every": 1.0}  # weights that no update changes


def newest(directory: Path) -> checkpoint.OpenCheckpoint:
    return checkpoint.OpenCheckpoint(checkpoint.everything(directory)[-1])


def update(directory: Path) -> int:
    """Of the newest checkpoint."""
    return checkpoint.update_of(checkpoint.everything(directory)[-1])


def counts(found: checkpoint.OpenCheckpoint, learner: int = 0) -> dict[str, Any]:
    return found.json(f"learners/{learner}/experience_counts")


def whole_windows(directory: Path, found: checkpoint.OpenCheckpoint, learner: int = 0) -> int:
    """Windows of a buffer, made by the weights of now, after a look at each: its rows follow one another in one seat of
    one match, it is there once, and the network says of them what acting said, from the state that is with them.
    """
    arrays = tree.nest(found.arrays(f"learners/{learner}/experience"))
    n = min(counts(found, learner)["arrived"], arrays["rows"]["logp"].shape[1])
    rows, state = tree.map(lambda x: x[:, :n], arrays["rows"]), tree.map(lambda x: x[:n], arrays["state"])
    seen, first = rows["obs"], rows["first"]
    ages = np.diff(seen[..., 5], axis=0)[~first[1:]] * 64
    assert (ages == 1.0).all(), "no row is left out, and none is of another rollout"
    assert (np.diff(seen[..., 3:5], axis=0)[~first[1:]] == 0.0).all(), "nor of another match or seat"
    playing = seen[0][~first[0] | (seen[0, :, 5] == 0.0)]  # others rest until another player sits down
    assert len(np.unique(playing[:, 3:], axis=0)) == len(playing), "no window came twice"
    policy: Any = load_agent(directory, trust=True)._policy
    with torch.no_grad():
        out = policy.unroll(*(tree.map(torch.as_tensor, x) for x in (rows, state)))
    for name in ("logp", "value"):
        np.testing.assert_allclose(out[name].numpy(), rows[name], atol=1e-5, err_msg=name)
    return n


def learnt_once(found: checkpoint.OpenCheckpoint) -> None:
    """The agent steps that a learner alone has learnt from are those that came, where no match began."""
    came = 5 * counts(found)["arrived"]
    learnt = found.json("agents/0/learner")["learnt"] + counts(found)["fresh"]
    assert 0.6 * came <= learnt <= came, "others rest while another player sits down"


def rising(directory: Path) -> None:
    """Versions, steps and ratings of a run that went on, whatever was lost on its way."""
    for name in ("updates", "steps"):
        values = [row[name] for row in read_lines(directory / "metrics.jsonl", name)]
        assert values == sorted(values)
    lines = list(read_lines(directory / RATINGS))
    versions = [version.version for version in rate_lines(lines)]
    assert versions == sorted(set(versions)), "none is rated twice"
    assert max((version.matches for version in rate_lines(lines)), default=0) <= 64


# ------------------------------------------------------------------------------------------------------ in one thread


def test_a_run_that_fails_goes_on_with_its_experience_and_knobs(tmp_path, monkeypatch):
    """At an update of its own; agent steps that came and were not yet counted are counted later, once."""
    directory, spirits, came, score = tmp_path / "run", list[float](), list[int](), PPO.__call__
    add = ExperienceSource._add

    def added(self: ExperienceSource, rows: Any, state: Any) -> None:
        came.append(np.count_nonzero(~rows["first"][1:]))
        add(self, rows, state)
        spirits.append(float(self.learner.policy.rewards.weights[1]))  # type: ignore[attr-defined]

    def fails(self: PPO, *given: Any) -> Any:
        if len(came) == 12:
            raise RuntimeError("a fault")
        return score(self, *given)

    monkeypatch.setattr(ExperienceSource, "_add", added)
    given = {**FULL, "serial": True, "change": ("team_spirit=0.5@0,0.75@1500",)}
    with monkeypatch.context() as faulty:
        faulty.setattr(PPO, "__call__", fails)
        with pytest.raises(WorkerLost, match="a fault"):
            polyplay.train("five", run=str(directory), steps=30_000, **given)
    found = newest(directory)
    assert update(directory) == found.json("agents/0/learner")["version"] > 10
    assert counts(found)["arrived"] == 4 * 16 * 12
    assert counts(found)["fresh"] > 0
    learnt_once(found)
    assert (spirits[0], spirits[-1]) == (0.5, 0.75)
    run = polyplay.resume(directory, steps=4800, trust=True)
    assert spirits[12] == 0.75, "also before the first update"
    assert run.exit_code == 0
    after = newest(directory)
    assert counts(after)["arrived"] == 4 * 16 * len(came)
    assert after.json("agents/0/learner")["learnt"] + counts(after)["fresh"] == sum(came)
    assert after.json("agents/0/learner")["hyperparameters"]["team_spirit"] == 0.75
    rising(directory)


@pytest.mark.long
def test_while_the_disk_is_full_the_checkpoint_before_remains(tmp_path, monkeypatch, capfd):
    """For the experience of the second of two learners."""
    directory, real, refused = tmp_path / "run", os.fsync, list[int]()

    def full(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        there = checkpoint.everything(directory)
        if "learners/1/" in path and there and checkpoint.update_of(there[-1]) and len(refused) < 3:
            refused.append(checkpoint.update_of(there[-1]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.03)
    given = {**FULL, **STILL, "serial": True, "learners": 2, "lanes": 16, "batch": 16, "checkpoint_every": 0.1}
    run = polyplay.train("five", run=str(directory), steps=8000, **given)
    assert run.exit_code == 0
    assert len(refused) == 3
    assert len(set(refused)) == 1
    assert "No space left on device; the disk is full: free some space; the previous checkpoint remains" in "".join(
        capfd.readouterr()
    )
    assert update(directory) == run.summary["updates"] > refused[0]
    for learner in range(2):
        assert whole_windows(directory, newest(directory), learner) == 64


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"lag": 0, "capacity": 512}, id="a buffer of four rounds"),
        pytest.param({"lag": 0, "batch": 48}, id="rounds of no whole number of batches", marks=pytest.mark.long),
        pytest.param({"lag": 1, "capacity": 512, "serial": False}, id="processes", marks=pytest.mark.long),
    ],
)
def test_actors_that_may_not_be_ahead_never_wait_for_ever(given, tmp_path):
    more = {"serial": True, "opponents": "latest", **given}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=4500, **{**FULL, **more})
    assert run.exit_code == 0
    assert run.summary["updates"] > 5


# ------------------------------------------------------------------------------------------------------ kills


def _pids(directory: Path, worker: str) -> list[int]:
    """Of a worker such as `act 0`."""
    return [p.pid for p in _processes(directory.name) if f" {worker} " in f" {' '.join(p.cmdline())}"]


def _runs(run: subprocess.Popen, condition: Callable[[], Any], what: str) -> None:
    """Wait for something that comes while the run goes on."""
    _until(lambda: run.poll() is not None or condition(), what)
    assert run.poll() is None, run.communicate()[0].decode()


def _saved(run: subprocess.Popen, directory: Path) -> None:
    """Wait for a newer checkpoint than there is."""
    before = update(directory) if checkpoint.everything(directory) else 0
    _runs(run, lambda: checkpoint.everything(directory) and update(directory) > before, "no checkpoint")


def _replaced(run: subprocess.Popen, directory: Path) -> None:
    """Kill an actor, the referee and the rater, and see all of it go on each time."""
    for worker in ("act 0", "referee 0", "rater 0"):
        (killed,) = _pids(directory, worker)
        os.kill(killed, signal.SIGKILL)
        _runs(run, lambda w=worker, k=killed: set(_pids(directory, w)) - {k}, f"{worker} is not replaced")
        played, ratings = _lines(directory), len(list(read_lines(directory / RATINGS)))
        _saved(run, directory)
        _runs(run, lambda n=played: _lines(directory) > n, "no matches")
        _runs(run, lambda n=ratings: len(list(read_lines(directory / RATINGS))) > n, "no ratings")


def _ends(run: subprocess.Popen, directory: Path, code: int) -> str:
    out: str = run.communicate(timeout=120)[0].decode()
    assert run.returncode == code, out
    _until(lambda: not _processes(directory.name), "orphans", 60.0)
    return out


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_anywhere_it_goes_on_with_all_that_it_had(tmp_path):
    """Actor, referee and rater; then the optimiser, or the main process; at last SIGTERM."""
    directory, before = tmp_path / "five-run", leftovers.names()
    given = {**FULL, **STILL, "rated": 20, "change": "team_spirit=0.5@0,0.75@5000"}
    run = _command("train", "five", "--run", str(directory), "--steps", "10M", *_options(given))
    try:
        for victim in ("learn", "main"):
            _saved(run, directory)
            _replaced(run, directory)
            _runs(run, lambda: newest(directory).json("agents/0/learner")["learnt"] > 6000, "too slow")
            os.kill(run.pid if victim == "main" else _learners(directory.name)[0], signal.SIGKILL)
            out = _ends(run, directory, -signal.SIGKILL if victim == "main" else 1)
            assert victim == "main" or "the run cannot go on without it" in out
            assert out.count("a new one takes its place") == 3
            found, version = newest(directory), update(directory)
            assert whole_windows(directory, found) == 64
            learnt_once(found)
            had, arrived = rated(directory), counts(found)["arrived"]
            selves = set((directory / "selves").iterdir())
            ratings = [line for line in read_lines(directory / RATINGS) if line["version"] <= version]
            run = _command("resume", str(directory))
            _saved(run, directory)
            now = newest(directory)
            assert update(directory) > version
            assert counts(now)["arrived"] > arrived
            assert now.json("agents/0/learner")["hyperparameters"]["team_spirit"] == 0.75
            assert set((directory / "selves").iterdir()) >= selves
            players = rated(directory)
            gone = {row["name"] for row in read_object(directory / "league.json")["history"]}
            assert all(name in gone or players[name] >= n for name, n in had.items()), "no rating is lost"
            assert list(read_lines(directory / RATINGS))[: len(ratings)] == ratings
        run.send_signal(signal.SIGTERM)
        _ends(run, directory, 128 + signal.SIGTERM)
        assert whole_windows(directory, newest(directory)) == 64
        learnt_once(newest(directory))
        rising(directory)
        assert not leftovers.since(before)
    finally:
        run.kill()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_two_optimisers_the_one_that_lives_saves_its_experience(tmp_path):
    directory, before = tmp_path / "five-of-two", leftovers.names()
    given = {**FULL, **STILL, "learners": 2, "lanes": 16, "batch": 16, "rated": 20}
    run = _command("train", "five", "--run", str(directory), "--steps", "10M", *_options(given))
    try:
        _saved(run, directory)
        _replaced(run, directory)
        for victim in (1, 0):
            for learner in range(2):
                assert whole_windows(directory, newest(directory), learner) == 64
            saved = update(directory)
            (killed,) = _pids(directory, f"learn {victim}")
            os.kill(killed, signal.SIGKILL)
            assert f"worker learn {victim}" in _ends(run, directory, 1)
            version = update(directory)
            assert version >= saved
            assert whole_windows(directory, newest(directory), 1 - victim) == 64
            run = _command("resume", str(directory))
            _saved(run, directory)
            assert update(directory) > version
        run.send_signal(signal.SIGTERM)
        _ends(run, directory, 128 + signal.SIGTERM)
        for learner in range(2):
            assert whole_windows(directory, newest(directory), learner) == 64
        rising(directory)
        assert not leftovers.since(before)
    finally:
        run.kill()
