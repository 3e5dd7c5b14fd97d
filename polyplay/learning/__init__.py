"""The learning loop: batches, losses, updates; and the replica, which acts and learns."""

from polyplay.core.worker import Hyperparameters
from polyplay.learning.agents import learn_agents, window_learner
from polyplay.learning.learner import Epochs, LearnerSpec
from polyplay.learning.loop import ReplayOfRollouts, episodic_replica, learn, replica
