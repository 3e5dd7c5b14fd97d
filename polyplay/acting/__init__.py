"""The acting loops, which receive observations, choose actions, store both in rollouts, and send the actions."""

from polyplay.acting.actor import EpsilonLadder, Exploration, GaussianNoise, LinearEpsilon, RunSchedule
from polyplay.acting.predictor import LaneTable
from polyplay.acting.worker import act, act_at_table, predict
