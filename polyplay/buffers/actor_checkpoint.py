"""The part that acting workers have in a checkpoint, so that a resumed run goes on as if nothing had happened.

`workers/ROLE-I.safetensors`  all that decides worker I's future, where its pool can save itself, and its rollouts
                              that were still on their way to a learner
`workers/ROLE-I.json`         what it had counted; where nothing was saved why, and the episodes that are lost by it
`workers/stream-C.json`       what learner C had taken of every actor, and the actors that did not write theirs

A learner that saves stands still until every actor has come to the end of its rollout and written its part. So what
actors hold, what is in flight and what was learnt fit together, however far acting runs ahead. Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from polyplay.buffers.rollout_queue import Producer, Stream
from polyplay.common import checkpoint, tree
from polyplay.common.checkpoint import Part
from polyplay.common.context import Me
from polyplay.common.tree import Batch

HOLD = 10.0  # seconds that actors get for it; then the checkpoint goes without them


def write(me: Me, part: Part, actor: Any, flight: Batch) -> None:
    """The part of an acting worker, between two rollouts. actor: rolling.Actor. Raises OSError."""
    state, games = actor.save(), actor.games
    kept = {**(state or {}), **({"flight": flight} if flight else {})}
    name = f"workers/{me.role}-{me.index}"
    if kept:
        part.arrays(name, dict(tree.leaves(kept)))
    cut = (games.length > 0) & ~games.over
    told = {
        "first_lane": actor.first_lane,
        "lanes": len(cut),
        "steps": int(me.meter.get("steps")),
        "episodes": int(me.meter.get("episodes")),
        "partial": int(cut.sum()),
        "partial_steps": int(games.length[cut].sum()),
        "why": "" if state is not None else getattr(actor.pool, "unsaved", "") or "they cannot be saved",
    }
    part.json(name, told)


def answer(me: Me, actor: Any, producer: Producer) -> None:
    """If a learner waits for this actor's part, and it is between two rollouts, write it."""
    version = producer.asked()
    if version is None or me.directory is None or not actor.between:
        return
    try:
        write(me, Part(me.directory, version), actor, producer.flight())
        producer.answer(version)
    except OSError as e:
        me.say("warning", f"checkpoint of update {version}: without what actor {me.index} does: {e.strerror or e}")
        producer.answer(version, failed=True)


def read(me: Me, consumers: int = 0) -> Batch:
    """What this worker saved in the checkpoint that the run goes on from; empty: nothing, or it is a replacement.

    `consumers`: of its stream, if it has one.
    """
    if me.resume is None or me.incarnation % 1000:
        return {}
    found, name = checkpoint.open_checkpoint(me.resume), f"workers/{me.role}-{me.index}"
    if consumers and me.index in _stream(me, me.index % consumers).get("lost", [me.index]):
        return {}
    kept = tree.nest(found.arrays(name)) if found.has(name) else {}
    return kept if "pool" not in kept or "incarnation" in kept else {}  # without: an early version wrote it


def taken(me: Me, stream: Stream, batches: int, n: int) -> list[int]:
    """Rollouts of each producer that were learnt in so many batches, each of which took `n` slots per learner."""
    counts = [batches * n * stream.consumers // stream.producers] * stream.producers
    for c in range(stream.consumers):
        for p, count in _stream(me, c).get("taken", {}).items():
            counts[int(p)] = count
    return counts


def _stream(me: Me, c: int) -> dict[str, Any]:
    path = me.resume / f"workers/stream-{c}.json" if me.resume is not None else None
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def gather(me: Me, stream: Stream, version: int) -> Generator[None, None, list[int]]:
    """Let the actors of learner `me` write their parts for `version`; those that did not."""
    if me.directory is None:
        return []
    stream.ask(me.index, version)
    until = time.monotonic() + HOLD
    while (late := stream.late(me.index, version)) and time.monotonic() < until:
        stream.check()
        time.sleep(min(me.patience, 0.005))
        yield
    if late:
        stream.ask(me.index, -1)  # the actors of others may still be asked
        actors = ", ".join(map(str, late))
        me.say("warning", f"checkpoint of update {version}: without what actors {actors} do, busy for {HOLD:.0f} s")
    return sorted(late + stream.failed(me.index))


def flow(me: Me, part: Part, stream: Stream, lost: list[int]) -> None:
    """Learner `me`'s part: its end of the stream. Raises OSError."""
    mine = range(me.index, stream.producers, stream.consumers)
    counts = {str(p): stream.learnt(p) for p in mine}
    part.json(f"workers/stream-{me.index}", {"taken": counts, "lost": lost})


# ----------------------------------------------------------------------------------------- the main process


def told(root: Path) -> list[dict[str, Any]]:
    """What the acting workers of a checkpoint, or of its parts, had counted."""
    files = sorted(p for p in (root / "workers").glob("*.json") if not p.name.startswith("stream-"))
    return [json.loads(p.read_text()) for p in files]


def lost(root: Path, seed: int) -> str:
    """One line about the lanes that cannot go on from a checkpoint; empty where all can."""
    if not told(root):
        return f"all lanes begin anew, from seed {seed}: the checkpoint has nothing of them"
    begin = [t for t in told(root) if t["why"]]
    late = [p for f in (root / "workers").glob("stream-*.json") for p in json.loads(f.read_text())["lost"]]
    if not begin and not late:
        return ""
    text = []
    if begin:
        lanes, games, steps = (sum(t[k] for t in begin) for k in ("lanes", "partial", "partial_steps"))
        what = f"{games} partial episodes ({steps:,} agent steps) are lost"
        text.append(f"{lanes} lanes begin anew, from seed {seed}: {what}, since {begin[0]['why']}")
    if late:
        actors = ", ".join(map(str, sorted(late)))
        text.append(f"lanes of actors {actors} begin anew, from seed {seed}: what they did was not saved")
    return "; ".join(text)
