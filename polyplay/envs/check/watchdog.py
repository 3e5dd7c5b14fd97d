"""Watches a process that tries an environment: collects its findings, notices that it hangs or dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common.shared_memory import SharedBlock
from polyplay.envs.check import trial
from polyplay.envs.pools.client import exit_text
from polyplay.envs.pools.forkserver import REORDERED, EnvProcess
from polyplay.envs.pools.turn import START
from polyplay.envs.pools.worker import TRACE, settle

Play = Callable[..., object]


@dataclass
class TrialResult:
    """What is known of one trial."""

    card: dict[str, str] = field(default_factory=dict)
    broke: dict[str, str] = field(default_factory=dict)  # rule → text
    odd: dict[str, str] = field(default_factory=dict)
    facts: Any = None
    whole: bool = True  # it neither hung nor died


def run_watched(play: Play, *args: object, reordered: bool = False) -> TrialResult:
    """Run `play(answer, clock, *args)` in an environment process until it has returned its facts, hangs or dies.
    reordered: sets are in another order there.
    """
    clock, trace = SharedBlock(8 * trial.CLOCK), SharedBlock(TRACE)
    times = clock.array(trial.CLOCK, np.float64)
    trial.allow(times, 0, 0, START)
    here, there = multiprocessing.Pipe(duplex=False)
    server = {"server": REORDERED} if reordered else {}
    process = EnvProcess(_run, (play, there, clock, trace, *args), "env check", **server)
    process.start()
    there.close()
    tried = TrialResult()
    try:
        while tried.facts is None:
            if here.poll(0.05):
                kind, value = here.recv()
                if kind == "facts":
                    tried.facts = value
                else:  # of several findings about a rule the first
                    getattr(tried, kind).setdefault(*value)
            elif 0.0 < times[0] < time.monotonic():
                process.dump()
                time.sleep(0.1)
                _lost(tried, "hang", f"took longer than {times[3]:g} s", times, trace)
    except EOFError:
        process.join(1.0)
        _lost(tried, "crash", f"ended its process: {exit_text(process)}", times, trace)
    finally:
        here.close()
        process.end()
    return tried


def _run(play: Play, answer: Connection, clock: SharedBlock, trace: SharedBlock, *args: object) -> None:
    """The whole life of a trial's process."""
    settle(trace)
    times = clock.array(trial.CLOCK, np.float64)
    with contextlib.suppress(BrokenPipeError):
        facts = play(answer, times, *args)
        times[0] = 0.0  # done
        answer.send(("facts", facts))


def _lost(tried: TrialResult, rule: str, what: str, times: np.ndarray, trace: SharedBlock) -> None:
    """A trial that cannot send its facts any more; where its Python code was, innermost first."""
    dump = bytes(trace.memory).split(b"\0", 1)[0].decode(errors="replace")
    places = re.findall(r'File "(.+)", line (\d+) in (\S+)', dump)
    theirs = [p for p in places if not re.search("polyplay/envs/|/multiprocessing/|^<", p[0])]
    own = [f"{Path(file).name}:{line} in {name}" for file, line, name in theirs]
    stage = trial.STAGES[int(times[1])]
    step = f" {times[2]:.0f}" if stage == "step" else ""
    tried.broke[rule] = f"{stage}{step} {what}" + (f" ({' ← '.join(own[:3])})" if own else "")
    tried.facts, tried.whole = trial.TrialFacts(steps=int(times[2])), False
