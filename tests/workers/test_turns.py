"""Rounds of turns, and checkpoints between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from polyplay.core.worker import RunControl
from polyplay.workers.crew import take_turns


def worker(name: str, log: list[str], learner: bool = False, meets: tuple[int, ...] = ()) -> Any:
    """Takes turns for ever; meets: rounds at whose end it waits for others."""
    ctx = SimpleNamespace(meeting=0, turn=lambda: None, number=(lambda: 7) if learner else None)
    ctx.write_part = lambda number: log.append(f"{name} writes {number}")

    def runs() -> Iterator[None]:
        number = 0
        while True:
            number += 1
            log.append(name)
            ctx.meeting = int(number in meets)
            yield

    role = SimpleNamespace(name=name, learner=learner, source=None)
    return SimpleNamespace(ctx=ctx, role=role, runs=runs(), done=False)


def test_all_write_their_parts_between_two_rounds_once_for_each_save():
    log, control = list[str](), RunControl()
    crew = [worker("act", log), worker("learn", log, learner=True), worker("referee", log)]
    round_ = ["act", "learn", "referee"]
    parts = ["act writes 7", "learn writes 7", "referee writes 7"]
    take_turns(crew, control)
    control.save()
    take_turns(crew, control)
    take_turns(crew, control)
    assert log == [*round_, *round_, *parts, *round_]
    control.finish()
    take_turns(crew, control)
    assert log[12:] == [*round_, *parts]
    assert [w.done for w in crew] == [False, True, False], "nobody learns after the last one"


def test_nobody_writes_while_learners_wait_for_each_other():
    log, control = list[str](), RunControl()
    crew = [worker("act", log), worker("learn", log, learner=True, meets=(1, 2))]
    control.save()
    for _ in range(3):
        take_turns(crew, control)
    assert log == ["act", "learn"] * 3 + ["act writes 7", "learn writes 7"]


def test_where_learners_write_their_parts_by_themselves_nothing_is_done_between_rounds():
    log, control = list[str](), RunControl()
    crew = [worker("act", log), worker("learn", log, learner=True)]
    crew[1].ctx.number = None
    control.finish()
    take_turns(crew, control)
    assert log == ["act", "learn"]
    assert not crew[1].done
