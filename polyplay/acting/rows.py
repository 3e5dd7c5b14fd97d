"""What both acting loops do with a row: choose what the policy sees of it, write it, count the games."""

from __future__ import annotations

import numpy as np
import torch

from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.tree import Batch, Index
from polyplay.envs.pool import Lanes

POLICY_INPUTS = ("obs", "mask", "reward", "first", "events")  # what a policy sees of a row


def as_tensors(batch: Batch) -> Batch:
    """Torch views of NumPy arrays; no bytes move. Tensors pass."""
    return tree.map(torch.as_tensor, batch)


class EpisodeCounter:
    """Returns and lengths of full games per lane, unclipped, whatever ends an episode for the learner."""

    def __init__(self, lanes: int):
        self.ret, self.length = np.zeros(lanes), np.zeros(lanes)
        self.ended, self.over = np.ones(lanes, bool), np.ones(lanes, bool)

    def count(self, ctx: WorkerContext, lanes: Lanes, step: Batch, first_lane: int, agent: int = 0) -> None:
        """agent: whose lanes these are; -1: nobody's who learns, whose games and steps do not count."""
        first, over = step["first"], step["over"]
        if first.any():
            # a first row starts a new game after one that was over, or after a lane had to be restarted in mid-episode
            new = first & (self.over[lanes] | ~self.ended[lanes])
            self.ret[lanes] = np.where(new, 0.0, self.ret[lanes])
            self.length[lanes] = np.where(new, 0.0, self.length[lanes])
        self.ret[lanes] += step["reward"]
        self.length[lanes] += ~first
        if over.any() and agent >= 0:
            for i in np.arange(len(self.ret))[lanes][over]:
                ctx.counters.episode(self.ret[i], self.length[i], first_lane + int(i), agent)
        self.ended[lanes] = step["terminated"] | step["truncated"]
        self.over[lanes] = over
        if agent >= 0:
            ctx.counters.add("steps", int(len(first) - np.count_nonzero(first)))


def policy_inputs(step: Batch) -> Batch:
    """Of a row; without its noise."""
    return {k: step[k] for k in POLICY_INPUTS if k in step}


EVERY, SOME = ("reward", "terminated", "truncated", "first"), ("events", "team_reward")  # what a pool says in rows


def write_row(rows: Batch, at: Index, step: Batch, out: Batch, version: int) -> None:
    for key in ("obs", "mask"):
        if key in step:
            tree.write(rows[key], at, step[key])
    for key in EVERY:
        rows[key][at] = step[key]
    for key in SOME:
        if key in step:
            rows[key][at] = step[key]
    for key, value in out.items():
        tree.write(rows[key], at, tree.map(lambda x: x.numpy(), value))
    rows["version"][at] = version
