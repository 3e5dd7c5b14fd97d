"""One lane, tried while another one is stepped in the same process: it has to show what it shows alone."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from polyplay.common import tree
from polyplay.envs import rules
from polyplay.envs.check.match_trial import MatchTrial
from polyplay.envs.check.trial import EnvTrial, TrialFacts
from polyplay.envs.pool import lane_seeds
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import factory
from polyplay.envs.pools.global_random import GlobalGenerators
from polyplay.envs.pools.lane import Lane
from polyplay.envs.pools.match import Match
from polyplay.envs.pools.seating import Seating
from polyplay.envs.pools.turn import LaneJob, Unit, take_turn
from polyplay.envs.pools.worker import unpack
from polyplay.envs.random_actions import action_sampler

STEPS, SECONDS = 200, 5.0  # at most


def run_beside(answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float) -> TrialFacts:
    """A trial of the job's lane, with a step of the next lane before each of its steps. Their global generators are
    apart.
    """
    mine = GlobalGenerators(int(lane_seeds(job.seed, job.lane, 1)[0]))
    mine.enter()
    kind: type[EnvTrial] | type[MatchTrial] = MatchTrial if job.spec.kinds else EnvTrial
    return kind(answer, clock, job, steps, Beside(answer, job, mine)).run(seconds)


class Beside:
    """The other lane; what it raises is its own affair, but for being the first one's environment."""

    def __init__(self, answer: Connection, job: LaneJob, back: GlobalGenerators):
        self.answer = answer
        self.job, self.back = replace(job, lane=job.lane + 1), back
        self.random = GlobalGenerators(int(lane_seeds(job.seed, job.lane + 1, 1)[0]))
        seats = job.spec.seats
        self.board = SharedRows(job.spec, seats, 1, Seating(seats, seats) if job.spec.kinds else None)
        self.draw = action_sampler(job.spec.action, job.seed + 1)
        self.unit: Unit | None = None

    def __call__(self) -> None:
        self.random.enter()
        try:
            if self.unit is None:
                make, kind = factory(*unpack(self.job.maker, self.job.title)), Match if self.job.spec.kinds else Lane
                self.unit = kind(self.job, make, self.board, 0, lambda seconds: None)
            rows = self.board.rows
            tree.write(self.board.action, ..., self.draw(len(rows["first"]), rows.get("mask")))
            if take_turn(self.unit) < 0 and rules.rule_of(text := self.board.read(0)[1]) == "copies":
                self.answer.send(("broke", ("copies", rules.without_rule(text))))
        finally:
            self.back.enter()
