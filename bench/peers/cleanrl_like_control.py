"""SAC and TD3 in CleanRL's manner: one file, one loop, one environment. Not CleanRL's own code.

    python bench/peers/cleanrl_like_control.py --algo sac --env HalfCheetah-v5 --hidden 256 --batch 256 --compile 1

Separate networks for the critics, an optimizer each for critics, actor and temperature. One update per agent step, as
sac_continuous_action.py and td3_continuous_action.py (whose actor is updated twice every second step, here once every
step in SAC). --compile 1 compiles the policy and each update (loss, backward pass, optimizer) by torch.compile, as
LeanRL does. Steps count from the first update on. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from logs import Log, small_command_line
from networks import count
from torch import Tensor, nn

FLOAT = np.float32


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Actor(nn.Module):
    """SAC's: a tanh-Gaussian, log σ in −5 … 2; TD3's: tanh."""

    def __init__(self, seen: int, space: Any, width: int, sac: bool):
        super().__init__()
        self.net = mlp(seen, width, width, (1 + sac) * space.shape[0])
        self.register_buffer("reach", torch.tensor((space.high - space.low) / 2.0))
        self.register_buffer("middle", torch.tensor((space.high + space.low) / 2.0))

    def forward(self, obs: Tensor) -> Tensor:
        """TD3's action."""
        action: Tensor = self.net(obs).tanh() * self.reach + self.middle
        return action

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """SAC's action and its log-probability."""
        mean, spread = self.net(obs).chunk(2, -1)
        spread = -5.0 + 3.5 * (spread.tanh() + 1.0)
        z = torch.randn_like(mean)
        y = (mean + spread.exp() * z).tanh()
        logp = -0.5 * z.square() - spread - 0.5 * math.log(2 * math.pi) - (self.reach * (1 - y.square()) + 1e-6).log()
        return y * self.reach + self.middle, logp.sum(-1)


class Critic(nn.Module):
    def __init__(self, seen: int, size: int, width: int):
        super().__init__()
        self.net = mlp(seen + size, width, width, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.net(torch.cat([obs, action], -1)).squeeze(-1)
        return value


class Learner:
    """Networks, optimizers, and the update of a batch."""

    def __init__(self, asked: argparse.Namespace, seen: int, space: Any):
        self.asked, self.space, self.sac = asked, space, asked.algo == "sac"
        size, width = space.shape[0], asked.hidden
        self.actor, self.actor_target = (Actor(seen, space, width, self.sac) for _ in range(2))
        self.critics, self.targets = ([Critic(seen, size, width) for _ in range(2)] for _ in range(2))
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.actor_target.load_state_dict(self.actor.state_dict())
        for to, net in zip(self.targets, self.critics, strict=True):
            to.load_state_dict(net.state_dict())
        weights = [p for net in self.critics for p in net.parameters()]
        self.optim = {"critics": self.adam(weights, 1e-3), "actor": self.adam([*self.actor.parameters()], 3e-4)}
        self.optim["alpha"] = self.adam([self.log_alpha], 1e-3)
        self.low, self.high = torch.tensor(space.low), torch.tensor(space.high)
        pairs = [*zip(self.targets, self.critics, strict=True), (self.actor_target, self.actor)]
        moved = [(a, b) for to, net in pairs for a, b in zip(to.parameters(), net.parameters(), strict=True)]
        self.to, self.weights = ([p.data for p in side] for side in zip(*moved, strict=True))
        print(f"{count(self.actor) + 2 * count(self.critics[0])} parameters", flush=True)

    def adam(self, weights: list[Any], rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(weights, torch.tensor(rate) if self.asked.compile else rate)

    def update_critics(self, obs: Tensor, after: Tensor, action: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        with torch.no_grad():
            if self.sac:
                chosen, logp = self.actor.sample(after)
                bonus = -self.log_alpha.exp() * logp
            else:
                noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5) * self.actor.reach
                chosen = torch.minimum(torch.maximum(self.actor_target(after) + noise, self.low), self.high)
                bonus = torch.zeros(())
            ahead = torch.minimum(*(net(after, chosen) for net in self.targets)) + bonus
            aim = reward + self.asked.gamma * (1.0 - done) * ahead
        losses = [F.mse_loss(net(obs, action), aim) for net in self.critics]
        loss = losses[0] + losses[1]
        self.optim["critics"].zero_grad()
        loss.backward()
        self.optim["critics"].step()
        return loss.detach()

    def update_actor(self, obs: Tensor) -> Tensor:
        if self.sac:
            chosen, logp = self.actor.sample(obs)
            value = torch.minimum(*(net(obs, chosen) for net in self.critics))
            loss = (self.log_alpha.exp().detach() * logp - value).mean()
        else:
            loss = -self.critics[0](obs, self.actor(obs)).mean()
        self.optim["actor"].zero_grad()
        loss.backward()
        self.optim["actor"].step()
        if self.sac:
            self.optim["alpha"].zero_grad()
            (-self.log_alpha.exp() * (logp.detach() - self.space.shape[0])).mean().backward()
            self.optim["alpha"].step()
        return loss.detach()

    def act(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.actor.sample(obs)[0] if self.sac else self.actor(obs)

    def move_targets(self) -> None:
        torch._foreach_lerp_(self.to, self.weights, 0.005)


def faster(work: Callable[..., Any], asked: argparse.Namespace) -> Callable[..., Any]:
    return torch.compile(work) if asked.compile else work


def main() -> None:
    parser = small_command_line(__doc__)
    parser.add_argument("--compile", type=int, choices=(0, 1), default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    env, random = gymnasium.make(asked.env), np.random.default_rng(asked.seed)
    space: Any = env.action_space
    space.seed(asked.seed)
    seen, size = env.observation_space.shape[0], space.shape[0]  # type: ignore[index]
    learner = Learner(asked, seen, space)
    act, critics, actor = (faster(f, asked) for f in (learner.act, learner.update_critics, learner.update_actor))
    kept = {k: np.zeros((asked.capacity, n), FLOAT) for k, n in (("obs", seen), ("after", seen), ("action", size))}
    kept |= {k: np.zeros(asked.capacity, FLOAT) for k in ("reward", "done")}
    log, steps, every = Log(asked.log), 0, 1 if learner.sac else 2
    obs, _ = env.reset(seed=asked.seed)
    while True:
        if steps < asked.start:
            action = space.sample()
        else:
            action = act(torch.from_numpy(obs.astype(FLOAT))[None])[0].numpy()
            if not learner.sac:
                action = np.clip(action + 0.1 * random.standard_normal(size), space.low, space.high).astype(FLOAT)
        after, reward, terminated, truncated, _ = env.step(action)
        for k, x in (("obs", obs), ("after", after), ("action", action), ("reward", reward), ("done", terminated)):
            kept[k][steps % asked.capacity] = x
        obs, steps = after, steps + 1
        if terminated or truncated:
            obs, _ = env.reset()
        if steps > asked.start:
            rows = random.integers(0, min(steps, asked.capacity), asked.batch)
            batch = {k: torch.from_numpy(x[rows]) for k, x in kept.items()}
            critics(*(batch[k] for k in ("obs", "after", "action", "reward", "done")))
            if steps % every == 0:
                actor(batch["obs"])
            if learner.sac or steps % every == 0:
                learner.move_targets()
        if log.due():
            log.write(steps=max(0, steps - asked.start), updates=max(0, steps - asked.start))


if __name__ == "__main__":
    main()
