"""Which runs resume to the bit: every system in one thread, its workers and batches, cut at random and resumed.

Each cell is a run that goes through, and the same run that is asked to stop at a random turn of a random worker, is
resumed, saves at another, is stopped again at a third and resumed to its end. Both have written the loss of every
update, and a last checkpoint. `exact`: all losses are equal to the bit, and so is every array of the checkpoint:
weights, optimizer, target network, replays, environments, recurrent state, rollouts in flight. Beside it stands what
the run's own plan says (`resume`). Nothing is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import RESULTS, Row, about, at_once, command_line, lines_about, publish, table
from digests import ADAM, less

import polyplay
from polyplay import systems
from polyplay.core import checkpoint, worker
from polyplay.core.files import read_lines, read_object
from polyplay.core.worker import RunControl, WorkerContext
from polyplay.runs import plan
from polyplay.runs.load import crew_of, steps_learnt
from polyplay.runs.options import RunOptions

QUIET: dict[str, Any] = {"serial": True, "trace": True, "seed": 3, "tensorboard": False, "report_every": 60.0}
ACTED: dict[str, Any] = {**ADAM, "env": "toy:catch", "unroll": 4}
DRAWN: dict[str, Any] = {
    **ACTED,
    "batch": 16,
    "ratio": 4.0,
    "capacity": 400,
    "learning_starts": 120,
    "target_update": 20,
}
ACTORS: dict[str, Any] = {**ACTED, "lanes": 2, "steps": 600}
SEQUENCES: dict[str, Any] = {**less(DRAWN, "optimizer"), "env": "toy:memory", "sequence": 4, "burn_in": 2, "n_step": 2}
SEQUENCES |= {"core_size": 16, "ratio": 2.0, "lanes": 2, "steps": 700}
AHEAD: dict[str, Any] = {**DRAWN, "lanes": 2, "steps": 500}
PENDULUM: dict[str, Any] = {**less(AHEAD, "network", "optimizer", "optimizer_eps"), "env": "Pendulum-v1", "width": 16}


EPISODE_CUT = 5  # checkpoints of members after which a population is stopped
POPULATION = """train pbt --over a2c --env toy:catch --network mlp --hidden 16 --lanes 4 --replicas 1 --steps 4000
    --every 400 --population 2 --serial --trace --anneal constant --vary learning_rate=log:1e-4:1e-2 --no-tensorboard"""


@dataclass(frozen=True)
class Cell:
    system: str
    settings: dict[str, Any]
    workers: str  # how many of what
    batch: str  # what an update takes

    @property
    def name(self) -> str:
        return f"{self.system}, {self.workers}, {self.batch}"


def plural(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n > 1)}"


def fit(batch: int, lanes: int, actors: int) -> str:
    return f"{batch} trajectories, {'one rollout of each' if batch == lanes * actors else 'not one rollout of each'}"


def in_queues() -> Iterator[Cell]:
    """Actors that run ahead of their learners."""
    clipped = {**less(ACTORS, "optimizer"), "epochs": 2, "minibatches": 2}
    for n in (1, 2, 3):
        actors = plural(n, "actor")
        for batch in (2, 4, 6, 8)[: 2 * n]:  # there are slots for
            given, said = {"actors": n, "batch": batch}, fit(batch, 2, n)
            yield Cell("impala", ACTORS | given, actors, said)
            if batch > 2:  # whole trajectories in a minibatch
                yield Cell("appo", clipped | given, actors, said)
        for lag in (0, 1):
            given, said = {"actors": n, "batch": 2 * n, "lag": lag}, f"{2 * n} trajectories, --lag {lag}"
            yield Cell("impala", ACTORS | given, actors, said)
        for batch in (4, 7):
            yield Cell("r2d2", SEQUENCES | {"actors": n, "batch": batch}, actors, f"{batch} sequences")
    memory = {**ACTORS, "env": "toy:memory", "core": "gru", "actors": 3, "batch": 8, "slots": 3}
    yield Cell("impala", memory, "3 actors", "8 trajectories, a GRU, 3 slots")
    yield Cell("impala", ACTORS | {"actors": 2, "batch": 2, "slots": 1}, "2 actors", "2 trajectories, 1 slot")
    given = {"actors": 4, "batch": 24, "learners": 2, "slots": 6, "steps": 1_200}
    yield Cell("impala", ACTORS | given, "4 actors, 2 learners", "24 trajectories, 6 slots")
    for n, learners, batch in ((2, 2, 4), (2, 2, 8), (3, 2, 8), (3, 3, 12), (4, 2, 4), (4, 2, 8), (4, 2, 12)):
        given, workers = {"actors": n, "batch": batch, "learners": learners}, f"{n} actors, {learners} learners"
        yield Cell("impala", ACTORS | given, workers, fit(batch, 2, n))


def in_step() -> Iterator[Cell]:
    """Replicas that act and learn in turn, and wait for each other."""
    for n in (1, 2, 3):
        given, replicas = {"replicas": n, "lanes": 12, "steps": 1_200}, plural(n, "replica")
        drawn = {**DRAWN, **given, "batch": 18, "capacity": 600, "learning_starts": 120, "steps": 600}
        yield Cell("a2c", ACTED | given, replicas, "12 lanes")
        yield Cell("a2c", {**ACTED, **given, "env": "toy:memory", "core": "lstm", "core_size": 16}, replicas, "an LSTM")
        passes = {"epochs": 2, "minibatches": 2}
        yield Cell("ppo", {**less(ACTED, "optimizer"), **given, **passes}, replicas, "12 lanes, 2 minibatches")
        yield Cell("accel", {**ACTED, **given, "groups": 2}, replicas, "12 lanes, 2 groups")
        yield Cell("accel", {**ACTED, **given, "sync": "chunked", "groups": 2}, replicas, "--sync chunked")
        yield Cell("dqn", drawn | {"alpha": 0.6, "n_step": 3}, replicas, "18 draws, by priority")
        yield Cell("rainbow", {**less(drawn, "optimizer"), "v_max": 2.0}, replicas, "18 draws")
        if n == 1:
            continuous = {**less(PENDULUM, "width", "target_update"), "network": "mlp(16,16)"}
            yield Cell("sac", continuous, "1 replica", "16 draws")
            yield Cell("td3", continuous, "1 replica", "16 draws, the actor in every second update")
        again = {**less(drawn, "optimizer"), "groups": 2}
        yield Cell("accel_dqn", again, replicas, "18 draws")
        yield Cell("accel_dqn", again | {"sync": "chunked"}, replicas, "--sync chunked")


def asynchronous() -> Iterator[Cell]:
    """Workers that change shared weights without waiting, and replays that are workers."""
    for n in (1, 2, 3):
        yield Cell("a3c", {**ACTED, "workers": n, "steps": 600}, plural(n, "worker"), "4 steps")
        agents = {**ACTED, "agents": 4 * n, "predictors": n, "trainers": n, "schedule": "off", "steps": 600}
        for rows in (0, 16):
            said = f"at least {rows} transitions" if rows else "one chunk"
            workers = f"{4 * n} agents, {plural(n, 'predictor')}, {plural(n, 'trainer')}"
            yield Cell("ga3c", agents | {"min_batch": rows}, workers, said)
        for memories in sorted({1, n}):
            workers = f"{plural(n, 'actor')}, {plural(memories, 'replay')}"
            given = {"actors": n, "replay_workers": memories, "capacity": 1200, "learning_starts": 120}
            yield Cell("apex", AHEAD | given | {"prefetch": 2}, workers, "16 draws")
            yield Cell("apex_dpg", PENDULUM | given | {"prefetch": 2}, workers, "16 draws")
            if memories == n < 3:
                soft = {**less(PENDULUM, "width", "target_update"), "network": "mlp(16,16)", "prefetch": 2}
                yield Cell("apex_sac", soft | given, workers, "16 draws")
            yield Cell("gorila", AHEAD | given | {"learners": 2, "shards": 2}, f"{workers}, 2 learners", "16 draws")
        bundles = less(AHEAD, "lanes") | {"learners": n, "shards": 2, "steps": 700 * n}
        yield Cell("gorila", bundles, plural(n, "bundle"), "16 draws")


def by_search() -> Iterator[Cell]:
    """Games with itself by a search, and what is learned from them."""
    game = {"env": "game:tic_tac_toe", "blocks": 1, "filters": 8, "games": 4, "simulations": 8, "leaves": 1}
    game |= {
        "resign": "off",
        "gate": 0.0,
        "drops": (),
        "batch": 32,
        "ratio": 4.0,
        "capacity": 600,
        "learning_starts": 100,
    }
    for n, learners in ((1, 1), (2, 1), (1, 2), (2, 2)):
        given = {"players": n, "learners": learners, "steps": 500}
        yield Cell(
            "alphago_zero", game | given, f"{plural(n, 'player')}, {plural(learners, 'learner')}", "32 positions"
        )


def at_tables() -> Iterator[Cell]:
    """Agents that play each other."""
    seats = {**less(ACTED, "optimizer", "optimizer_eps", "learning_rate"), "lanes": 16, "batch": 8, "steps": 1_600}
    for n in (1, 2):
        league = seats | {"env": "toy:rps", "agents": 2, "actors": n, "learning_rate": 3e-3}
        yield Cell("league", league, f"{plural(n, 'actor')}, 2 agents", "8 trajectories")
    past = {"opponents": "past:0.5", "snapshot_every": 5, "games_per_matchup": 20}
    yield Cell("league", league | past, "2 actors, 2 agents", "8 trajectories, past agents")
    copying = {"agents": 3, "exploit_every": 20, "games_per_matchup": 10}
    yield Cell("league", league | copying, "2 actors, 3 agents", "8 trajectories, agents copy each other")
    waiting = {"env": "toy:skirmish", "agents": 3, "games_per_matchup": 5, "lag": 0, "core": "gru"}
    yield Cell("league", league | waiting, "2 actors, 3 agents", "8 trajectories, --lag 0, a GRU")
    teams = {"env": "toy:skirmish", "core_size": 16}
    ftw = seats | teams | {"event_rewards": ("kill=1", "death=-0.5"), "memory": 0, "optimizer": "adam", "unroll": 8}
    ftw |= {"agents": 2, "players": 2, "evolve": False, "ranges": ("period=3",)}
    for tasks in ("none", "reward"):
        yield Cell("ftw", ftw | {"auxiliary": tasks}, "1 actor, 2 agents", f"8 trajectories, auxiliary tasks: {tasks}")
    evolving = {
        "agents": 3,
        "evolve": True,
        "exploit_every": 10,
        "games_per_matchup": 10,
        "auxiliary": "reward",
        "steps": 2_800,
    }
    yield Cell("ftw", ftw | evolving, "1 actor, 3 agents", "8 trajectories, agents evolve")
    five = less(seats, "batch") | teams | {"learners": 1, "window": 4, "unroll": 8, "batch": 8, "capacity": 32}
    five |= {
        "team_spirit": 0.0,
        "publish": 1,
        "rate_every": 0,
        "inputs": "raw",
        "learning_rate": 3e-3,
        "snapshot_every": 5,
    }
    for who in ("latest", "past:0.5"):
        yield Cell("five", five | {"opponents": who}, "1 actor, 1 learner", f"8 windows, against {who}")
    several = {"opponents": "past:0.5", "games_per_matchup": 5, "learners": 2, "publish": 3, "staleness": 1}
    yield Cell("five", five | several, "2 actors, 2 learners", "8 windows, published every 3 updates")


def cells() -> list[Cell]:
    return [*in_queues(), *in_step(), *asynchronous(), *by_search(), *at_tables()]


# ------------------------------------------------------------------------------------------------- one cell


@contextlib.contextmanager
def at_turns(**when: int) -> Iterator[Callable[[], int]]:
    """Within it, runs are asked to `save` or `finish` at that turn of their workers, and wait for rollouts however slow
    they are; gives the turns so far.
    """
    turns, plain = 0, WorkerContext.turn

    def turn(ctx: WorkerContext) -> None:
        nonlocal turns
        turns += 1
        for what, at in when.items():
            if turns == at:
                getattr(RunControl, what)(ctx.control)
        plain(ctx)

    with mock.patch.object(WorkerContext, "turn", turn), mock.patch.object(worker, "ENDING", 60.0):
        yield lambda: turns


def cut_and_whole(cell: Cell, directory: Path, seed: int = 0) -> tuple[polyplay.Run, polyplay.Run, list[int]]:
    """The run with two cuts, the one that went through, and the updates of the cuts."""
    settings, dice = QUIET | cell.settings, random.Random(f"{cell.name} {seed}")
    with at_turns() as turns:
        whole = polyplay.train(cell.system, run=str(directory / "whole"), **settings)
    at = sorted(int(turns() * dice.uniform(0.02, 0.9)) for _ in range(2))
    with at_turns(finish=at[0]):
        run = polyplay.train(cell.system, run=str(directory / "cut"), **settings)
    cuts = [updates_at(newest(run))]
    with at_turns(save=int((at[1] - at[0]) * dice.random()) + 1, finish=at[1] - at[0] + 2):
        if steps_learnt(newest(run)) < settings["steps"]:  # a run at its end is not resumed: it would learn on
            run = polyplay.resume(run.directory)
            cuts.append(updates_at(newest(run)))
    if steps_learnt(newest(run)) < settings["steps"]:
        run = polyplay.resume(run.directory)
    return run, whole, cuts


def updates_at(path: Path) -> int:
    """Updates that a checkpoint has behind it, those of all agents together."""
    return int(checkpoint.manifest(path)["counters"]["updates"])


def newest(run: polyplay.Run) -> Path:
    return checkpoint.newest(run.directory, print)


def differs(run: polyplay.Run, whole: polyplay.Run) -> str:
    """Where two runs differ first; empty: nowhere."""
    for path in sorted(whole.directory.glob("updates*.jsonl")):  # of each agent
        losses = [list(read_lines(p)) for p in (run.directory / path.name, path)]
        assert len(losses[1]) >= 10, f"{len(losses[1])} updates say nothing"
        for one, other in zip(*losses, strict=False):
            if one != other:
                return f"from update {other['update']} on"
        if len(losses[0]) != len(losses[1]):
            return f"{len(losses[0])} updates, not {len(losses[1])}"
    return saved_differs(newest(run), newest(whole))


def saved_differs(one: Path, other: Path) -> str:
    """The first file in which two checkpoints differ, but for counters of this run's part."""
    names = [sorted(str(f.relative_to(p)) for f in p.rglob("*") if f.is_file()) for p in (one, other)]
    if names[0] != names[1]:
        return f"the checkpoint's files: {set(names[0]) ^ set(names[1])}"
    for name in names[0]:
        counters = name == checkpoint.MANIFEST or (name.startswith("workers/") and name.endswith(".json"))
        if counters and "stream-" not in name:
            continue
        if name.endswith(".safetensors"):
            arrays = [checkpoint.OpenCheckpoint(p).arrays(name.removesuffix(".safetensors")) for p in (one, other)]
            same = arrays[0].keys() == arrays[1].keys() and all(
                np.array_equal(v, arrays[1][k], equal_nan=v.dtype.kind == "f") for k, v in arrays[0].items()
            )
        elif name.endswith(".json"):
            same = timeless(one / name) == timeless(other / name)
        else:
            same = (one / name).read_bytes() == (other / name).read_bytes()
        if not same:
            return f"the last checkpoint's {name}"
    return ""


