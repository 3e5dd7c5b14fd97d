"""The part of a checkpoint that acting workers write, so that a resumed run continues as if it had never stopped.

`workers/ROLE-I.safetensors`  all that decides worker I's future, where its pool can save itself, and its rollouts
                              that were still on their way to a learner
`workers/ROLE-I.json`         its counters; where no state was saved why, and the episodes that are lost by it
`workers/stream-C.json`       what learner C had taken of every actor and not given back, whose turn it is with it,
                              and the actors that did not write their part

A learner that saves waits until every actor has finished its rollout and written its part. So the actors' states, the
rollouts in flight and the learner's state belong together, however far acting runs ahead. Where all take turns, actors
stand still while it waits: saving changes no order, and everyone has the same turn next in a resumed run. In a league
all write their parts between two rounds of turns (workers.turns), or its matches under way are lost.
Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from polyplay.buffers.rollout_queue import READING, Producer, RolloutQueue
from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import CheckpointPart, OpenCheckpoint
from polyplay.core.files import refusal_text
from polyplay.core.tree import Batch
from polyplay.core.worker import WorkerContext

LEAGUE = "league/memory"  # of a checkpoint between two rounds of turns: what the workers of a league share
SAVE_TIMEOUT = 10.0  # seconds that actors have to write their parts; then the checkpoint goes without them


def save_actor(ctx: WorkerContext, part: CheckpointPart, actor: Any, flight: Batch, more: Batch | None = None) -> None:
    """Write the part of an acting worker: its state if it is between two rollouts, rollouts in flight, and `more`.
    actor: acting.Actor. Raises OSError.
    """
    state, games, name = actor.save() if actor.between else None, actor.games, f"workers/{ctx.role}-{ctx.index}"
    arrays = {**(state or {}), **({"flight": flight} if flight else {}), **(more or {})}
    if arrays:
        part.arrays(name, dict(tree.leaves(arrays)))
    partial = (games.length > 0) & ~games.over
    report = {
        "first_lane": actor.first_lane,
        "lanes": len(partial),
        **{count: int(ctx.counters.get(count)) for count in ("steps", "episodes")},
        "tasks": ctx.counters.tasks.tolist(),
        "partial": int(partial.sum()),
        "partial_steps": int(games.length[partial].sum()),
        "why": "" if state is not None else _why_unsaved(actor),
    }
    part.json(name, report)


def _why_unsaved(actor: Any) -> str:
    return actor.pool.unsaved or "they cannot be saved" if actor.between else "their rollout was under way"


def answer_save(ctx: WorkerContext, actor: Any, producer: Producer) -> bool:
    """Write this actor's part if a learner waits for it and the actor is between two rollouts; whether one did. Where
    the run ends and the rollout takes too long, the learner hears at once that there will be no part.
    """
    queue, p = producer.queue, producer.p
    version = queue.asked(p)
    if version is None or ctx.directory is None:
        return False
    if not actor.between:
        if late := actor.late():
            queue.answer(p, version, failed=True)
        return late
    try:
        save_actor(ctx, CheckpointPart(ctx.directory, version), actor, producer.flight())
        queue.answer(p, version)
    except OSError as e:
        ctx.log("warning", f"checkpoint of update {version}: without what actor {ctx.index} does: {refusal_text(e)}")
        queue.answer(p, version, failed=True)
    return True


def save_at_table(ctx: WorkerContext, number: int, actor: Any, producer: Producer, table: Batch) -> None:
    """Write this actor's part of a checkpoint between two rounds of turns: also who sits at its table."""
    assert ctx.directory is not None
    try:
        more = {"stream": producer.save(), "table": table}
        save_actor(ctx, CheckpointPart(ctx.directory, number), actor, producer.flight(), more)
    except OSError as e:
        ctx.log("warning", f"checkpoint {number}: without what actor {ctx.index} does: {refusal_text(e)}")


def rest_at_end(ctx: WorkerContext, producer: Producer) -> Iterator[None]:
    """Act no more once this actor's part of the run's last checkpoint is written, so that it has every step made."""
    queue, p = producer.queue, producer.p
    while queue.last(p) and queue.asked(p) is None:
        queue.check()
        time.sleep(min(ctx.patience, 0.005))
        yield


def between_rounds(ctx: WorkerContext) -> OpenCheckpoint | None:
    """The checkpoint of a resumed run, if it was made between two rounds of turns and all take turns again: then every
    worker goes on from where it was.
    """
    if ctx.resume is None or ctx.control.anew or not ctx.serial:
        return None
    found = checkpoint.open_checkpoint(ctx.resume)
    return found if found.has(LEAGUE) else None


