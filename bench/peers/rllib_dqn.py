"""RLlib's DQN on Pong until it is stopped (new API stack), one update of 32 per 4 agent steps.

    python bench/peers/rllib_dqn.py --runners 0 --fragment 4 --log log.jsonl

Runners, connectors, episode replay, learner and loss are RLlib's; plain DQN, neither double nor dueling; the ratio is
its training_intensity. Environment and network as in rllib.py. Steps are those sampled since the first update. Knows
nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

import ray
import torch
from logs import Log, dqn_command_line
from networks import QNetwork, count
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.schedules.scheduler import Scheduler
from ray.tune.registry import register_env
from rllib import SAMPLED, pong

EVERY, BATCH = 4, 32


class Encoder(torch.nn.Module):
    """All of the network but its head, as RLlib's DQN asks for it."""

    def __init__(self, torso: torch.nn.Module):
        super().__init__()
        self.torso = torso

    def forward(self, batch: dict) -> dict:
        return {ENCODER_OUT: self.torso(batch[Columns.OBS].float() / 255.0)}


class Module(DefaultDQNTorchRLModule):
    def setup(self) -> None:
        self.uses_dueling, self.uses_double_q, self.num_atoms = False, False, 1
        self.epsilon_schedule = Scheduler(self.model_config["epsilon"], framework="torch")
        net = QNetwork(self.model_config["network"], int(self.action_space.n))
        self.encoder, self.af = Encoder(net.torso), net.values


def config(asked: argparse.Namespace) -> Any:
    config = DQNConfig().environment("pong").framework("torch").debugging(seed=asked.seed, log_level="ERROR")
    config.env_runners(
        num_env_runners=asked.runners, num_envs_per_env_runner=asked.envs, num_cpus_per_env_runner=0.5,
        rollout_fragment_length=asked.fragment,
    )  # fmt: skip
    config.learners(num_learners=0).resources(num_cpus_for_main_process=1)
    said = {"network": asked.network, "epsilon": asked.epsilon}
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Module, model_config=said))
    # It takes the main process for one that samples too, even where runners do all of it.
    ratio = BATCH / EVERY * (asked.runners / (asked.runners + 1) if asked.runners else 1.0)
    config.training(
        lr=1e-4, gamma=0.99, train_batch_size_per_learner=BATCH, training_intensity=ratio, dueling=False,
        double_q=False, num_atoms=1, n_step=1, epsilon=asked.epsilon, target_network_update_freq=10_000,
        num_steps_sampled_before_learning_starts=asked.start,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": asked.capacity},
    )  # fmt: skip
    config.reporting(min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=0)
    return config


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--runners", type=int, default=0, help="num_env_runners (0: in the main process)")
    parser.add_argument("--envs", type=int, default=1, help="num_envs_per_env_runner")
    parser.add_argument("--fragment", type=int, default=4, help="rollout_fragment_length")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    torch.set_num_threads(asked.threads)
    paths = {"PYTHONPATH": str(Path(__file__).resolve().parent), "OMP_NUM_THREADS": str(asked.threads)}
    ray.init(
        include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
        runtime_env={"env_vars": paths}, object_store_memory=1 << 30,
    )  # fmt: skip
    register_env("pong", pong)
    algo = config(asked).build_algo()
    print(f"{count(QNetwork(asked.network, 6))} parameters", flush=True)
    log, updates = Log(asked.log), 0
    inner = algo.learner_group.update

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal updates
        updates += 1
        return inner(*given, **more)

    algo.learner_group.update = counted
    while True:
        sampled = int(algo.train()["env_runners"][SAMPLED])
        log.write(steps=max(0, sampled - asked.start), updates=updates)


if __name__ == "__main__":
    sys.exit(main())
