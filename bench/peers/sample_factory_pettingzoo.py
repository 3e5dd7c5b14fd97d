"""Sample Factory's APPO on a PettingZoo ParallelEnv, one policy in all seats, until it is stopped.

    python bench/peers/sample_factory_pettingzoo.py --env mpe2.simple_spread_v3:parallel_env --log log.jsonl

It has no wrapper for such environments, but an interface for several agents, which `Game` has. Workers, shared
buffers, inference, network (two layers of 64 tanh units, the value has its own), learner and loss are Sample
Factory's; so is every other flag (--num_workers, --num_envs_per_worker, --worker_num_splits, --rollout, --batch_size,
--serial_mode …). Steps are those that its learner has learnt from, one agent's action each. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import tempfile
import threading
import time
from typing import Any

import gymnasium
from logs import Log
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

SIZE = ("--encoder_mlp_layers", "64", "64", "--nonlinearity", "tanh", "--actor_critic_share_weights", "False")
PLAIN = ("--use_rnn", "False", "--normalize_input", "False", "--normalize_returns", "False", "--device", "cpu")


class Game(gymnasium.Env):
    """Lists with an item for each agent. Whoever plays a match ends with it, and the next one begins."""

    is_multiagent = True

    def __init__(self, name: str):
        module, _, call = name.partition(":")
        self.match = getattr(importlib.import_module(module), call)()
        self.names = list(self.match.possible_agents)
        self.num_agents = len(self.names)
        self.observation_space = self.match.observation_space(self.names[0])
        self.action_space = self.match.action_space(self.names[0])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[list, list]:
        obs, infos = self.match.reset(seed=seed, options=options)
        return [obs[name] for name in self.names], [infos[name] for name in self.names]

    def step(self, action: Any) -> tuple[list, list, list, list, list]:
        found = self.match.step({name: int(one) for name, one in zip(self.names, action, strict=True)})
        obs, rewards, terminated, truncated, infos = ([each[name] for name in self.names] for each in found)
        if not self.match.agents:
            obs, _ = self.reset()
        return obs, rewards, terminated, truncated, infos


def make(which: str, name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Game:
    return Game(which)


class Count(AlgoObserver):
    """Writes the learner's counter down from a thread."""

    def __init__(self, log: Log):
        self.log = log

    def on_start(self, runner: Any) -> None:
        threading.Thread(target=self.watch, args=(runner,), daemon=True).start()

    def watch(self, runner: Any) -> None:
        last = -1
        while True:
            steps = runner.env_steps.get(0, 0)
            if steps != last:
                self.log.write(steps=steps)
            last = steps
            time.sleep(0.25)


def settings(asked: argparse.Namespace, more: list[str], place: str) -> Any:
    register_env("game", functools.partial(make, asked.env))
    words = ["--env", "game", "--train_dir", place, "--num_epochs", str(asked.epochs), *SIZE, *PLAIN]
    words += ["--num_batches_per_epoch", str(asked.minibatches), "--learning_rate", str(asked.learning_rate)]
    words += ["--seed", str(asked.seed), "--save_every_sec", "100000", "--train_for_env_steps", str(10**10)]
    parser, _ = parse_sf_args(argv=[*words, *more])
    return parse_full_cfg(parser, [*words, *more])


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--env", required=True, help="MODULE:CALLABLE")
    parser.add_argument("--epochs", type=int, default=4, help="passes over each sample")
    parser.add_argument("--minibatches", type=int, default=4, help="of a pass, --batch_size samples each")
    parser.add_argument("--learning-rate", "--learning_rate", type=float, default=2.5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters, four a second at most")
    asked, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        _, runner = make_runner(settings(asked, more, place))
        runner.register_observer(Count(Log(asked.log)))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
