"""Queues of rollouts and of drawn batches between acting and learning, the replay, a league's memory."""

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import REPLAY_METRICS, SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import RolloutQueue, TrainingQueue, slots_per_batch
