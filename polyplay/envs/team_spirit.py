"""Names of two events by which an environment leaves it to who learns how much a reward is shared in a team. Imports no
torch.
"""

OWN_REWARD = "own_reward"  # a player's own
TEAM_REWARD = "team_mean"  # the mean of its team's
