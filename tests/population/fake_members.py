"""Members of a population that learn nothing but arithmetic: runs of a few small files, to the bit the same again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core import checkpoint
from polyplay.core.files import JsonLines, Row, write_json
from polyplay.population.rules import Evolution, parse_prior
from polyplay.population.store import Store, read_lineage
from polyplay.population.trainer import MemberSession, PopulationPlan, trainer
from polyplay.runs.directory import rewind
from polyplay.runs.load import find_checkpoint
from polyplay.runs.population import learnt

EVERY, TOTAL = 40, 120
HALF = EVERY // 2  # agent steps between two checkpoints


RATE = {"rate": parse_prior("rate=log:0.001:1.0", float)}


def plan_of(
    exploit: str = "truncation", explore: str = "perturb", priors: Any = RATE, size: int = 3, seed: int = 3, **more: Any
) -> PopulationPlan:
    return PopulationPlan(
        Evolution(EVERY, exploit, explore, priors), "a2c", size, more.pop("total", TOTAL), "games", seed, **more
    )


def begun(directory: Path, plan: PopulationPlan) -> Store:
    store = Store(directory)
    directory.mkdir(exist_ok=True)
    store.begin(plan.about(), plan.founders())
    return store


def save(run: Path, update: int, weights: Any, steps: int, rate: float = 0.1, **more: Any) -> Path:
    """A checkpoint of a learner and a worker with lanes. more: of the counters."""
    part = checkpoint.CheckpointPart(run, update)
    shutil.rmtree(part.root, ignore_errors=True)
    weights = np.asarray(weights, np.float32)
    part.arrays("agents/0/policy", {"w": weights, "running_mean": weights + 100})
    part.arrays("agents/0/optimizer", {"square_avg": weights + 200})
    part.arrays("agents/0/target", {"w": weights + 300})
    hyper = {"learning_rate": rate}
    learner = {"version": update, "learnt": float(steps), "hyperparameters": hyper, "configured": hyper}
    part.json("agents/0/learner", learner)
    lanes = {
        "groups/0/state/core": np.full(2, 1.0 + steps),
        "groups/0/step/obs": np.full(2, steps),
        "pool/rng": np.ones(1),
    }
    part.arrays("workers/act-0", lanes)
    part.json("workers/act-0", {"first_lane": 0, "lanes": 2, "steps": steps, "episodes": 0, "why": ""})
    part.json("replay/0/replay", {"rows": steps})
    counters = {"steps": steps, "frames": 4 * steps, "updates": update, "episodic_return_mean": None, **more}
    return checkpoint.complete(run, update, counters)


class FakeRun:
    """What a trainer calls. events: by (member, agent steps) what happens once there, which may raise."""

    def __init__(self, store: Store, events: dict[tuple[int, int], Callable[[], Any]] | None = None, games: int = 10):
        self.store, self.events, self.games = store, events or {}, games
        self.said: list[str] = []
        self.control: Any = None
        self.trained: list[tuple[int, int]] = []  # member, and to how many steps

    def __call__(
        self, m: Row, until: int, stopping: Callable[[], str], say: Callable[[str, str], None]
    ) -> MemberSession:
        run = self.store.member(m["member"])
        run.mkdir(exist_ok=True)
        write_json(run / "config.json", m["values"])
        why = ""
        if learnt(run) < until:
            why = self._train(run, m, until, stopping)
        ended: Any = ("stopped" if why == "stopping" else why) or ("done" if until == TOTAL else "ready")
        steps = int(learnt(run))
        rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
        games = tuple(row["episodic_return"] for row in rows if row["steps"] > m["copied"])
        return MemberSession(ended, why or ("done" if ended == "done" else ""), steps, 4 * steps, games[-10:], 1.0)

    def _train(self, run: Path, m: Row, until: int, stopping: Callable[[], str]) -> str:
        weights, steps, update = np.full(3, m["member"], np.float32), 0, 0
        found, counters = find_checkpoint(run, lambda text: None)
        if found is not None:
            learner = json.loads((found / "agents/0/learner.json").read_text())
            weights = checkpoint.read_arrays(found / "agents/0/policy.safetensors")["w"]
            steps, update = int(learner["learnt"]), learner["version"]
        checkpoint.remove_partial(run)
        checkpoint.set_aside(run, found)
        rewind(run, counters, lambda text: None)
        checkpoint.checkpoints_dir(run).mkdir(exist_ok=True)  # as a run has it before its first game
        lines = JsonLines(run / "episodes.jsonl")
        try:
            while steps < until:
                steps, update = steps + HALF, update + 1
                weights = (weights * 0.9 + m["values"]["rate"] * np.sin(steps + np.arange(3))).astype(np.float32)
                for k in range(self.games):
                    game = {"wall_seconds": 0.0, "frames": 4 * steps, "steps": steps, "lane": 0, "episodic_length": 9}
                    lines.write({**game, "episodic_return": float(weights.sum()) + k % 2})
                save(run, update, weights, steps, m["values"]["rate"])
                checkpoint.prune(run, 2)
                self.trained.append((m["member"], steps))
                if (event := self.events.pop((m["member"], steps), None)) is not None and (why := event()):
                    return str(why)
                if stopping() and steps < until:
                    return "stopping"
        finally:
            lines.close()
        return ""


WRITE = os.write


class Killed(BaseException):
    """The process is gone."""


class Kill:
    """Ends the process at the n-th change of a file from now on; nothing is changed after that."""

    NAMES = "replace", "rename", "write", "link", "truncate", "ftruncate", "unlink", "rmdir", "mkdir"

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.kills = 0
        self.never()
        monkeypatch.setattr(os, "fsync", lambda fd: None)
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._deadly(getattr(os, name)))

    def _deadly(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.changes += 1
            if self.dead or self.changes >= self.last:
                if not self.dead and real is WRITE:
                    real(args[0], args[1][: len(args[1]) // 2])  # a torn line
                self.kills += not self.dead
                self.dead = True
                raise Killed
            return real(*args, **kwargs)

        return call

    def at(self, n: int) -> None:
        self.changes, self.last, self.dead = 0, n, False

    def never(self) -> None:
        self.at(10**9)


def train(store: Store, plan: PopulationPlan, run: Any, said: list[str] | None = None, turns: int = 1000) -> None:
    """Trainer 0, as in --serial, for so many turns. run: what it calls, which gets its control; said: its messages."""
    control = SimpleNamespace(finishing=False, halted=False)
    said = getattr(run, "said", []) if said is None else said
    ctx: Any = SimpleNamespace(directory=store.directory, control=control, serial=True, n=1, index=0)
    ctx.log = lambda kind, text: said.append(text)
    run.control = control
    for turn, _ in enumerate(trainer(ctx, out=None, plan=plan, run=run), 1):  # type: ignore[arg-type]
        if turn == turns:
            return


CLOCKS = ("at", "wall_seconds", "clock")


def known(store: Store) -> Row:
    """All that a population has become, without clocks."""
    rows = [{k: v for k, v in row.items() if k not in CLOCKS} for row in read_lineage(store.directory)]
    population = {k: v for k, v in store.read().items() if k not in CLOCKS}
    members = [{k: v for k, v in m.items() if k not in CLOCKS} for m in population.pop("members")]
    files = {}
    for m in members:
        run = store.member(m["member"])
        last = checkpoint.everything(run)[-1]
        files[m["member"]] = last.name, checkpoint.manifest(last), (run / "episodes.jsonl").read_text()
    return {"population": population, "members": members, "lineage": rows, "files": files}
