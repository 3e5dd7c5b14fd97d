"""RLlib's PPO or IMPALA on Pong until it is stopped (new API stack).

    python bench/peers/rllib.py --algo impala --network nature --runners 2 --envs 8 --log log.jsonl

Runners, connectors, learner and loss are RLlib's; the environment is Gymnasium's AtariPreprocessing and
FrameStackObservation in uint8 (its own wrappers make floats of four times the size), the RLModule holds the network
that all peers train. PPO counts steps sampled (it learns from all of them before it samples more), IMPALA steps learnt
from. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

import ale_py
import gymnasium
import ray
from logs import Log, command_line
from networks import NETWORKS, ActorCritic, count
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.tune.registry import register_env

LEARNT = "num_env_steps_trained_lifetime"
SAMPLED = "num_env_steps_sampled_lifetime"


class Module(TorchRLModule, ValueFunctionAPI):
    """The network under RLlib's interface: logits, and values from the same features."""

    def setup(self) -> None:
        self.net = ActorCritic(self.model_config["network"], int(self.action_space.n))

    def features(self, batch: dict) -> Any:
        return self.net.torso(batch[Columns.OBS].float() / 255.0)

    def _forward(self, batch: dict, **_: Any) -> dict:
        return {Columns.ACTION_DIST_INPUTS: self.net.policy(self.features(batch))}

    def _forward_train(self, batch: dict, **_: Any) -> dict:
        x = self.features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.net.policy(x), Columns.EMBEDDINGS: x}

    def compute_values(self, batch: dict, embeddings: Any = None) -> Any:
        return self.net.value(self.features(batch) if embeddings is None else embeddings).squeeze(-1)


class Clip(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return float((reward > 0) - (reward < 0))


def pong(_: Any) -> gymnasium.Env:
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
    return Clip(gymnasium.wrappers.FrameStackObservation(env, 4))


def config(asked: argparse.Namespace) -> Any:
    config = PPOConfig() if asked.algo == "ppo" else IMPALAConfig()
    config.environment("pong").framework("torch").debugging(seed=asked.seed, log_level="ERROR")
    config.env_runners(
        num_env_runners=asked.runners, num_envs_per_env_runner=asked.envs, num_cpus_per_env_runner=asked.cpus,
        rollout_fragment_length=asked.unroll,
    )  # fmt: skip
    config.learners(num_learners=0).resources(num_cpus_for_main_process=1)
    spec = RLModuleSpec(module_class=Module, model_config={"network": asked.network})
    config.rl_module(rl_module_spec=spec)
    rows = asked.batch or asked.unroll * asked.envs * max(1, asked.runners)
    if asked.algo == "ppo":
        part = max(1, rows // asked.minibatches)
        config.training(
            num_epochs=asked.epochs, minibatch_size=part, clip_param=0.1, entropy_coeff=0.01, use_kl_loss=False
        )
    config.training(train_batch_size_per_learner=rows, lr=2.5e-4, gamma=0.99)
    config.reporting(min_time_s_per_iteration=0 if asked.algo == "ppo" else 1)
    return config


def steps(result: dict, asked: argparse.Namespace) -> int:
    """IMPALA's counter has every rollout's last state, too, from which nothing is learnt but its value: T + 1 for T."""
    if asked.algo == "ppo":
        return int(result["env_runners"][SAMPLED])
    rows = result.get("learners", {}).get("__all_modules__", {}).get(LEARNT, 0)
    return int(rows) * asked.unroll // (asked.unroll + 1)


def main() -> None:
    parser = command_line(__doc__, NETWORKS)
    parser.add_argument("--algo", choices=("ppo", "impala"), default="impala")
    parser.add_argument("--runners", type=int, default=2, help="num_env_runners (0: in the main process)")
    parser.add_argument("--envs", type=int, default=8, help="num_envs_per_env_runner")
    parser.add_argument("--unroll", type=int, help="rollout_fragment_length; default: 128 (PPO), 20 (IMPALA)")
    parser.add_argument("--batch", type=int, default=0, help="train_batch_size_per_learner (0: one round of rollouts)")
    parser.add_argument("--epochs", type=int, default=4, help="of PPO")
    parser.add_argument("--minibatches", type=int, default=4, help="of PPO")
    parser.add_argument("--cpus", type=float, default=0.5, help="that Ray books for each process")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of every process")
    asked = parser.parse_args()
    asked.unroll = asked.unroll or {"ppo": 128, "impala": 20}[asked.algo]
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    here = str(Path(__file__).resolve().parent)
    paths = {"env_vars": {"PYTHONPATH": here, "OMP_NUM_THREADS": str(asked.threads)}}
    ray.init(
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        runtime_env=paths,
        object_store_memory=1 << 30,
    )
    register_env("pong", pong)
    algo = config(asked).build_algo()
    print(f"{count(ActorCritic(asked.network, 6))} parameters", flush=True)
    log = Log(asked.log)
    while True:
        log.write(steps=steps(algo.train(), asked))


if __name__ == "__main__":
    sys.exit(main())
