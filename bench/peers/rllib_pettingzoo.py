"""RLlib's PPO on a PettingZoo ParallelEnv, one policy in all seats, until it is stopped (new API stack).

    python bench/peers/rllib_pettingzoo.py --env mpe2.simple_spread_v3:parallel_env --runners 2 --envs 8 --log log.jsonl

Environment wrapper, runners, connectors, network (two layers of 64 tanh units, the value has its own), learner and loss
are RLlib's. Steps are agent steps sampled, one agent's action each; it learns from all of them before it samples more.
Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

import ray
from logs import Log
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

SAMPLED = "num_agent_steps_sampled_lifetime"  # of each agent
MODEL = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)


def make(env: str) -> Any:
    module, _, name = env.partition(":")
    return ParallelPettingZooEnv(getattr(importlib.import_module(module), name)())


def config(asked: argparse.Namespace) -> PPOConfig:
    """Batches of one round of rollouts. train_batch_size counts steps of matches, minibatch_size those of agents."""
    config = PPOConfig().environment("game").framework("torch").debugging(seed=asked.seed, log_level="ERROR")
    config.env_runners(
        num_env_runners=asked.runners, num_envs_per_env_runner=asked.envs, num_cpus_per_env_runner=asked.cpus,
        rollout_fragment_length=asked.unroll,
    )  # fmt: skip
    config.learners(num_learners=0).resources(num_cpus_for_main_process=1)
    config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **_: "shared")
    config.rl_module(model_config=MODEL)
    matches = asked.envs * max(1, asked.runners)
    agents = len(make(asked.env).possible_agents)
    config.training(
        train_batch_size_per_learner=asked.unroll * matches, num_epochs=asked.epochs,
        minibatch_size=asked.unroll * matches * agents // asked.minibatches, lr=asked.learning_rate, gamma=0.99,
        use_kl_loss=False,
    )  # fmt: skip
    return config.reporting(min_time_s_per_iteration=0)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--env", required=True, help="MODULE:CALLABLE")
    parser.add_argument("--runners", type=int, default=2, help="num_env_runners (0: in the main process)")
    parser.add_argument(
        "--envs", type=int, default=8, help="num_envs_per_env_runner: matches, each with all its agents"
    )
    parser.add_argument("--unroll", type=int, default=128, help="rollout_fragment_length")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--cpus", type=float, default=0.5, help="that Ray books for each process")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of every process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters a rollout")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    ray.init(
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(asked.threads)}},
        object_store_memory=1 << 30,
    )
    register_env("game", lambda _: make(asked.env))
    algo = config(asked).build_algo()
    module = algo.learner_group._learner.module["shared"]  # the runners' has no value
    print(f"{sum(p.numel() for p in module.parameters())} parameters", flush=True)
    log = Log(asked.log)
    while True:
        result = algo.train()
        log.write(steps=sum(result["env_runners"][SAMPLED].values()))


if __name__ == "__main__":
    sys.exit(main())
