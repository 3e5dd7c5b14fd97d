"""One environment of several players, tried in a process of its own: random actions of all, nothing repaired.

It is played as a pool plays it, by a `Match`; beside that every answer of its step() is looked at.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from polyplay.common import tree
from polyplay.envs import rules, spaces
from polyplay.envs.check.trial import FEW, TrialFacts, allow
from polyplay.envs.pool import lane_seeds
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import factory, one_line
from polyplay.envs.pools.global_random import seed_process
from polyplay.envs.pools.match import Match
from polyplay.envs.pools.seating import Seating
from polyplay.envs.pools.turn import START, LaneJob
from polyplay.envs.pools.worker import unpack
from polyplay.envs.random_actions import action_sampler

PARTS = ("observation", "reward", "termination", "truncation")


def run_match_trial(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of one match after the other: so many steps, but not more than so many seconds."""
    seed_process(int(lane_seeds(job.seed, job.lane, 1)[0]))
    return MatchTrial(answer, clock, job, steps).run(seconds)


class MatchTrial:
    """One environment and what it does; sends what an EnvTrial sends."""

    def __init__(
        self,
        answer: Connection,
        clock: np.ndarray,
        job: LaneJob,
        steps: int,
        beside: Callable[[], None] = lambda: None,
    ):
        self.beside = beside  # called before each turn
        self.answer, self.clock, self.job, self.steps = answer, clock, job, steps
        self.facts, self.reported = TrialFacts(), set[tuple[str, str]]()
        seats = job.spec.seats
        self.board = SharedRows(job.spec, seats, 1, Seating(seats, seats))
        self.draw, self.results = action_sampler(job.spec.action, job.seed), list[Any]()
        self.length, self.raised = 0, 0

    def report(self, kind: str, rule: str, text: str) -> None:
        if (kind, rule) not in self.reported:
            self.reported.add((kind, rule))
            where = ("", f"reset {self.facts.resets}: ", f"step {self.facts.steps}: ")[int(self.clock[1])]
            self.answer.send((kind, (rule, where + text)))

    def run(self, seconds: float) -> TrialFacts:
        """Play until the steps or the time are over."""
        until = time.monotonic() + seconds
        while self._build() and self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < until:
            while self.raised < FEW and self.facts.steps < self.steps and time.monotonic() < until:
                if not self._turn():
                    self.match.close()
                    break
        return self.facts

    def _build(self) -> bool:
        start = allow(self.clock, 0, self.facts.steps, max(START, self.job.step_timeout))
        try:
            make = factory(*unpack(self.job.maker, self.job.title))
            self.match = Match(self.job, make, self.board, 0, lambda seconds: None)
            self.match.prepare()
        except BaseException as e:
            rule = e.rule if isinstance(e, spaces.SpaceViolation) else rules.rule_of(str(e)) or "build"
            self.report("broke", rule, rules.without_rule(str(e)))
            return False
        self.facts.build = time.perf_counter() - start
        _record(self.match.env, self.results)
        return True

    def _turn(self) -> bool:
        """One reset or step; False: it broke a rule, and the match ends with that."""
        match, facts, begins = self.match, self.facts, self.match.over
        facts.resets, facts.steps = facts.resets + begins, facts.steps + (not begins)
        tree.write(self.board.action, ..., self.draw(len(self.board.rows["first"]), self.board.rows.get("mask")))
        self.beside()
        start = allow(self.clock, 1 if begins else 2, facts.steps, self.job.step_timeout)
        try:
            match.advance()
        except BaseException as e:
            self.raised += 1
            rule, text = (e.rule, str(e)) if isinstance(e, spaces.SpaceViolation) else (match.stage, one_line(e))
            self.report("broke", rule, text)
            return False
        took = time.perf_counter() - start
        self._measured(begins, took)
        self._look(begins)
        return True

    def _measured(self, begins: bool, took: float) -> None:
        facts, rows = self.facts, self.board.rows
        facts.prints.append(zlib.crc32(b"".join(leaf.tobytes() for _, leaf in tree.leaves(rows))))
        self.length = 0 if begins else self.length + 1
        if begins:
            facts.reset_most = max(facts.reset_most, took)
            facts.generator = rules.rng_of(self.match.env) if facts.generator < 0 else facts.generator
            return
        facts.step_sum, facts.step_most = facts.step_sum + took, max(facts.step_most, took)
        if self.match.over:
            facts.ends.append((self.length, bool(rows["terminated"].any())))

    def _look(self, begins: bool) -> None:
        """At what step() returned, and who is left."""
        known, match = self.match.agents, self.match
        if match.remark:
            self.report("odd", "reward" if "env.rewards" in match.remark else "bounds", match.remark)
        if begins or not self.results:
            return
        answer = self.results.pop()
        self._bounds(answer[0])
        for name, part in zip(PARTS, answer, strict=False):
            strangers = [a for a in part if a not in known] if isinstance(part, Mapping) and name != PARTS[0] else []
            if strangers:
                self.report("broke", "players", f"step() gave a {name} of {strangers[0]}, not in possible_agents")
        if match.over and (left := list(match.env.agents)):
            self.report(
                "odd", "agents", f"everyone has ended, but agents is still {left}; only training lets that pass"
            )

    def _bounds(self, seen: object) -> None:
        """Of what every player saw after a step; a Match looks at resets only."""
        for agent, space in zip(self.match.agents, self.match.seen, strict=True):
            if isinstance(seen, Mapping) and agent in seen:
                try:
                    near = rules.check_contains(space, seen[agent])
                except spaces.SpaceViolation as e:
                    near = f"{e}; training looks at bounds after a reset only"
                if near:
                    self.report("odd", "bounds", f"{agent}: {near}")


def _record(env: Any, results: list[Any]) -> None:
    """From now on `results` holds what the environment's step() returned last."""
    step = env.step

    def recording(actions: Any) -> Any:
        answer = step(actions)
        results[:] = [answer] if isinstance(answer, Sequence) else []
        return answer

    env.step = recording
