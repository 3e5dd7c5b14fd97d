"""A plain baseline in CleanRL's manner: one file, one loop. Not CleanRL's own code.

    python bench/peers/cleanrl_like_dqn.py --n-envs 1 --threads 2 --log log.jsonl

DQN as CleanRL's dqn_atari.py (Adam at 1e-4, squared error, a replay that keeps every stack once, target network every
1000 steps), one update of 32 per 4 agent steps; EnvPool instead of Gymnasium's wrappers. With several environments it
steps all of them, then makes as many updates as are due. Steps count from the first update on. Knows nothing of
Polyplay.
"""

from __future__ import annotations

import argparse

import envpool
import numpy as np
import torch
import torch.nn.functional as F
from logs import Log, dqn_command_line
from networks import QNetwork, count
from torch import Tensor

BATCH, EVERY, TARGET = 32, 4, 1000  # rows an update; agent steps an update; agent steps between copies


class Buffer:
    """Every environment's stacks [rows, envs, 4, 84, 84] in a ring; what follows a row is the next one."""

    def __init__(self, capacity: int, envs: int, seed: int):
        self.rows, self.envs, self.at, self.full = capacity // envs, envs, 0, False
        self.obs = np.zeros((self.rows, envs, 4, 84, 84), np.uint8)
        self.actions = np.zeros((self.rows, envs), np.int64)
        self.rewards, self.dones = (np.zeros((self.rows, envs), np.float32) for _ in range(2))
        self.random = np.random.default_rng(seed)

    def add(self, obs: np.ndarray, after: np.ndarray, *rest: np.ndarray) -> None:
        """A step of every environment. `after` is written where the next step will be, as CleanRL's replay does."""
        self.obs[self.at], self.obs[(self.at + 1) % self.rows] = obs, after
        self.actions[self.at], self.rewards[self.at], self.dones[self.at] = rest
        self.at = (self.at + 1) % self.rows
        self.full |= self.at == 0

    def sample(self) -> list[Tensor]:
        """obs, what followed, actions, rewards, dones: BATCH rows, none of them the one being written."""
        if self.full:
            row = (self.random.integers(1, self.rows, BATCH) + self.at) % self.rows
        else:
            row = self.random.integers(0, self.at, BATCH)
        lane = self.random.integers(0, self.envs, BATCH)
        found = (self.obs[row, lane], self.obs[(row + 1) % self.rows, lane])
        rest = (self.actions[row, lane], self.rewards[row, lane], self.dones[row, lane])
        return [torch.from_numpy(a) for a in (*found, *rest)]


def update(net: QNetwork, target: QNetwork, optim: torch.optim.Optimizer, rows: list[Tensor]) -> None:
    obs, after, actions, rewards, dones = rows
    with torch.no_grad():
        aim = rewards + 0.99 * target(after).amax(1) * (1.0 - dones)
    loss = F.mse_loss(net(obs).gather(1, actions[:, None]).squeeze(1), aim)
    optim.zero_grad()
    loss.backward()
    optim.step()


def act(net: QNetwork, obs: np.ndarray, epsilon: float, random: np.random.Generator) -> np.ndarray:
    """CleanRL throws the dice once for all environments."""
    actions = net.values.out_features
    if random.random() < epsilon:
        return random.integers(0, actions, len(obs)).astype(np.int32)
    with torch.no_grad():
        return net(torch.from_numpy(obs)).argmax(1).numpy().astype(np.int32)


def train(asked: argparse.Namespace) -> None:
    more = {"num_threads": asked.env_threads} if asked.env_threads else {}
    n = asked.n_envs
    envs = envpool.make(
        asked.env, env_type="gym", num_envs=n, episodic_life=True, reward_clip=True, seed=asked.seed, **more
    )
    net, target = (QNetwork(asked.network, envs.action_space.n) for _ in range(2))
    print(f"{count(net)} parameters", flush=True)
    target.load_state_dict(net.state_dict())
    optim = torch.optim.Adam(net.parameters(), 1e-4)
    buffer, random = Buffer(asked.capacity, n, asked.seed), np.random.default_rng(asked.seed)
    log, steps, updates, copied = Log(asked.log), 0, 0, 0
    obs = envs.reset()[0]
    while True:
        action = act(net, obs, asked.epsilon, random)
        after, reward, terminated, truncated, _ = envs.step(action)
        buffer.add(obs, after, action, reward, terminated | truncated)
        obs, steps = after, steps + n
        while updates < (steps - asked.start) // EVERY:
            update(net, target, optim, buffer.sample())
            updates += 1
        if steps >= copied + TARGET:
            target.load_state_dict(net.state_dict())
            copied = steps
        if log.due():
            log.write(steps=max(0, steps - asked.start), updates=updates)


def main() -> None:
    parser = dqn_command_line(__doc__)
    parser.add_argument("--env", default="Pong-v5")
    parser.add_argument("--n-envs", type=int, default=1)
    parser.add_argument("--env-threads", type=int, default=0, help="EnvPool's num_threads (0: its own choice)")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    train(asked)


if __name__ == "__main__":
    main()
