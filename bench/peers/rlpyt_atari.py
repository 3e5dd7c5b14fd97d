"""Runs astooke/rlpyt (2020-09, f04f23d) from its own checkout: A2C or PPO, its CPU sampler, on Pong until stopped.

    python bench/peers/rlpyt_atari.py --path rlpyt --algo a2c --network nature --lanes 32 --workers 2 --log log.jsonl

Sampler, workers, collectors, agent, algorithm, runner and Atari environment are the repository's own. Replaced:
`atari_py` by ale-py; its frames of 104×80 (other networks' 84×84, by its own cropping and resizing), and its model by
the one that all peers train (networks.py); --network own leaves both. Every step counted was learnt from. Knows nothing
of Polyplay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import ale_py
import cv2
import numpy as np
import torch
from ale_py import roms
from logs import Log, command_line
from networks import NETWORKS, ActorCritic, count
from oldgym import install

SIDE = 84


class ALE(ale_py.ALEInterface):
    """atari_py's: names are bytes, actions numbers."""

    def setFloat(self, name: bytes, value: float) -> None:
        super().setFloat(name.decode(), value)

    def getMinimalActionSet(self) -> list[int]:
        return [int(a.value) for a in super().getMinimalActionSet()]


def shims(code: Path) -> None:
    """What the repository of 2020 imports and numpy called otherwise."""
    sys.path.insert(0, str(code))
    if not hasattr(np, "bool"):
        np.bool = bool  # type: ignore[assignment]
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    install("atari_py", ALEInterface=ALE, get_game_path=lambda game: str(roms.get_rom_path(game)))
    cv2.setNumThreads(1)


def model(network: str) -> type:
    """A class with the interface of rlpyt's AtariFfModel."""
    from rlpyt.utils.tensor import infer_leading_dims, restore_leading_dims

    class Model(torch.nn.Module):
        def __init__(self, image_shape: tuple[int, ...], output_size: int):
            super().__init__()
            self.net = ActorCritic(network, output_size, tuple(image_shape))

        def forward(self, image: Any, prev_action: Any, prev_reward: Any) -> Any:
            lead, t, b, shape = infer_leading_dims(image, 3)
            logits, value = self.net(image.reshape(t * b, *shape))
            return restore_leading_dims((torch.softmax(logits, -1), value), lead, t, b)

    return Model


def algorithm(asked: argparse.Namespace) -> Any:
    """With the settings of rlpyt's own configurations for Atari."""
    if asked.algo == "a2c":
        from rlpyt.algos.pg.a2c import A2C

        return A2C(discount=0.99, learning_rate=3e-4, value_loss_coeff=0.5, entropy_loss_coeff=0.01, clip_grad_norm=1.0)
    from rlpyt.algos.pg.ppo import PPO

    passes = {"epochs": asked.epochs, "minibatches": asked.minibatches, "gae_lambda": 0.98}
    passes |= {"linear_lr_schedule": asked.anneal > 0, "entropy_loss_coeff": 0.01}
    return PPO(discount=0.99, learning_rate=1e-3, value_loss_coeff=1.0, clip_grad_norm=1.0, **passes)


def counting(algo: Any, size: int, log: Log, agent: Any) -> None:
    """Steps are noted after each of the algorithm's updates."""
    inner = algo.optimize_agent

    def optimize(itr: int, samples: Any) -> Any:
        answer = inner(itr, samples)
        if itr == 0:
            print(f"{count(agent.model)} parameters", flush=True)
        if log.due():
            log.write(steps=(itr + 1) * size)
        return answer

    algo.optimize_agent = optimize


def scoring(runner: Any, log: Log) -> None:
    """Scores of the games that its trajectories tell of, unclipped."""
    inner = runner.store_diagnostics

    def store(itr: int, games: list, opt_info: Any) -> None:
        for game in games:
            log.game(game["GameScore"])
        inner(itr, games, opt_info)

    runner.store_diagnostics = store


def train(asked: argparse.Namespace) -> None:
    from rlpyt.agents.pg.atari import AtariFfAgent
    from rlpyt.envs.atari import atari_env
    from rlpyt.runners.minibatch_rl import MinibatchRl
    from rlpyt.samplers.parallel.cpu import collectors
    from rlpyt.samplers.parallel.cpu.sampler import CpuSampler
    from rlpyt.utils.logging.context import logger_context

    if asked.network != "own":
        atari_env.W = atari_env.H = SIDE
    sampler = CpuSampler(
        EnvCls=atari_env.AtariEnv, env_kwargs={"game": asked.game}, CollectorCls=collectors.CpuWaitResetCollector,
        TrajInfoCls=atari_env.AtariTrajInfo, batch_T=asked.unroll, batch_B=asked.lanes,
        max_decorrelation_steps=asked.decorrelation,
    )  # fmt: skip
    algo, log = algorithm(asked), Log(asked.log)
    agent = AtariFfAgent() if asked.network == "own" else AtariFfAgent(ModelCls=model(asked.network))
    counting(algo, asked.unroll * asked.lanes, log, agent)
    affinity = {"workers_cpus": list(range(asked.workers)), "master_torch_threads": asked.threads}
    affinity |= {"set_affinity": False, "worker_torch_threads": asked.worker_threads}
    runner = MinibatchRl(
        algo=algo, agent=agent, sampler=sampler, n_steps=asked.anneal or 10**9, seed=asked.seed, affinity=affinity
    )
    scoring(runner, log)
    with tempfile.TemporaryDirectory() as place, logger_context(place, 0, "bench", override_prefix=True):
        runner.train()


def main() -> None:
    parser = command_line(__doc__, NETWORKS, own=True)
    parser.add_argument("--path", type=Path, required=True, help="a checkout of astooke/rlpyt")
    parser.add_argument("--algo", choices=("a2c", "ppo"), default="a2c")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--lanes", type=int, default=32, help="batch_B")
    parser.add_argument("--unroll", type=int, help="batch_T; default: 5 (A2C), 128 (PPO)")
    parser.add_argument("--decorrelation", type=int, default=50, help="max_decorrelation_steps")
    parser.add_argument(
        "--anneal", type=int, default=0, help="steps until PPO's learning rate is 0, and that it trains"
    )
    parser.add_argument("--workers", type=int, default=2, help="sampling processes")
    parser.add_argument("--epochs", type=int, default=4, help="of PPO")
    parser.add_argument("--minibatches", type=int, default=4, help="of PPO")
    parser.add_argument("--threads", type=int, default=2, help="torch's, of the learning process")
    parser.add_argument("--worker-threads", type=int, default=1, help="torch's, of a sampling process")
    asked = parser.parse_args()
    asked.unroll = asked.unroll or {"a2c": 5, "ppo": 128}[asked.algo]
    shims(asked.path.resolve())
    train(asked)


if __name__ == "__main__":
    main()
