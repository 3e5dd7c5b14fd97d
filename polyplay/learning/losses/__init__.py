"""Losses, and the targets that they learn towards: pure functions of rows."""

from polyplay.learning.losses.dpg import DPGLoss, dpg_outputs
from polyplay.learning.losses.policy_gradient import A2C, VTrace
from polyplay.learning.losses.ppo import APPO, PPO
from polyplay.learning.losses.q_learning import CategoricalLoss, QLoss, SequenceLoss, q_outputs

__all__ = [
    "A2C",
    "APPO",
    "PPO",
    "CategoricalLoss",
    "DPGLoss",
    "QLoss",
    "SequenceLoss",
    "VTrace",
    "dpg_outputs",
    "q_outputs",
]
