"""The acting loops: receive rows, choose actions, write rows, send."""

from polyplay.acting.predictor import AgentTable
from polyplay.acting.rows import EpsilonLadder, GaussianNoise, LinearEpsilon, RunSchedule
from polyplay.acting.worker import act, act_at_table

__all__ = ["AgentTable", "EpsilonLadder", "GaussianNoise", "LinearEpsilon", "RunSchedule", "act", "act_at_table"]
