"""Runs astooke/rlpyt's DQN (2020-09, f04f23d) from its own checkout on Pong until stopped, an update of 32 per 4 steps.

    python bench/peers/rlpyt_dqn.py --path rlpyt --lanes 1 --unroll 4 --threads 2 --log log.jsonl

Sampler, agent, algorithm, frame-wise replay, runner and Atari environment are the repository's own, synchronous: its
asynchronous runner does not keep a ratio of updates to steps. What is replaced is said in rlpyt_atari.py. Steps count
from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from logs import Log, dqn_command_line
from networks import QNetwork, count
from rlpyt_atari import SIDE, shims

EVERY, BATCH = 4, 32


def model(network: str) -> type:
    """A class with the interface of rlpyt's AtariDqnModel."""
    from rlpyt.utils.tensor import infer_leading_dims, restore_leading_dims

    class Model(torch.nn.Module):
        def __init__(self, image_shape: tuple[int, ...], output_size: int):
            super().__init__()
            self.net = QNetwork(network, output_size, tuple(image_shape))

        def forward(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
            lead, t, b, shape = infer_leading_dims(observation, 3)
            return restore_leading_dims(self.net(observation.reshape(t * b, *shape)), lead, t, b)

    return Model


def sampler(asked: argparse.Namespace) -> Any:
    from rlpyt.envs.atari import atari_env
    from rlpyt.samplers.parallel.cpu.sampler import CpuSampler
    from rlpyt.samplers.parallel.gpu.sampler import GpuSampler
    from rlpyt.samplers.serial.sampler import SerialSampler

    atari_env.W = atari_env.H = SIDE
    kinds = {"serial": SerialSampler, "cpu": CpuSampler, "served": GpuSampler}
    return kinds[asked.sampler](
        EnvCls=atari_env.AtariEnv, env_kwargs={"game": asked.game}, TrajInfoCls=atari_env.AtariTrajInfo,
        batch_T=asked.unroll, batch_B=asked.lanes, max_decorrelation_steps=0,
    )  # fmt: skip


def counting(algo: Any, size: int, log: Log, agent: Any) -> None:
    """Steps since the first update, and updates, are noted after each of the algorithm's turns."""
    inner = algo.optimize_agent

    def optimize(itr: int, samples: Any = None) -> Any:
        answer = inner(itr, samples)
        if itr == 0:
            print(f"{count(agent.model)} parameters", flush=True)
        if log.due():
            log.write(steps=max(0, itr + 1 - algo.min_itr_learn) * size, updates=algo.update_counter)
        return answer

    algo.optimize_agent = optimize


def train(asked: argparse.Namespace) -> None:
    from rlpyt.agents.dqn.atari.atari_dqn_agent import AtariDqnAgent
    from rlpyt.algos.dqn.dqn import DQN
    from rlpyt.runners.minibatch_rl import MinibatchRl
    from rlpyt.utils.logging.context import logger_context

    size = asked.lanes * asked.unroll
    if size % EVERY:
        raise SystemExit(f"--lanes {asked.lanes} x --unroll {asked.unroll}: a multiple of {EVERY} is allowed")
    memory: dict[str, Any] = {"replay_size": asked.capacity, "min_steps_learn": asked.start}
    algo = DQN(batch_size=BATCH, replay_ratio=BATCH // EVERY, learning_rate=1e-4, target_update_interval=2500, **memory)
    agent = AtariDqnAgent(ModelCls=model(asked.network), eps_init=asked.epsilon, eps_final=asked.epsilon)
    counting(algo, size, Log(asked.log), agent)
    affinity = {"workers_cpus": list(range(asked.workers)), "master_torch_threads": asked.threads}
    affinity |= {"set_affinity": False, "worker_torch_threads": 1}
    every: Any = {"n_steps": 10**9, "log_interval_steps": 10**8, "seed": asked.seed, "affinity": affinity}
    with tempfile.TemporaryDirectory() as place, logger_context(place, 0, "bench", override_prefix=True):
        MinibatchRl(algo=algo, agent=agent, sampler=sampler(asked), **every).train()


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--path", type=Path, required=True, help="a checkout of astooke/rlpyt")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--lanes", type=int, default=1, help="batch_B")
    parser.add_argument("--unroll", type=int, default=4, help="batch_T; times lanes a multiple of 4")
    parser.add_argument("--sampler", choices=("serial", "cpu", "served"), default="serial", help="served: GpuSampler")
    parser.add_argument("--workers", type=int, default=2, help="sampling processes, unless serial")
    asked = parser.parse_args()
    shims(asked.path.resolve())
    torch.set_num_threads(asked.threads)
    train(asked)


if __name__ == "__main__":
    main()
