"""What heroes of the lane game are rewarded for: shaped terms, and what is made of them for teams (Berner et al. 2019,
appendix G). Imports no torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.envs.lanes.world import STEPS_A_SECOND
from polyplay.envs.team_spirit import OWN_REWARD, TEAM_REWARD

REWARDS = {
    "win": 5.0,
    "death": -1.0,
    "experience": 0.002,
    "gold": 0.006,
    "health": 2.0,  # parts of all of it, by rules.worth_of_health
    "mana": 0.75,
    "killed_hero": -0.6,  # gold and experience reward it too
    "last_hit": -0.16,
    "outer_tower": 2.25,  # two thirds as its health falls, a third when it falls
    "inner_tower": 4.5,
    "core": 5.0,  # as its health falls
}
EVENTS = tuple(REWARDS)
SHARES = OWN_REWARD, TEAM_REWARD  # what rows say besides: the hero's reward, and the mean of its team's
DECAY, DECAY_TIME = 0.6, 600 * STEPS_A_SECOND  # all but the win is worth so much of it after each ten minutes


def time_weights(length: int) -> np.ndarray:
    """float64 [length + 1]: 0.6^(t / 10 min) at each age of a match."""
    return np.asarray(DECAY ** (np.arange(length + 1) / DECAY_TIME))


def weigh_events(events: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """float64 [n, P] of events [n, P, 11]: REWARDS, all but the win times weight [n]."""
    if events.ndim != 3 or events.shape[2] != len(EVENTS) or weight.shape != events.shape[:1]:
        raise ValueError(f"events {list(events.shape)}, weight {list(weight.shape)}: want [n, P, {len(EVENTS)}], [n]")
    shaped = np.zeros(events.shape[:2])
    for k, name in enumerate(EVENTS[1:], 1):
        shaped += REWARDS[name] * events[:, :, k]
    return REWARDS["win"] * events[:, :, 0] + weight[:, None] * shaped


def make_zero_sum(reward: np.ndarray) -> np.ndarray:
    """[n, P]: each seat's less the mean of the other team's, ρ_i - mean_j∈enemies ρ_j, so that all sum to 0."""
    teams = _teams(reward)
    return (teams - teams.mean(2, keepdims=True)[:, ::-1]).reshape(reward.shape)


def share_in_team(reward: np.ndarray, spirit: float) -> np.ndarray:
    """[n, P]: team spirit τ, (1 - τ) ρ_i + τ · mean_j∈team ρ_j, which leaves a team's sum as it is."""
    teams = _teams(reward)
    return ((1.0 - spirit) * teams + spirit * teams.mean(2, keepdims=True)).reshape(reward.shape)


def _teams(reward: np.ndarray) -> np.ndarray:
    """[n, 2, P / 2]."""
    if reward.ndim != 2 or reward.shape[1] % 2:
        raise ValueError(f"reward {list(reward.shape)}: want [n, P] of two teams")
    return reward.reshape(len(reward), 2, -1)
