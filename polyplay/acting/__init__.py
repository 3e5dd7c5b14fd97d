"""The acting loops: receive rows, choose actions, write rows, send."""

from polyplay.acting.exploration import EpsilonLadder, GaussianNoise, LinearEpsilon, RunSchedule
from polyplay.acting.predictor import AgentTable
from polyplay.acting.table import act_at_table
from polyplay.acting.worker import act

__all__ = ["AgentTable", "EpsilonLadder", "GaussianNoise", "LinearEpsilon", "RunSchedule", "act", "act_at_table"]
