"""The learning loop: batches, losses, updates; and the replica, which acts and learns."""

from polyplay.common.control import Hyperparameters
from polyplay.learning.agents import learn_agents
from polyplay.learning.epochs import Epochs
from polyplay.learning.optimiser import optimise
from polyplay.learning.replica import episodic_replica, replica
from polyplay.learning.sources import ReplayOfRollouts
from polyplay.learning.spec import LearnerSpec
from polyplay.learning.worker import learn

__all__ = [
    "Epochs",
    "Hyperparameters",
    "LearnerSpec",
    "ReplayOfRollouts",
    "episodic_replica",
    "learn",
    "learn_agents",
    "optimise",
    "replica",
]
