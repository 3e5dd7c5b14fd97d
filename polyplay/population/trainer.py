"""Trainer: a worker that trains one member of a population after another. After each session, it decides on a copy.

    trainer ──► members/03: a session of an ordinary run ──► its score ──► copy another or not ──► the next member

Each trainer takes the member with the fewest agent steps, without waiting for other trainers. The trainers share only
the population's files (population.store).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from polyplay.core import checkpoint, platform
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import Row, refusal_text
from polyplay.core.machine import take_share
from polyplay.core.worker import Arrow, Edge, WorkerContext
from polyplay.population.rules import Evolution, Population, Standing, Values, combinations, evolve
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, Store, line_of, wall_seconds

# A copy is a checkpoint of one member (the receiver) with the agent of another (the donor).
#
# Weights, optimizer state, target network and running statistics come from the donor. The receiver keeps its counters,
# its place in schedules, its replay and its lanes (running environments), whose recurrent states restart at 0. A copy
# counts as one update, so its name differs from those of existing checkpoints. Files are hard-linked if possible, so
# that no data is copied, and the donor may remove its checkpoint. If a checkpoint is damaged, the previous one is used.


AGENTS = "agents/"
LEARNER = re.compile(r"agents/\d+/learner\.json")
LANES = re.compile(r"workers/(?!stream-).+\.safetensors")
RECURRENT = re.compile(r"(groups/\d+/)?state/")
TRIES = 5  # attempts to read a donor's newest checkpoint, which the donor may remove during an attempt


PreparedCopy = tuple[str, int]  # a prepared copy: its name after `complete_copy`, and the donor's agent steps


def prepare_copy(member: Path, donor: Path, name: str, lanes: bool = True) -> PreparedCopy:
    """Write a checkpoint of the run `member` with the agent of the run `donor`, as `checkpoints/.partial-NAME`.

    `lanes`: whether the member's running environments continue. If false, they restart.
    Raises OSError, or UserError if a run has no complete checkpoint.
    """
    part = checkpoint.checkpoints_dir(member) / f".partial-{name}"
    own = checkpoint.newest(member, _silent, checkpoint.resume_flaw)
    checkpoint.set_aside(member, own)  # so that the copy becomes the newest, and the copy's name is free
    for _ in range(TRIES - 1):
        with contextlib.suppress(FileNotFoundError, UserError):
            return _compose(part, own, checkpoint.newest(donor, _silent, agent_flaw), lanes)
    return _compose(part, own, checkpoint.newest(donor, _silent, agent_flaw), lanes)


def complete_copy(member: Path, name: str, final: str) -> bool:
    """Make a prepared copy the newest checkpoint, unless it already is. Return whether the copy is complete."""
    place = checkpoint.checkpoints_dir(member)
    if not (place / final).exists():
        with contextlib.suppress(FileNotFoundError):
            platform.replace(place / f".partial-{name}", place / final)
    return agent_flaw(place / final) is None


def agent_flaw(path: Path) -> str | None:
    """Return an error in the agents' files of a checkpoint, or None. A resume checks the other files."""
    return checkpoint.flaw(path, AGENTS)


def _compose(part: Path, own: Path, given: Path, lanes: bool) -> PreparedCopy:
    shutil.rmtree(part, ignore_errors=True)
    mine, theirs = checkpoint.manifest(own), checkpoint.manifest(given)
    version, files = mine["update"] + 1, dict[str, Row]()
    if not theirs["update"]:
        raise UserError(f"RUN: {given.parents[1]} has made no updates yet; let it run longer")
    sources = {n: own for n in mine["files"] if not n.startswith(AGENTS) or LEARNER.fullmatch(n)}
    sources |= {n: given for n in theirs["files"] if n.startswith(AGENTS) and n not in sources}
    if not lanes:
        sources = {n: place for n, place in sources.items() if not n.startswith("workers/")}
    for name, place in sources.items():
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if LEARNER.fullmatch(name):
            checkpoint.write_json(target, _counted(json.loads((place / name).read_text("utf-8")), version))
            files[name] = checkpoint.describe_file(target)
        elif LANES.fullmatch(name) and (anew := _without_state(place / name)):
            checkpoint.write_arrays(target, anew)
            files[name] = checkpoint.describe_file(target)
        else:
            _link(place / name, target)
            files[name] = (mine if place is own else theirs)["files"][name]
    contents = {"schema": checkpoint.SCHEMA, "update": version, "files": files}
    counters = {**mine["counters"], "updates": version, "episodic_return_mean": None}
    checkpoint.write_json(part / checkpoint.MANIFEST, {**contents, "counters": counters})
    return checkpoint.directory_name(version, counters), theirs["counters"]["steps"]