def timeless(path: Path) -> Any:
    """What a JSON file says, but for when agents copied each other."""
    return json.loads(path.read_text("utf-8"), object_hook=lambda row: {k: v for k, v in row.items() if k != "at"})


def documented(cell: Cell) -> bool:
    """Whether the run's plan says that it resumes to the bit."""
    page = systems.load(cell.system)
    names = page.Config.__dataclass_fields__
    crew = crew_of(RunOptions(serial=True, steps=cell.settings["steps"]))
    page.build(page.Config(**{k: v for k, v in cell.settings.items() if k in names}), crew)
    return plan.resumes_exactly(crew)


def measure(cell: Cell) -> Row:
    torch.set_num_threads(1)
    said = documented(cell)
    with tempfile.TemporaryDirectory() as directory, open(Path(directory) / "printed", "w") as printed:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            run, whole, cuts = cut_and_whole(cell, Path(directory))
        wrong, updates = differs(run, whole), updates_at(newest(whole))
    return {
        "system": cell.system,
        "workers": cell.workers,
        "batch": cell.batch,
        "updates": updates,
        "cut at": ", ".join(map(str, cuts)),
        "documented": "exact" if said else "not exact",
        "resumed": f"other {wrong}" if wrong else "exact",
        "verdict": "WRONG" if said and wrong else "as documented" if said or wrong else "exact by chance",
    }


