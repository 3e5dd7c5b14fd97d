"""A turn of what a pool orders, a lane or a match: its next rows, or a note of what went wrong instead."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs import rules, spaces
from polyplay.envs.pool import EnvSpec, lane_seeds
from polyplay.envs.pools.board import BROKEN, FAILED, NOTE, ROUNDED, UNBUILT, SharedRows
from polyplay.envs.pools.build import one_line

HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the room envs/
START = 60.0  # seconds that starting a process and building an environment may take at least


@dataclass(frozen=True)
class LaneJob:
    """What a worker needs; `maker` is cloudpickled (name, options)."""

    maker: bytes
    title: str
    spec: EnvSpec
    seed: int
    lane: int  # number of the pool's first lane in the run
    step_timeout: float


class Unbuilt(Exception):
    """An environment that could not be built at first: the user's mistake."""


class Unit(Protocol):
    """One environment, and the row or rows that it writes."""

    env: Any  # None: it is not built, or was closed
    job: LaneJob
    board: SharedRows
    lane: int  # its number in orders and notes
    allow: Callable[[float], None]
    who: str
    stage: str  # the rule that an exception breaks now
    last: Tree  # the actions that were chosen last
    remark: str  # about a row that is good
    remarked: bool

    def advance(self) -> None: ...
    def save(self) -> Batch: ...
    def load(self, saved: Batch) -> None: ...
    def close(self) -> None: ...


def take_turn(unit: Unit) -> int:
    """Make the next row, or rows: the unit's number, or `~number` with a note on the board. An environment that raises
    is closed: the next turn begins it anew.
    """
    try:
        unit.advance()
    except Unbuilt as e:
        return _note(unit, UNBUILT, str(e))
    except spaces.SpaceViolation as e:
        return _note(unit, BROKEN, f"{unit.who}: {rules.rule_message(e)}")
    except BaseException as e:
        text = _report(unit, e)
        unit.close()
        return _note(unit, FAILED, text)
    if unit.remark and not unit.remarked:
        unit.remarked = True
        return _note(unit, ROUNDED, unit.remark)
    return unit.lane


def _note(unit: Unit, kind: int, text: str) -> int:
    unit.board.note(unit.lane, kind, text)
    return ~unit.lane


def _report(unit: Unit, e: BaseException) -> str:
    """One clear line, then the end of the environment's own traceback."""
    e = e.__cause__ if isinstance(e, UserError) and e.__cause__ is not None else e
    frames = traceback.extract_tb(e.__traceback__)
    own = [f for f in frames if not f.filename.startswith(HERE)] or frames
    trace = "".join(traceback.format_list(own[-12:]))[-(NOTE - 1024) :]
    last = None if unit.last is None else tree.map(lambda a: np.asarray(a).tolist(), unit.last)
    head = f"{unit.who} (seed {unit_seed(unit)}, last action {last}): "
    end = "".join(traceback.format_exception_only(e))[:500].strip()
    text = (head + one_line(e))[:480]
    return f"{text if rules.rule_of(text) else f'{text} {rules.rule_suffix(unit.stage)}'}\n{trace}{end}"


def unit_seed(unit: Unit) -> int:
    """Of the first reset; another one after every restart and return, so that it doesn't run into the same fault, or
    play the same games.
    """
    return lane_seed(unit.board, unit.job, unit.lane)


def lane_seed(board: SharedRows, job: LaneJob, lane: int) -> int:
    """As `unit_seed`, of one of the pool's lanes."""
    again = int(board.faults[lane] + 1_000 * board.joins[lane])
    return int(lane_seeds(job.seed + 1_000_003 * again, job.lane + lane, 1)[0])


def check_generator(unit: Unit, env: object, seed: int) -> None:
    """Raises SpaceViolation: another environment of the pool, given another seed, draws from the same generator."""
    board = unit.board
    source = board.seeds[unit.lane] = rules.rng_of(env)
    twins = np.flatnonzero(board.seeds == source) if source not in (-1, seed) else ()
    if len(twins) > 1:
        a, b = (unit.job.lane + int(i) for i in twins[:2])
        text = f"lanes {a} and {b} got different seeds but draw from the same generator"
        raise spaces.SpaceViolation(f"{text}, of seed {source}" if source < 2**62 else text, "seed")
