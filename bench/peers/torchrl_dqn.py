"""TorchRL's DQN on Pong until it is stopped, one update of 32 per 4 agent steps.

    python bench/peers/torchrl_dqn.py --frames 64 --threads 2 --log log.jsonl

Collector, ε-greedy, replay, loss and target updater are TorchRL's, put together as its sota-implementations/dqn. The
environment is Gymnasium's AtariPreprocessing and FrameStackObservation in uint8, which are faster here than TorchRL's
transforms. --frames steps are collected, then --frames / 4 updates made. Its collector sets torch to one thread, which
is undone. Steps count from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import torch
from logs import Log, dqn_command_line
from networks import QNetwork, count
from tensordict.nn import TensorDictSequential
from torch import Tensor
from torchrl import collectors
from torchrl.data import Composite, LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymWrapper, ParallelEnv
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

gymnasium.register_envs(ale_py)
EVERY, BATCH = 4, 32
STORAGES = {"tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}
Collector = getattr(collectors, "Collector", None) or collectors.SyncDataCollector


class Clip(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return float((reward > 0) - (reward < 0))


class Values(QNetwork):
    """Of any number of leading dimensions, as TorchRL has none for one environment."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs.reshape(-1, *obs.shape[-3:])).reshape(*obs.shape[:-3], -1)


def pong() -> GymWrapper:
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
    return GymWrapper(Clip(gymnasium.wrappers.FrameStackObservation(env, 4)), categorical_action_encoding=True)


def train(asked: argparse.Namespace) -> None:
    made = pong()
    actor = QValueActor(
        Values(asked.network, made.action_spec.space.n),
        spec=Composite(action=made.action_spec),
        in_keys=["observation"],
    )
    print(f"{count(actor)} parameters", flush=True)
    dice = EGreedyModule(made.action_spec, eps_init=asked.epsilon, eps_end=asked.epsilon, annealing_num_steps=1)
    env = pong if asked.n_envs == 1 else (lambda: ParallelEnv(asked.n_envs, pong))
    acting = Collector(
        env, TensorDictSequential(actor, dice), frames_per_batch=asked.frames, total_frames=-1, device="cpu"
    )
    torch.set_num_threads(asked.threads)
    replay = TensorDictReplayBuffer(storage=STORAGES[asked.storage](asked.capacity), batch_size=BATCH)
    loss = DQNLoss(actor, loss_function="l2", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=2500)
    optim = torch.optim.Adam(loss.parameters(), lr=1e-4)
    log, steps, updates = Log(asked.log), 0, 0
    for rows in acting:
        replay.extend(rows.reshape(-1))
        steps += asked.frames
        while updates < (steps - asked.start) // EVERY:
            error = loss(replay.sample())["loss"]
            optim.zero_grad()
            error.backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
            optim.step()
            target.step()
            updates += 1
        if log.due():
            log.write(steps=max(0, steps - asked.start), updates=updates)
        acting.update_policy_weights_()


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--n-envs", type=int, default=1, help="more than one: ParallelEnv")
    parser.add_argument("--frames", type=int, default=64, help="frames_per_batch, a multiple of 4 and of --n-envs")
    parser.add_argument("--storage", choices=STORAGES, default="memmap")
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    torch.set_num_threads(asked.threads)
    train(asked)


if __name__ == "__main__":
    main()
