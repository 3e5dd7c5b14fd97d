"""A plain baseline in CleanRL's manner: one file, one loop, a synchronous EnvPool. Not CleanRL's own code.

    python bench/peers/cleanrl_like.py --algo ppo --network nature --n-envs 16 --threads 2 --log log.jsonl

PPO as CleanRL's ppo_atari_envpool.py (128 steps, 4 epochs of 4 minibatches, Adam, orthogonal weights, clipped values;
with --anneal 10000000 its learning rate too), or A2C (5 steps, RMSProp, the same advantages). EnvPool steps all
environments in its own threads while the loop waits. Every step counted was learnt from. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse

import envpool
import numpy as np
import torch
from logs import Log, command_line
from networks import NETWORKS, ActorCritic, count
from torch import Tensor, nn
from torch.distributions import Categorical


class Rollouts:
    """What was seen, done and said: [steps, envs, …]."""

    def __init__(self, steps: int, envs: int, shape: tuple[int, ...]):
        self.obs = torch.zeros((steps, envs, *shape), dtype=torch.uint8)
        self.actions = torch.zeros((steps, envs), dtype=torch.long)
        self.logprobs, self.rewards, self.dones, self.values = (torch.zeros(steps, envs) for _ in range(4))


def advantages(kept: Rollouts, value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimation."""
    answer, last = torch.zeros_like(kept.rewards), torch.zeros_like(value)
    for t in reversed(range(len(answer))):
        delta = kept.rewards[t] + gamma * value * (1.0 - done) - kept.values[t]
        answer[t] = last = delta + gamma * lam * (1.0 - done) * last
        value, done = kept.values[t], kept.dones[t]
    return answer


def update(net: nn.Module, optim: torch.optim.Optimizer, rows: list[Tensor], asked: argparse.Namespace) -> None:
    """One step on some rows: PPO's clipped loss, or A2C's."""
    obs, actions, logprobs, advantage, returns, before = rows
    logits, values = net(obs)
    policy = Categorical(logits=logits)
    now, error = policy.log_prob(actions), (values - returns).square()
    if asked.algo == "ppo":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (now - logprobs).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
        error = torch.max(error, (before + (values - before).clamp(-0.1, 0.1) - returns).square())
    else:
        gain = now * advantage
    loss = -gain.mean() + 0.25 * error.mean() - 0.01 * policy.entropy().mean()
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optim.step()


def learn(net: nn.Module, optim: torch.optim.Optimizer, rows: list[Tensor], asked: argparse.Namespace) -> None:
    if asked.algo == "a2c":
        update(net, optim, rows, asked)
        return
    size = len(rows[0]) // asked.minibatches
    for _ in range(asked.epochs):
        for part in torch.randperm(len(rows[0])).split(size):
            update(net, optim, [r[part] for r in rows], asked)


def orthogonal(net: ActorCritic) -> None:
    """CleanRL's layer_init: gain √2, 0.01 and 1 for the heads, no biases."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            gain = 0.01 if layer is net.policy else 1.0 if layer is net.value else 2.0**0.5
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)


class Scores:
    """Unclipped returns of whole games, as CleanRL's RecordEpisodeStatistics: EnvPool's info has each step's reward."""

    def __init__(self, envs: int, log: Log):
        self.sums, self.log = np.zeros(envs), log

    def add(self, info: dict, done: np.ndarray) -> None:
        self.sums += info["reward"]
        for lane in np.flatnonzero(done & (info["lives"] == 0)):
            self.log.game(self.sums[lane])
            self.sums[lane] = 0.0


def train(asked: argparse.Namespace) -> None:
    more = {"num_threads": asked.env_threads} if asked.env_threads else {}
    envs = envpool.make(
        asked.env, env_type="gym", num_envs=asked.n_envs, episodic_life=True, reward_clip=True, seed=asked.seed, **more
    )
    net = ActorCritic(asked.network, envs.action_space.n)
    print(f"{count(net)} parameters", flush=True)
    if asked.algo == "ppo":
        orthogonal(net)
        optim: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), 2.5e-4, eps=1e-5)
    else:
        optim = torch.optim.RMSprop(net.parameters(), 7e-4, alpha=0.99, eps=1e-5)
    kept = Rollouts(asked.n_steps, asked.n_envs, (4, 84, 84))
    obs, done = torch.from_numpy(envs.reset()[0]), torch.zeros(asked.n_envs)
    log, steps = Log(asked.log), 0
    log.write(steps=0)
    scores = Scores(asked.n_envs, log)
    while True:
        if asked.anneal:
            optim.param_groups[0]["lr"] = 2.5e-4 * max(0.0, 1.0 - steps / asked.anneal)
        for t in range(asked.n_steps):
            kept.obs[t], kept.dones[t] = obs, done
            with torch.no_grad():
                logits, kept.values[t] = net(obs)
                policy = Categorical(logits=logits)
                action = kept.actions[t] = policy.sample()
                kept.logprobs[t] = policy.log_prob(action)
            seen, reward, terminated, truncated, info = envs.step(action.numpy().astype(np.int32))
            scores.add(info, terminated | truncated)
            obs, done = torch.from_numpy(seen), torch.from_numpy((terminated | truncated).astype(np.float32))
            kept.rewards[t] = torch.from_numpy(reward)
        with torch.no_grad():
            value = net(obs)[1]
        advantage = advantages(kept, value, done, 0.99, 0.95 if asked.algo == "ppo" else 1.0)
        rows = [kept.obs, kept.actions, kept.logprobs, advantage, advantage + kept.values, kept.values]
        learn(net, optim, [r.flatten(0, 1) for r in rows], asked)
        steps += asked.n_steps * asked.n_envs
        if log.due():
            log.write(steps=steps)


def main() -> None:
    parser = command_line(__doc__, NETWORKS)
    parser.add_argument("--algo", choices=("a2c", "ppo"), default="ppo")
    parser.add_argument("--env", default="Pong-v5")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--env-threads", type=int, default=0, help="EnvPool's num_threads (0: its own choice)")
    parser.add_argument("--n-steps", type=int, help="default: 5 (A2C), 128 (PPO)")
    parser.add_argument("--epochs", type=int, default=4, help="of PPO")
    parser.add_argument("--minibatches", type=int, default=4, help="of PPO")
    parser.add_argument("--anneal", type=int, default=0, help="steps until PPO's learning rate is 0")
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads")
    asked = parser.parse_args()
    asked.n_steps = asked.n_steps or {"a2c": 5, "ppo": 128}[asked.algo]
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    train(asked)


if __name__ == "__main__":
    main()
