"""Stable-Baselines3 on a Gymnasium environment that is no Atari game: a line of JSON with steps, seconds and score.

    python bench/peers/sb3_gymnasium.py --algo ppo --env CartPole-v1 --steps 100000 --seed 0 --target 450
    python bench/peers/sb3_gymnasium.py --algo ppo --env Hopper-v5 --steps 500000 --target 2000 --settings zoo

MlpPolicy. Settings `defaults`: one environment, no wrapper but its Monitor. `zoo`: those of RL Baselines3 Zoo
(hyperparams/ at 22e3ff2), which schedules, wrappers and environments are part of; the number of steps isn't.
Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize


def falling(start: float) -> Callable[[float], float]:
    """`lin_START`."""
    return lambda left: left * start


HOPPER: dict[str, Any] = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": torch.nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
LANDER: dict[str, Any] = {"n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999}
LANDER |= {"n_epochs": 4, "ent_coef": 0.01}
PPO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
    | {"ent_coef": 0.0, "learning_rate": falling(0.001), "clip_range": falling(0.2)},
    "Acrobot-v1": {"normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4}
    | {"ent_coef": 0.0},
    "Pendulum-v1": {"n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0}
    | {"learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4},
    "LunarLander-v3": LANDER,
    "LunarLanderContinuous-v3": LANDER,
    "BipedalWalker-v3": {"normalize": True, "n_envs": 32, "n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95}
    | {"gamma": 0.999, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4, "clip_range": 0.18},
    "Hopper-v5": {"normalize": True, "n_envs": 1, "n_steps": 512, "batch_size": 32, "gamma": 0.999, "n_epochs": 5}
    | {"learning_rate": 9.80828e-05, "ent_coef": 0.00229519, "clip_range": 0.2, "gae_lambda": 0.99}
    | {"max_grad_norm": 0.7, "vf_coef": 0.835671, "policy_kwargs": HOPPER},
}

WIDE = {"policy_kwargs": {"net_arch": [400, 300]}}
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
CAR = {"learning_rate": 3e-4, "buffer_size": 50_000, "batch_size": 512, "ent_coef": 0.1, "train_freq": 32}
CAR |= {"gradient_steps": 32, "gamma": 0.9999, "tau": 0.01, "learning_starts": 0, "use_sde": True}
WALKER = {"learning_rate": 7.3e-4, "buffer_size": 300_000, "gamma": 0.98, "tau": 0.02, "train_freq": 64}
WALKER |= {"gradient_steps": 64, "learning_starts": 10_000, "use_sde": True}
SAC: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"learning_rate": 1e-3},
    "MountainCarContinuous-v0": {**CAR, "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]}},
    "LunarLanderContinuous-v3": {"learning_rate": falling(7.3e-4), "tau": 0.01, "learning_starts": 10_000, **WIDE},
    "BipedalWalker-v3": {**WALKER, "policy_kwargs": {"log_std_init": -3, "net_arch": [400, 300]}},
    **{env: {"learning_starts": 10_000} for env in MUJOCO},
}
NOISY = {"learning_starts": 10_000, "noise": 0.1, "learning_rate": 1e-3, "batch_size": 256, **WIDE}
SWING = {**NOISY, "gamma": 0.98, "buffer_size": 200_000}
TD3: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("Pendulum-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3"), SWING),
    **dict.fromkeys(MUJOCO, NOISY),
}
DQN: dict[str, dict[str, Any]] = {
    "MountainCar-v0": {"learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1_000}
    | {"gamma": 0.98, "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8}
    | {"exploration_fraction": 0.2, "exploration_final_eps": 0.07, "policy_kwargs": {"net_arch": [256, 256]}},
}
ZOO = {"ppo": PPO, "sac": SAC, "td3": TD3, "dqn": DQN}


class Watch(BaseCallback):
    """The time at which the mean return of the last games, or of 20 at least, first reached the target."""

    def __init__(self, target: float, every: float, cap: float, window: int):
        super().__init__()
        self.cap = cap  # seconds; 0: none, and it goes on after the target
        self.target, self.every, self.begun = target, every, time.monotonic()
        self.returns = deque[float](maxlen=window)
        self.reached: float | None = None
        self.curve: list[tuple[int, float]] = []  # (steps, mean return), now and then

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" not in info:
                continue
            self.returns.append(info["episode"]["r"])
            if self.reached is None and len(self.returns) >= 20 and fmean(self.returns) >= self.target:
                self.reached = time.monotonic() - self.begun
        if self.returns and self.num_timesteps >= len(self.curve) * self.every:
            self.curve.append((self.num_timesteps, fmean(self.returns)))
        return not self.cap or (self.reached is None and time.monotonic() - self.begun < self.cap)


def play_games(model: Any, world: gymnasium.Env, normalized: VecNormalize | None, starts: int) -> list[float]:
    """The returns of 100 games by the likeliest actions."""
    returns = []
    for i in range(100):
        (seen, _), total, over = world.reset(seed=starts + i), 0.0, False
        while not over:
            action, _ = model.predict(
                seen if normalized is None else normalized.normalize_obs(seen), deterministic=True
            )
            seen, reward, ended, out_of_time, _ = world.step(action)
            total, over = total + float(reward), ended or out_of_time
        returns.append(total)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("a2c", "ppo", "dqn", "ddpg", "td3", "sac"), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--cap", type=float, default=0.0, help="end after so many seconds, or at the target; no score")
    parser.add_argument("--window", type=int, default=100, help="games of a mean")
    parser.add_argument("--starts", type=int, help="the score is by likeliest actions, game i from seed STARTS + i")
    parser.add_argument("--threads", type=int, default=1, help="two are slower for all but the widest networks")
    parser.add_argument("--settings", choices=("defaults", "zoo"), default="defaults")
    asked = parser.parse_args()
    if asked.settings == "zoo" and asked.env not in ZOO.get(asked.algo, {}):
        parser.error(f"--settings zoo: {'; '.join(f'{algo} on {chr(44).join(envs)}' for algo, envs in ZOO.items())}")
    torch.set_num_threads(asked.threads)

    settings = dict(ZOO[asked.algo][asked.env]) if asked.settings == "zoo" else {}
    normalize, lanes = settings.pop("normalize", False), settings.pop("n_envs", 1)
    envs, games = make_vec_env(asked.env, lanes, seed=asked.seed), make_vec_env(asked.env, 1, seed=asked.seed + 1000)
    if normalize:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    if (deviation := settings.pop("noise", None)) is not None:
        size = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, deviation))
    model = getattr(stable_baselines3, asked.algo.upper())("MlpPolicy", envs, seed=asked.seed, device="cpu", **settings)
    watch = Watch(asked.target, asked.steps / 100, asked.cap, asked.window)
    model.learn(asked.steps, callback=watch)
    seconds = time.monotonic() - watch.begun
    if asked.cap:
        print(json.dumps({"steps": watch.num_timesteps, "seconds": seconds, "reached": watch.reached}))
        return
    if normalize:
        games = VecNormalize(games, training=False, norm_reward=False)
        games.obs_rms = envs.obs_rms
    sampled = asked.algo in ("a2c", "ppo")
    if asked.starts is not None:
        returns = play_games(model, gymnasium.make(asked.env), games if normalize else None, asked.starts)
    else:
        returns, _ = evaluate_policy(model, games, 100, deterministic=not sampled, return_episode_rewards=True)
    found = {"steps": asked.steps, "seconds": seconds, "reached": watch.reached, "curve": watch.curve}
    print(json.dumps({**found, "returns": returns}))


if __name__ == "__main__":
    main()
