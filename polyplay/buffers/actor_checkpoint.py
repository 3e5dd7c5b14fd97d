"""Parts of a checkpoint that acting workers (actors) write, so that a resumed run continues as if it had never stopped.

`workers/ROLE-I.safetensors`  state of worker I, if it can be saved; its rollouts that no learner has taken yet
`workers/ROLE-I.json`         counters of worker I; if its state was not saved, also the reason and the lost episodes
`workers/stream-C.json`       numbers of rollouts that learner C has taken from each actor; actors that wrote no part

Before a learner saves its state, it waits until each of its actors has finished a rollout and written its part. Matches
of a league continue only if both the saved and the resumed run are serial (all workers take turns in one thread).
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

LEAGUE = "league/memory"  # shared state of a league's workers, in a checkpoint made between two rounds of turns
SAVE_TIMEOUT = 10.0  # seconds for actors to write their parts; a checkpoint does not include later parts


def save_actor(ctx: WorkerContext, part: CheckpointPart, actor: Any, flight: Batch, more: Batch | None = None) -> None:
    """Write an acting worker's part of a checkpoint: the rollouts `flight`, which no learner has taken yet, the arrays
    `more` and, if the actor is between two rollouts, its state. Raises OSError.
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
    """Write this actor's part of a checkpoint, if a learner has requested it and the actor is between two rollouts. If
    the rollout cannot end before the run, answer that the part failed. Return whether a request was answered.
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
    """Write this actor's part of a checkpoint in a serial run. `table`: state of the actor's players and matches."""
    assert ctx.directory is not None
    try:
        more = {"stream": producer.save(), "table": table}
        save_actor(ctx, CheckpointPart(ctx.directory, number), actor, producer.flight(), more)
    except OSError as e:
        ctx.log("warning", f"checkpoint {number}: without what actor {ctx.index} does: {refusal_text(e)}")


def rest_at_end(ctx: WorkerContext, producer: Producer) -> Iterator[None]:
    """Wait without acting once this actor's part of the last checkpoint is written. Later steps would be lost."""
    queue, p = producer.queue, producer.p
    while queue.last(p) and queue.asked(p) is None:
        queue.check()
        time.sleep(min(ctx.patience, 0.005))
        yield


def between_rounds(ctx: WorkerContext) -> OpenCheckpoint | None:
    """Return the checkpoint of a resumed run if every worker can continue exactly from it, else None. Both the saved
    and the resumed run must be serial (all workers take turns in one thread).
    """
    if ctx.resume is None or ctx.control.anew or not ctx.serial:
        return None
    found = checkpoint.open_checkpoint(ctx.resume)
    return found if found.has(LEAGUE) else None


def load_actor(ctx: WorkerContext, consumers: int = 0) -> Batch:
    """Return this worker's arrays from the checkpoint of a resumed run. Return {} if it has none, or if this worker
    replaces a lost one. `consumers`: number of learners. If not 0, also return {} if the worker's learner lists its
    part as lost.
    """
    if ctx.resume is None or ctx.control.anew or ctx.incarnation % 1000:
        return {}
    saved, name = checkpoint.open_checkpoint(ctx.resume), f"workers/{ctx.role}-{ctx.index}"
    if consumers and ctx.index in _queue_end(ctx, ctx.index % consumers).get("lost", [ctx.index]):
        return {}
    return tree.nest(saved.arrays(name)) if saved.has(name) else {}


def rollouts_learnt(ctx: WorkerContext, queue: RolloutQueue) -> list[int]:
    """Return how many rollouts of each producer (actor) the learners had taken when a resumed run was saved."""
    taken = [_queue_end(ctx, c).get("taken", {}) for c in range(queue.consumers)]
    return [taken[p % queue.consumers].get(str(p), 0) for p in range(queue.producers)]


def slots_read(ctx: WorkerContext, queue: RolloutQueue) -> int:
    """Return how many of this actor's slots the learner was reading when a resumed run was saved. If the run is not
    serial, return 0.
    """
    # not serial: a learner that starts before the actor would never return these slots
    read = _queue_end(ctx, ctx.index % queue.consumers).get("reading", {}) if ctx.serial else {}
    return read.get(str(ctx.index), 0)


def saved_turn(ctx: WorkerContext, queue: RolloutQueue) -> int:
    """Return this learner's element of RolloutQueue.turns from the checkpoint of a resumed run."""
    end = _queue_end(ctx, ctx.index)
    return end.get("turn", sum(end.get("taken", {}).values()))


def _queue_end(ctx: WorkerContext, c: int) -> dict[str, Any]:
    """Return the content of `workers/stream-C.json` for learner `c` in a resumed run's checkpoint, or {}."""
    path = ctx.resume / f"workers/stream-{c}.json" if ctx.resume is not None and not ctx.control.anew else None
    return json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}


def wait_for_actors(
    ctx: WorkerContext, queue: RolloutQueue, version: int, last: bool = False
) -> Generator[None, None, list[int]]:
    """Ask this learner's actors to write their parts of the checkpoint of update `version`, and wait for them. Return
    the actors that wrote no part. `last`: whether this is the run's last checkpoint, after which actors stop acting.
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
        queue.ask(ctx.index, -1)  # other learners' requests stay open
        actors = ", ".join(map(str, late))
        ctx.log(
            "warning", f"checkpoint of update {version}: without what actors {actors} do, busy for {SAVE_TIMEOUT:.0f} s"
        )
    return sorted(late + queue.failed(ctx.index))


def save_queue_end(ctx: WorkerContext, part: CheckpointPart, queue: RolloutQueue, lost: list[int]) -> None:
    """Write the file `workers/stream-C.json` of this learner. `lost`: actors that wrote no part. Raises OSError."""
    own = range(ctx.index, queue.producers, queue.consumers)
    reading = {str(p): len(queue.held(queue.pairs(p), READING)) for p in own}  # slots taken, not yet returned
    counts = {"taken": {str(p): queue.learnt(p) for p in own}, "reading": reading}
    part.json(f"workers/stream-{ctx.index}", {**counts, "turn": int(queue.turns[ctx.index]), "lost": lost})


# ----------------------------------------------------------------------------------------- the main process


def saved_counters(root: Path) -> list[dict[str, Any]]:
    """Return the JSON reports of all acting workers in a checkpoint, or in the directory of its parts."""
    files = sorted(p for p in (root / "workers").glob("*.json") if not p.name.startswith("stream-"))
    return [json.loads(p.read_text("utf-8")) for p in files]


def lost_lanes(root: Path, seed: int) -> str:
    """Describe the lanes (parallel environments) that restart instead of continuing. Return "" if all continue."""
    reports = saved_counters(root)
    if not reports:
        return f"all lanes restart, from seed {seed}: the checkpoint has no state of them"
    unsaved = [report for report in reports if report["why"]]
    late = [p for f in (root / "workers").glob("stream-*.json") for p in json.loads(f.read_text("utf-8"))["lost"]]
    text = []
    if unsaved:
        lanes, games, steps = (sum(report[k] for report in unsaved) for k in ("lanes", "partial", "partial_steps"))
        what = f"{games} partial episodes ({steps:,} agent steps) are lost"
        text.append(f"{lanes} lanes restart, from seed {seed}: {what}, since {unsaved[0]['why']}")
    if late:
        actors = ", ".join(map(str, sorted(late)))
        text.append(f"lanes of actors {actors} restart, from seed {seed}: their state was not saved")
    return "; ".join(text)
