"""Queues of rollouts and of sampled batches between actors and learners, replay buffers, and a league's memory."""

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import REPLAY_METRICS, SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import RolloutQueue, TrainingQueue, slots_per_batch
