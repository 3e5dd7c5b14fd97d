"""All names to import if you write your own system, loss, network or optimizer. All of them are public.

A system is defined by a module with a class `Config`, which has its options, and a function `build`, which adds workers
to a `Crew` (all workers of a run), see docs/guides/sac_from_scratch.md. The option `--loss` replaces the loss of a
system by yours, see docs/guides/own_loss.md. The page docs/reference/extend.md lists every name.
"""

from polyplay.acting import LinearEpsilon, act
from polyplay.buffers import REPLAY_METRICS, Replay, RolloutQueue
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, UserError
from polyplay.core.tree import Batch, Field
from polyplay.envs import Envs, EnvSpec
from polyplay.envs.atari import atari_preset
from polyplay.learning import (
    A2C,
    PPO,
    Epochs,
    Hyperparameters,
    Inline,
    LearnerPart,
    LearnerSpec,
    Loss,
    LossOutput,
    QLoss,
    Replayed,
    Rollouts,
    TargetNetwork,
    VTrace,
    learn,
)
from polyplay.learning.losses import gae, masked_mean, n_step, transitions, vtrace
from polyplay.nets import NetworkFactory, Policy
from polyplay.nets.action_heads import normal
from polyplay.nets.layers import frozen, mlp
from polyplay.nets.policy import PolicyFactory, Torso
from polyplay.systems import Page, System
from polyplay.weights import Local, OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew

__all__ = ["Count", "Crew", "Fraction", "NonNegative", "Page", "Positive", "System", "UserError"]  # a system's page
__all__ += ["Batch", "EnvSpec", "Envs", "Field", "atari_preset"]  # environments and their rows
__all__ += ["NetworkFactory", "Policy", "PolicyFactory", "Torso", "frozen", "mlp", "normal"]  # networks
__all__ += ["A2C", "PPO", "Loss", "LossOutput", "QLoss", "VTrace", "gae", "masked_mean", "n_step"]  # losses
__all__ += ["transitions", "vtrace"]
__all__ += ["Epochs", "Hyperparameters", "LearnerPart", "LearnerSpec", "TargetNetwork", "learn"]  # learning
__all__ += ["REPLAY_METRICS", "Inline", "LinearEpsilon", "Replay", "Replayed", "RolloutQueue", "Rollouts", "act"]
__all__ += ["Local", "OptimizerSpec", "Params", "averaged"]  # weights
