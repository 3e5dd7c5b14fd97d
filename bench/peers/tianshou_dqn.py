"""Tianshou's DQN on Pong until it is stopped, one update of 32 per 4 agent steps.

    python bench/peers/tianshou_dqn.py --n-envs 8 --threads 2 --log log.jsonl

Wrappers, vector environment, collector, algorithm and frame-wise replay are Tianshou's, put together as its Atari
example; Adam at 1e-4, target network every 2500 updates, one step, not double. All environments are stepped together,
then as many updates made as are due. Steps count from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import torch
from logs import Log, dqn_command_line
from networks import QNetwork, count
from tianshou.algorithm import DQN
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tianshou.env.atari.atari_wrapper import wrap_deepmind

gymnasium.register_envs(ale_py)
EVERY, BATCH, STACK = 4, 32, 4
VECTORS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


class Values(torch.nn.Module):
    """The network as its policy calls it: arrays in, values and a state out."""

    def __init__(self, network: str, actions: int):
        super().__init__()
        self.net = QNetwork(network, actions)

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        return self.net(torch.as_tensor(obs)), state


def pong() -> gymnasium.Env:
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return wrap_deepmind(env, frame_stack=STACK)


def train(asked: argparse.Namespace) -> None:
    passes = max(1, EVERY // asked.n_envs)  # over all environments between updates
    size = asked.n_envs * passes
    if size % EVERY:
        raise SystemExit(f"--n-envs {asked.n_envs} does not give an update per {EVERY} steps; 1, 2 or a multiple of 4")
    envs = VECTORS[asked.vec]([pong] * asked.n_envs)
    envs.seed(asked.seed)
    space = envs.action_space[0]
    model = Values(asked.network, int(space.n))
    print(f"{count(model)} parameters", flush=True)
    policy = DiscreteQLearningPolicy(
        model=model, action_space=space, eps_training=asked.epsilon, eps_inference=asked.epsilon
    )
    algo: Any = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-4), gamma=0.99, target_update_freq=2500, is_double=False
    )
    buffer = VectorReplayBuffer(
        asked.capacity, buffer_num=asked.n_envs, ignore_obs_next=True, save_only_last_obs=True, stack_num=STACK
    )
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    log, steps, updates = Log(asked.log), 0, 0
    with policy_within_training_step(policy):
        while True:
            collector.collect(n_step=size)
            steps += size
            while updates < (steps - asked.start) // EVERY:
                algo.update(buffer=buffer, sample_size=BATCH)
                updates += 1
            if log.due():
                log.write(steps=max(0, steps - asked.start), updates=updates)


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--vec", choices=VECTORS, default="dummy")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    train(asked)


if __name__ == "__main__":
    main()
