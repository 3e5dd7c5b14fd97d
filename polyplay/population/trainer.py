"""The trainer: takes the member with the fewest agent steps, trains it until it is ready, decides for it, and so on.

    trainer ──► members/03: a session of an ordinary run ──► its score ──► copy another or not ──► the next member

No trainer waits for another, and none decides for all: what they share is the population's files (population.store).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from polyplay.common import checkpoint
from polyplay.common.context import WorkerContext
from polyplay.common.errors import UserError, WorkerLost
from polyplay.common.files import Row, refusal_text
from polyplay.common.machine import take_share
from polyplay.population import inherit
from polyplay.population.evolution import GAMES, Evolution, is_over, may_train
from polyplay.population.exchange import Members
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, Store

FALLS = 3  # sessions of a member in a row that may be lost; one more, and it has failed
REST = 0.2  # seconds between two looks for a member, where all are taken


@dataclass(frozen=True)
class MemberSession:
    """How a session of a member ended: agent steps and frames of its checkpoint, returns of its last games since it
    copied another, the seconds it took.
    """

    ended: Literal["ready", "done", "stopped", "failed", "lost"]  # failed: for good; lost: it may be tried again
    why: str = ""
    steps: int = 0
    frames: int = 0
    games: tuple[float, ...] = ()
    seconds: float = 0.0


Say = Callable[[str, str], None]
# run(the member's row, agent steps at which to end, why to end before, where messages go) → how it ended
RunMember = Callable[[Row, int, Callable[[], str], Say], MemberSession]


def trainer(ctx: WorkerContext, *, out: Members, evolution: Evolution, run: RunMember) -> Iterator[None]:
    """Train members until none is left."""
    assert ctx.directory is not None
    store = Store(ctx.directory)
    take_share(ctx.index, ctx.n)
    while not (ctx.control.finishing or is_over(store.read())):
        try:
            trained = _train_next(ctx, store, evolution, run)
        except OSError as e:
            raise WorkerLost(f"{e.filename or store.directory}: {refusal_text(e)}") from None
        if not trained:
            time.sleep(REST)
        yield


def _train_next(ctx: WorkerContext, store: Store, evolution: Evolution, run: RunMember) -> bool:
    """Train the member with the fewest agent steps that nobody else has; whether there is one. Steps since the last
    decision about it do not count: who was stopped on the way to the next comes first, as if it had not been.
    """
    population = store.read()
    for m in sorted(population["members"], key=lambda m: (m["since"], m["member"])):
        with store.claimed(m["member"]) as mine:
            if mine and may_train(store.read(), m["member"]):
                _train(ctx, store, evolution, m["member"], run)
                return True
    return False


def _train(ctx: WorkerContext, store: Store, evolution: Evolution, i: int, run: RunMember) -> None:
    m = _begin(store, evolution, i)
    if m["state"] == FAILED:  # it found nobody to copy
        time.sleep(REST)
        return
    stopping = partial(_stopping, ctx)
    session = run(m, evolution.until(m), stopping, ctx.say)
    if session.ended == "ready" and evolution.until(m) >= evolution.total:
        session = replace(session, ended="done", why=DONE)
    with store.locked():
        population = store.read()
        _note(ctx, population["members"][i], session)
        if session.ended in ("ready", "failed"):
            evolution.decide(store, population, i, partial(_copy, store, i))
        store.write(population)


def _stopping(ctx: WorkerContext) -> str:
    return "stopped with its population" if ctx.control.finishing else ""


def _begin(store: Store, evolution: Evolution, i: int) -> Row:
    """Bring the member's run to what was decided about it; its row then."""
    with store.locked():
        population = store.read()
        m: Row = population["members"][i]
        if m["state"] == FAILED:
            evolution.decide(store, population, i, partial(_copy, store, i))
        if (pending := m["pending"]) is not None:
            _complete(store, m, pending["copy"], pending["final"])
        m["pending"] = None
        m["state"] = m["state"] if m["state"] == FAILED else TRAINING
        store.write(population)
        return m


def _complete(store: Store, m: Row, copy: tuple[int, str, bool], final: str) -> None:
    """The member goes on from its copy, which is made again if somebody deleted it."""
    i, name, wrong = m["member"], copy[1], ""
    try:
        if not inherit.complete_copy(store.member(i), name, final):
            inherit.complete_copy(store.member(i), name, final := _copy(store, i, *copy).final)
            wrong = inherit.agent_flaw(checkpoint.checkpoints_dir(store.member(i)) / final) or ""
    except UserError as e:
        wrong = str(e)
    if wrong:
        m |= {"state": FAILED, "why": f"its copy of member {copy[0]:02d} is gone: {wrong}", "lost": True}


def _copy(store: Store, i: int, donor: int, name: str, lanes: bool) -> inherit.PreparedCopy:
    """Prepare the copy of a donor. Raises UserError: the donor has none that is whole."""
    return inherit.prepare_copy(store.member(i), store.member(donor), name, lanes=lanes)


def _note(ctx: WorkerContext, m: Row, session: MemberSession) -> None:
    """Write into a member's row how its session ended."""
    m["wall_seconds"] = round(m["wall_seconds"] + session.seconds, 3)
    m |= {"steps": session.steps, "frames": session.frames}
    m["falls"] = m["falls"] + 1 if session.ended == "lost" else 0
    if session.ended in ("failed", "lost"):
        lost = session.ended == "lost" and m["falls"] <= FALLS
        m |= {"state": WAITING if lost else FAILED, "why": session.why, "lost": session.ended == "lost"}
        m["falls"] = m["falls"] if lost else 0
        ctx.say("warning", f"member {m['member']:02d}: {session.why}" + "; it is tried again" * lost)
        return
    enough = len(session.games) >= GAMES
    m |= {"games": list(session.games), "why": session.why}
    m["score"] = sum(session.games) / len(session.games) if enough else None
    m |= {"state": DONE if session.ended == "done" else WAITING, "lost": False}
    if session.ended == "ready" and not enough:
        few = f"{len(session.games)} of {GAMES} games have ended in the steps between two decisions"
        ctx.say("remark", f"member {m['member']:02d} has no score yet: {few}; a larger --every gives it more")