def measure_population(words: str) -> Row:
    """A population of two members whose one trainer is stopped by a signal, and resumed. In one thread it is
    documented to be as exact as the system it trains.
    """
    with tempfile.TemporaryDirectory() as directory:
        whole, cut = (Path(directory) / name for name in ("whole", "cut"))
        command, quiet = [sys.executable, "-m", "polyplay"], {"capture_output": True, "check": False}
        subprocess.run([*command, *words.split(), "--run", str(whole)], **quiet)
        run = subprocess.Popen([*command, *words.split(), "--run", str(cut)], stdout=DEVNULL, stderr=DEVNULL)
        while run.poll() is None and not len([*cut.glob("members/*/checkpoints/[0-9]*")]) >= EPISODE_CUT:
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        run.wait()
        at = [sum(1 for _ in read_lines(path)) for path in sorted(cut.glob("members/*/updates.jsonl"))]
        subprocess.run([*command, "resume", str(cut)], **quiet)
        runs = [[polyplay.Run(path) for path in sorted(d.glob("members/[0-9]*"))] for d in (cut, whole)]
        wrong = next((text for one, other in zip(*runs, strict=True) if (text := differs(one, other))), "")
        updates = sum(updates_at(newest(run)) for run in runs[1])
    row = {"system": "pbt", "workers": "2 members, 1 trainer", "batch": "over a2c", "updates": updates}
    row |= {"cut at": ", ".join(map(str, at)), "documented": "exact"}
    return row | {
        "resumed": f"other {wrong}" if wrong else "exact",
        "verdict": "WRONG" if wrong else "as documented",
    }