def _counted(learner: Row, version: int) -> Row:
    """Return a learner's counts after one more update."""
    shards = {"shards": [own + 1 for own in learner["shards"]]} if "shards" in learner else {}
    return {**learner, "version": version, **shards}


def _without_state(file: Path) -> dict[str, np.ndarray]:
    """Return a worker's arrays with the recurrent state of its lanes set to 0, or {} if it has no such state."""
    arrays = checkpoint.read_arrays(file)
    found = [k for k in arrays if RECURRENT.match(k)]
    return {**arrays, **{k: np.zeros_like(arrays[k]) for k in found}} if found else {}


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, which is safe because files never change. If the file system has no links, copy the file."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _silent(text: str) -> None:
    """Ignore a message about a skipped checkpoint. The run that owns the checkpoint reports it when it resumes."""


GAMES = 10  # fewest games of a score (Jaderberg et al. 2017, section 4.1)
DRAWS = 10  # attempts of a failed member to find a donor with a complete checkpoint


@dataclass(frozen=True)
class PopulationPlan:
    """The settings of a population of runs. total: number of agent steps that each member trains."""

    evolution: Evolution
    over: str
    size: int
    total: int
    score: str
    seed: int = 0
    grid: bool = False  # whether the first members are all combinations of listed values
    anew: frozenset[str] = frozenset()  # varied options whose change restarts the environments
    machines: str = ""  # other machines, on which members run

    def describe(self) -> list[str]:
        """Return the lines that describe the population in its diagram."""
        evolution = self.evolution
        return [
            f"members {self.size} of {self.over}",
            *(f"vary    {name} {prior.label()}" for name, prior in evolution.priors.items()),
            f"ready   every {evolution.every:,} agent steps of a member",
            f"decides for its member: exploit {evolution.exploit}, explore {evolution.explore}",
            *(f"runs    members on {machines}" for machines in [self.machines] if machines),
        ]

    def founders(self) -> list[Values]:
        """Return each member's initial hyperparameters: all combinations of a grid, or draws from the priors."""
        priors = self.evolution.priors
        if self.grid:
            return combinations({name: prior.choices for name, prior in priors.items()})
        rngs = [np.random.default_rng([self.seed, i]) for i in range(self.size)]
        return [{name: prior.draw(rng) for name, prior in priors.items()} for rng in rngs]

    def about(self) -> Row:
        """Return the settings as plain data for population.json."""
        evolution = self.evolution
        rules = {"exploit": evolution.exploit, "explore": evolution.explore}
        about = {"over": self.over, "every": evolution.every, "total": self.total, **rules, "score": self.score}
        return {**about, "seed": self.seed, "vary": {name: p.label() for name, p in evolution.priors.items()}}

    def until(self, member: Row) -> int:
        """Return the agent step of a member at which the next decision is due."""
        return min(self.total, (member["turns"] + 1) * self.evolution.every)