def load_actor(ctx: WorkerContext, consumers: int = 0) -> Batch:
    """What this worker saved in the checkpoint of a resumed run; empty if it saved nothing, or is a replacement.

    `consumers`: of its queue, if it has one.
    """
    if ctx.resume is None or ctx.control.anew or ctx.incarnation % 1000:
        return {}
    saved, name = checkpoint.open_checkpoint(ctx.resume), f"workers/{ctx.role}-{ctx.index}"
    if consumers and ctx.index in _queue_end(ctx, ctx.index % consumers).get("lost", [ctx.index]):
        return {}
    return tree.nest(saved.arrays(name)) if saved.has(name) else {}


def rollouts_learnt(ctx: WorkerContext, queue: RolloutQueue) -> list[int]:
    """Rollouts of each producer that were learnt from before the checkpoint of a resumed run."""
    taken = [_queue_end(ctx, c).get("taken", {}) for c in range(queue.consumers)]
    return [taken[p % queue.consumers].get(str(p), 0) for p in range(queue.producers)]


def slots_read(ctx: WorkerContext, queue: RolloutQueue) -> int:
    """Slots of this actor that its learner had not given back at the checkpoint of a resumed run. Only in turns: where
    an actor may come after its learner, nobody would give them back.
    """
    read = _queue_end(ctx, ctx.index % queue.consumers).get("reading", {}) if ctx.serial else {}
    return read.get(str(ctx.index), 0)


def saved_turn(ctx: WorkerContext, queue: RolloutQueue) -> int:
    """RolloutQueue.turns of this learner at the checkpoint of a resumed run."""
    end = _queue_end(ctx, ctx.index)
    return end.get("turn", sum(end.get("taken", {}).values()))


def _queue_end(ctx: WorkerContext, c: int) -> dict[str, Any]:
    """Learner `c`'s end of the queue in the checkpoint of a resumed run; empty if there is none."""
    path = ctx.resume / f"workers/stream-{c}.json" if ctx.resume is not None and not ctx.control.anew else None
    return json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}


def wait_for_actors(
    ctx: WorkerContext, queue: RolloutQueue, version: int, last: bool = False
) -> Generator[None, None, list[int]]:
    """Ask this learner's actors to write their parts for `version`; returns those that did not. last: of this run, so
    they act no more after it.
    """
    if ctx.directory is None:
        return []
    queue.ask(ctx.index, version, last)
    until = time.monotonic() + SAVE_TIMEOUT
    while (late := queue.late(ctx.index, version)) and time.monotonic() < until:
        queue.check()
        time.sleep(min(ctx.patience, 0.005))
        yield
    if late:
        queue.ask(ctx.index, -1)  # the actors of others may still be asked
        actors = ", ".join(map(str, late))
        ctx.log(
            "warning", f"checkpoint of update {version}: without what actors {actors} do, busy for {SAVE_TIMEOUT:.0f} s"
        )
    return sorted(late + queue.failed(ctx.index))


def save_queue_end(ctx: WorkerContext, part: CheckpointPart, queue: RolloutQueue, lost: list[int]) -> None:
    """Write this learner's end of the queue. Raises OSError."""
    own = range(ctx.index, queue.producers, queue.consumers)
    reading = {str(p): len(queue.held(queue.pairs(p), READING)) for p in own}  # taken, and not given back yet
    counts = {"taken": {str(p): queue.learnt(p) for p in own}, "reading": reading}
    part.json(f"workers/stream-{ctx.index}", {**counts, "turn": int(queue.turns[ctx.index]), "lost": lost})


# ----------------------------------------------------------------------------------------- the main process


def saved_counters(root: Path) -> list[dict[str, Any]]:
    """What the acting workers of a checkpoint, or of its parts, reported."""
    files = sorted(p for p in (root / "workers").glob("*.json") if not p.name.startswith("stream-"))
    return [json.loads(p.read_text("utf-8")) for p in files]


def lost_lanes(root: Path, seed: int) -> str:
    """One line about the lanes that cannot go on from a checkpoint; empty where all can."""
    reports = saved_counters(root)
    if not reports:
        return f"all lanes begin anew, from seed {seed}: the checkpoint has nothing of them"
    unsaved = [report for report in reports if report["why"]]
    late = [p for f in (root / "workers").glob("stream-*.json") for p in json.loads(f.read_text("utf-8"))["lost"]]
    text = []
    if unsaved:
        lanes, games, steps = (sum(report[k] for report in unsaved) for k in ("lanes", "partial", "partial_steps"))
        what = f"{games} partial episodes ({steps:,} agent steps) are lost"
        text.append(f"{lanes} lanes begin anew, from seed {seed}: {what}, since {unsaved[0]['why']}")
    if late:
        actors = ", ".join(map(str, sorted(late)))
        text.append(f"lanes of actors {actors} begin anew, from seed {seed}: what they did was not saved")
    return "; ".join(text)