def page(where: Row, rows: list[Row], before: Sequence[str] = ()) -> list[str]:
    """before: systems whose rows an earlier call measured."""
    said = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in sorted({r["verdict"] for r in rows})}
    return [
        "# What resumes to the bit",
        "",
        *lines_about(where),
        "",
        *table(rows),
        "",
        *([f"The rows of {', '.join(before)} are of an earlier call, at another commit.", ""] if before else []),
        f"{len(rows)} runs in one thread (`--serial`): {', '.join(f'{n} {verdict}' for verdict, n in said.items())}.",
        "Each was cut at two random turns and resumed. *cut at*: the updates whose checkpoints it went on from.",
        "*documented*: what the run's plan says. *exact*: the losses of all updates and every array of the last",
        "checkpoint, replays, environments and rollouts in flight included, are those of the run that went through.",
    ]


def main() -> int:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", help="systems; rows of others stay as they are", default=systems.names())
    parser.add_argument("--processes", type=int, default=2, help="runs at once")
    parser.add_argument("--out", type=Path, default=RESULTS / "exactness")
    asked = parser.parse_args()
    where, wanted = about(), [cell for cell in cells() if cell.system in asked.only]
    rows = list[Row]()
    for row in at_once(measure, wanted, asked.processes):
        rows.append(row)
        print(f"exactness: {len(rows)} of {len(wanted)}: {' | '.join(map(str, row.values()))}", flush=True)
    if "pbt" in asked.only:
        rows.append(measure_population(POPULATION))
    order = [(cell.system, cell.workers, cell.batch) for cell in wanted]
    order += [("pbt", "2 members, 1 trainer", "over a2c")]
    rows.sort(key=lambda row: order.index((row["system"], row["workers"], row["batch"])))
    file = asked.out.with_suffix(".json")
    kept = [row for row in read_object(file)["rows"] if row["system"] not in asked.only] if file.exists() else []
    before = list(dict.fromkeys(row["system"] for row in kept))
    publish(asked.out, {**where, "rows": kept + rows}, page(where, kept + rows, before))
    return int(any(row["verdict"] == "WRONG" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