class MemberRuns(Population):
    """The runs of a population. The caller must hold the population's lock. population: contents of population.json."""

    def __init__(self, store: Store, plan: PopulationPlan, population: Row):
        self.store, self.plan, self.population, self.members = store, plan, population, population["members"]
        self.donor: Row | None = None  # row of the donor of a prepared copy, with the agent steps copied

    def standings(self) -> list[Standing]:
        scores = [-math.inf if m["state"] == FAILED else m["score"] for m in self.members]
        return [Standing(s, tuple(m["games"]), m["values"]) for s, m in zip(scores, self.members, strict=True)]

    def copy(self, receiver: int, donor: int, values: Values) -> None:
        """Prepare a copy, and note it in the receiver's row. Raises OSError, or UserError without a checkpoint."""
        m = self.members[receiver]
        lanes = all(values[name] == m["values"][name] for name in self.plan.anew)  # whether environments continue
        copied = (donor, f"copy-{self.population['decisions']}", lanes)
        final, steps = self.prepare(receiver, *copied)
        self.donor = {**self.members[donor], "steps": steps}
        m |= {"pending": {"copy": copied, "final": final}, "values": values, "copied": m["steps"]}
        m |= {"score": None, "games": [], "state": WAITING, "why": "", "falls": 0}

    def prepare(self, receiver: int, donor: int, name: str, lanes: bool) -> PreparedCopy:
        return prepare_copy(self.store.member(receiver), self.store.member(donor), name, lanes)

    def complete(self, i: int, copy: tuple[int, str, bool], final: str) -> str:
        """Complete the prepared copy of member `i`. If its files are gone, prepare it again. Return an error, or ""."""
        own, (donor, name, _) = self.store.member(i), copy
        try:
            if complete_copy(own, name, final) or complete_copy(own, name, final := self.prepare(i, *copy)[0]):
                return ""
            wrong = agent_flaw(checkpoint.checkpoints_dir(own) / final)
        except UserError as e:
            wrong = str(e)
        return f"its copy of member {donor:02d} is gone: {wrong}"

    def decide(self, i: int) -> None:
        """Decide whether member `i` copies another one, and write the decision. Raises OSError."""
        m, population = self.members[i], self.population
        rng = np.random.default_rng([self.plan.seed, i, m["turns"] + 1, m["falls"]])
        failed, old, score = m["state"] == FAILED, m["values"], m["score"]
        failure = f"{m['why']}; " * failed
        donor, why = evolve(self, i, self.plan.evolution, rng)
        if failed and donor is None:
            m["falls"] += 1
            return
        m |= {"turns": m["turns"] + (not failed), "since": m["steps"]}
        population["wall_seconds"] = wall_seconds(population)
        line = line_of(population, m, old, failure + why, self.donor, None if failed else score)
        self.store.commit(population, line)


def may_train(population: Row, i: int) -> bool:
    """Tell whether member `i` can train further. A failed member needs a member with a score to copy."""
    m = population["members"][i]
    state = m["state"]
    scored = population["exploit"] != "none" and any(m["score"] is not None for m in population["members"])
    return state != DONE and (state != FAILED or (scored and m["falls"] < DRAWS))


def is_over(population: Row) -> bool:
    """Tell whether the population is finished: no member can train further."""
    return not any(may_train(population, i) for i in range(len(population["members"])))


@dataclass
class Members(Edge):
    """The files of the population's members, which all trainers share."""

    n: int
    memory: ClassVar[str] = "members"

    def label(self) -> str:
        return f"members/00 … {self.n - 1:02d}: scores, hyperparameters, checkpoints"

    def arrows(self) -> list[Arrow]:
        """Return the arrow for the diagram. Every trainer writes the files of its member, and reads all files."""
        return [Arrow(self.label(), ("out",), ("out",))]


FALLS = 3  # sessions in a row that a member may lose; with one more lost session, the member has failed
REST = 0.2  # seconds between two searches for a member when all are taken


@dataclass(frozen=True)
class MemberSession:
    """The result of a member's session (one stretch of training).

    `steps`, `frames`: counts at the last checkpoint.
    `games`: returns of the last games since the member's last copy.
    `seconds`: duration of the session.
    """

    ended: Literal["ready", "done", "stopped", "failed", "lost"]  # failed: forever; lost: may be tried again
    why: str = ""
    steps: int = 0
    frames: int = 0
    games: tuple[float, ...] = ()
    seconds: float = 0.0


