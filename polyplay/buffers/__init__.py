"""What lies between acting and learning: queues of rollouts and of drawn batches, and the replay."""

from polyplay.buffers.agent_batches import AgentBatches
from polyplay.buffers.replay import Proportional, Replay, Uniform
from polyplay.buffers.replay_worker import serve_replay
from polyplay.buffers.rollout_queue import RolloutQueue, slots_per_batch
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.buffers.training_queue import TrainingQueue

__all__ = [
    "AgentBatches",
    "Proportional",
    "Replay",
    "RolloutQueue",
    "SampleQueue",
    "TrainingQueue",
    "Uniform",
    "serve_replay",
    "slots_per_batch",
]
