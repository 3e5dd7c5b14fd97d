"""The learning loop: where batches come from, losses, updates."""

from polyplay.core.worker import Hyperparameters
from polyplay.learning.agents import AgentRollouts, Windows, learn_agents
from polyplay.learning.critic_losses import SACLoss, TD3Loss
from polyplay.learning.learner import Epochs, LearnerSpec, own_loss
from polyplay.learning.loop import Chunks, Feed, Inline, Replayed, Rollouts, Samples, Source, learn, try_loss
from polyplay.learning.losses import A2C, APPO, PPO, Loss, LossOutput, VTrace
from polyplay.learning.parts import LearnerPart, OutlierGate, RateDrops, TargetNetwork
from polyplay.learning.value_losses import CategoricalLoss, DPGLoss, QLoss, SequenceLoss