Say = Callable[[str, str], None]
# run(member's row, agent steps at which to end, function that returns a reason to end early, log) → result
RunMember = Callable[[Row, int, Callable[[], str], Say], MemberSession]


def trainer(ctx: WorkerContext, *, out: Members, plan: PopulationPlan, run: RunMember | None = None) -> Iterator[None]:
    """Train one member of the population after another, until none can train further."""
    assert ctx.directory is not None
    assert run is not None
    store = Store(ctx.directory)
    take_share(ctx.index, ctx.n)
    while not (ctx.control.finishing or is_over(store.read())):
        try:
            trained = _train_next(ctx, store, plan, run)
        except OSError as e:
            raise WorkerLost(f"{e.filename or store.directory}: {refusal_text(e)}") from None
        if not trained:
            time.sleep(REST)
        yield


def _train_next(ctx: WorkerContext, store: Store, plan: PopulationPlan, run: RunMember) -> bool:
    """Train the free member with the fewest agent steps at its last decision. Return False if no member is free."""
    population = store.read()
    for m in sorted(population["members"], key=lambda m: (m["since"], m["member"])):
        with store.claimed(m["member"]) as mine:
            if mine and may_train(store.read(), m["member"]):
                _train(ctx, store, plan, m["member"], run)
                return True
    return False


def _train(ctx: WorkerContext, store: Store, plan: PopulationPlan, i: int, run: RunMember) -> None:
    m = _begin(store, plan, i)
    if m["state"] == FAILED:  # the member found no donor
        time.sleep(REST)
        return
    stopping = "stopped with its population"
    session = run(m, plan.until(m), lambda: stopping * (ctx.control.finishing or ctx.control.halted), ctx.log)
    if session.ended == "ready" and plan.until(m) >= plan.total:
        session = replace(session, ended="done", why=DONE)
    with store.locked() as population:
        runs = MemberRuns(store, plan, population)
        _note(ctx, runs.members[i], session)
        if session.ended in ("ready", "failed"):
            runs.decide(i)
        store.write(population)


def _begin(store: Store, plan: PopulationPlan, i: int) -> Row:
    """Complete the pending copy of member `i`. If the member has failed, look for a donor. Return the member's row."""
    with store.locked() as population:
        runs = MemberRuns(store, plan, population)
        m: Row = runs.members[i]
        if m["state"] == FAILED:
            runs.decide(i)
        wrong = runs.complete(i, **m["pending"]) if m["pending"] else ""
        if wrong:
            m |= {"state": FAILED, "why": wrong, "lost": True}
        m |= {"pending": None, "state": FAILED if m["state"] == FAILED else TRAINING}
        store.write(population)
        return m


def _note(ctx: WorkerContext, m: Row, session: MemberSession) -> None:
    """Update a member's row by the result of its session."""
    m["wall_seconds"] = round(m["wall_seconds"] + session.seconds, 3)
    m |= {"steps": session.steps, "frames": session.frames}
    m |= {"why": session.why, "lost": session.ended == "lost"}
    if session.ended in ("failed", "lost"):
        again = m["lost"] and m["falls"] < FALLS
        m |= {"state": WAITING if again else FAILED, "falls": m["falls"] + 1 if again else 0}
        ctx.log("warning", f"member {m['member']:02d}: {session.why}" + "; it is tried again" * again)
        return
    enough = len(session.games) >= GAMES
    m |= {"games": list(session.games), "score": sum(session.games) / len(session.games) if enough else None}
    m |= {"state": DONE if session.ended == "done" else WAITING, "falls": 0}
    if session.ended == "ready" and not enough:
        few = f"{len(session.games)} of {GAMES} games have ended in the steps between two decisions"
        ctx.log("remark", f"member {m['member']:02d} has no score yet: {few}; a larger --every gives it more")
