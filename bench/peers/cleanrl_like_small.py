"""A plain baseline in CleanRL's manner: one file, one loop, a Gymnasium vector of environments. Not CleanRL's own code.

    python bench/peers/cleanrl_like_small.py --algo ppo --env HalfCheetah-v5 --n-steps 256 --epochs 10 --batch 64

PPO as CleanRL's ppo.py and ppo_continuous_action.py, DQN as its dqn.py, A2C as its PPO with one pass and RMSProp.
64-64 tanh for the policy and as many for the value; DQN's 128-128 ReLU. --compile 1 compiles the policy and the whole
update (loss, backward pass, clipping, optimizer) by torch.compile, as LeanRL does. Advantages are computed by NumPy.
With --normalize 1 Gymnasium's vector wrappers scale observations and rewards. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.wrappers import vector as wrappers
from logs import Log, small_command_line
from networks import count
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

Distribution.set_default_validate_args(False)  # as LeanRL
FLOAT = np.float32


def mlp(gain: float, *sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """CleanRL's layer_init: gain √2, and `gain` for the head, no biases."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        linear, last = nn.Linear(before, after), i == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, gain if last else 2.0**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, activation()]
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, envs: Any):
        super().__init__()
        seen, space = envs.single_observation_space.shape[0], envs.single_action_space
        self.discrete = isinstance(space, gymnasium.spaces.Discrete)
        outputs = int(space.n) if self.discrete else space.shape[0]
        self.actor, self.critic = mlp(0.01, seen, 64, 64, outputs), mlp(1.0, seen, 64, 64, 1)
        if not self.discrete:
            self.logstd = nn.Parameter(torch.zeros(1, outputs))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities, entropies, values."""
        found = self.actor(obs)
        policy: Distribution = Categorical(logits=found) if self.discrete else Normal(found, self.logstd.exp())
        if action is None:
            action = policy.sample()
        logp, entropy = policy.log_prob(action), policy.entropy()
        if not self.discrete:
            logp, entropy = logp.sum(1), entropy.sum(1)
        return action, logp, entropy, self.critic(obs).squeeze(-1)


def make(asked: argparse.Namespace) -> Any:
    resets = gymnasium.vector.AutoresetMode
    mode = {"autoreset_mode": resets.NEXT_STEP if asked.normalize else resets.SAME_STEP}  # the wrappers allow no other
    envs: Any = gymnasium.make_vec(asked.env, num_envs=asked.n_envs, vectorization_mode=asked.vec, vector_kwargs=mode)
    envs = wrappers.RecordEpisodeStatistics(envs)
    if not asked.normalize:
        return envs
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(envs), gamma=asked.gamma)


def faster(work: Callable[..., Any], asked: argparse.Namespace) -> Callable[..., Any]:
    return torch.compile(work) if asked.compile else work


def advantages(
    rows: dict[str, np.ndarray], value: np.ndarray, done: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """Generalized advantage estimation; rows["done"]: before a step."""
    answer, last = np.zeros_like(rows["reward"]), np.zeros_like(value)
    for t in reversed(range(len(answer))):
        delta = rows["reward"][t] + gamma * value * (1.0 - done) - rows["value"][t]
        answer[t] = last = delta + gamma * lam * (1.0 - done) * last
        value, done = rows["value"][t], rows["done"][t]
    return answer


def policy_gradient(asked: argparse.Namespace) -> None:
    envs, clipped = make(asked), asked.algo == "ppo"
    agent = Agent(envs)
    print(f"{count(agent)} parameters", flush=True)
    rate = torch.tensor(3e-4 if clipped else 7e-4) if asked.compile else 3e-4 if clipped else 7e-4
    optim: torch.optim.Optimizer = (
        torch.optim.Adam(agent.parameters(), rate, eps=1e-5)
        if clipped
        else torch.optim.RMSprop(agent.parameters(), rate, alpha=0.99, eps=1e-5)
    )

    def update(obs: Tensor, action: Tensor, logp: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        optim.zero_grad()
        _, now, entropy, value = agent(obs, action)
        if clipped:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (now - logp).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        else:
            gain = now * advantage
        loss = -gain.mean() + 0.5 * (value - target).square().mean() - 0.0 * entropy.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optim.step()
        return loss.detach()

    act, update = faster(agent.forward, asked), faster(update, asked)
    shape, n = (asked.n_steps, asked.n_envs), asked.n_steps * asked.n_envs
    size, epochs = (min(asked.batch, n), asked.epochs) if clipped else (n, 1)
    rows = {k: np.zeros(shape, FLOAT) for k in ("logp", "reward", "done", "value")}
    rows["obs"] = np.zeros((*shape, *envs.single_observation_space.shape), FLOAT)
    kind = envs.single_action_space
    rows["action"] = np.zeros((*shape, *kind.shape), kind.dtype)
    obs, done = envs.reset(seed=asked.seed)[0].astype(FLOAT), np.zeros(asked.n_envs, FLOAT)
    log, steps = Log(asked.log), 0
    log.write(steps=0)
    while True:
        for t in range(asked.n_steps):
            rows["obs"][t], rows["done"][t] = obs, done
            with torch.no_grad():
                action, logp, _, value = act(torch.from_numpy(obs))
            rows["action"][t], rows["logp"][t], rows["value"][t] = action.numpy(), logp.numpy(), value.numpy()
            seen, reward, terminated, truncated, _ = envs.step(rows["action"][t])
            rows["reward"][t], obs, done = reward, seen.astype(FLOAT), (terminated | truncated).astype(FLOAT)
        with torch.no_grad():
            value = act(torch.from_numpy(obs))[3].numpy()
        gains = advantages(rows, value, done, asked.gamma, asked.lam if clipped else 1.0)
        every = [rows["obs"], rows["action"], rows["logp"], gains, gains + rows["value"]]
        flat = [torch.from_numpy(x.reshape(n, *x.shape[2:])) for x in every]
        for _ in range(epochs):
            for part in torch.randperm(n).split(size):
                update(*(x[part] for x in flat))
        steps += n
        if log.due():
            log.write(steps=steps)


def q_learning(asked: argparse.Namespace) -> None:
    envs = make(asked)
    seen, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    net, target = (mlp(1.0, seen, 128, 128, actions, activation=nn.ReLU) for _ in range(2))
    target.load_state_dict(net.state_dict())
    print(f"{count(net)} parameters", flush=True)
    optim = torch.optim.Adam(net.parameters(), torch.tensor(5e-4) if asked.compile else 5e-4)

    def update(obs: Tensor, after: Tensor, action: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        with torch.no_grad():
            aim = reward + asked.gamma * target(after).amax(1) * (1.0 - done)
        loss = F.mse_loss(net(obs).gather(1, action[:, None]).squeeze(1), aim)
        optim.zero_grad()
        loss.backward()
        optim.step()
        return loss.detach()

    act, update = faster(lambda x: net(x).argmax(1), asked), faster(update, asked)
    n, random, at = asked.n_envs, np.random.default_rng(asked.seed), 0
    kept: dict[str, Any] = {k: np.zeros((asked.capacity, seen), FLOAT) for k in ("obs", "after")}
    kept |= {"action": np.zeros(asked.capacity, np.int64)}
    kept |= {k: np.zeros(asked.capacity, FLOAT) for k in ("reward", "done")}
    log, steps, updates, copied = Log(asked.log), 0, 0, 0
    obs = envs.reset(seed=asked.seed)[0]
    while True:
        if random.random() < 0.05:
            action = random.integers(0, actions, n)
        else:
            with torch.no_grad():
                action = act(torch.from_numpy(obs)).numpy()
        after, reward, terminated, truncated, info = envs.step(action)
        real = after.copy()
        for lane in np.flatnonzero(terminated | truncated):
            real[lane] = info["final_obs"][lane]
        place = (at + np.arange(n)) % asked.capacity
        for k, x in zip(kept, (obs, real, action, reward, terminated), strict=True):
            kept[k][place] = x
        at, obs, steps = at + n, after, steps + n
        due = (steps - asked.start) // asked.every
        while updates < due // asked.burst * asked.burst:
            rows = random.integers(0, min(at, asked.capacity), asked.batch)
            update(*(torch.from_numpy(x[rows]) for x in kept.values()))
            updates += 1
        if steps >= copied + 1_000:
            target.load_state_dict(net.state_dict())
            copied = steps
        if log.due():
            log.write(steps=max(0, steps - asked.start), updates=updates)


def main() -> None:
    parser = small_command_line(__doc__)
    parser.add_argument("--vec", choices=("sync", "async"), default="sync")
    parser.add_argument("--compile", type=int, choices=(0, 1), default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    (q_learning if asked.algo == "dqn" else policy_gradient)(asked)


if __name__ == "__main__":
    main()
