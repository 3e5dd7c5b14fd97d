"""sb3-contrib's MaskablePPO plays PettingZoo's connect four against itself, and keeps its policy every so many moves.

    python bench/peers/sb3_connect_four.py --moves 4000000 --out DIR

The manner of PettingZoo's own tutorial: the environment seems to have one player, who moves for both sides in turn and
is shown the board of who is to move; a move is rewarded with what its player gets at once, so a loser learns of a
defeat only through the value of the board. Each file of DIR has the policy's layers (`w0`, `b0`, … of tanh units, then
logits), the moves played and the seconds of training so far. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from pettingzoo.classic import connect_four_v3
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

LANES, UNROLL = 64, 64
SETTINGS: dict[str, Any] = {"n_steps": UNROLL, "batch_size": LANES * UNROLL // 4, "n_epochs": 4, "gamma": 0.997}
SETTINGS |= {"gae_lambda": 0.95, "ent_coef": 0.01, "vf_coef": 1.0, "max_grad_norm": 0.5, "normalize_advantage": True}
SETTINGS |= {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.1 * left + 1e-9}


class BothSides(gymnasium.Env[np.ndarray, int]):
    def __init__(self) -> None:
        self.game = connect_four_v3.env()
        self.action_space = gymnasium.spaces.Discrete(7)
        self.observation_space = gymnasium.spaces.Box(0, 1, (6, 7, 2), np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.game.reset(seed)
        return self.shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        mover = self.game.agent_selection
        self.game.step(int(action))
        over = self.game.terminations[mover] or self.game.truncations[mover]
        return self.shown(), float(self.game.rewards[mover]), over, False, {}

    def shown(self) -> np.ndarray:
        seen = self.game.observe(self.game.agent_selection)
        self.mask = seen["action_mask"].astype(bool) if seen["action_mask"].any() else np.ones(7, bool)
        return np.asarray(seen["observation"], np.int8)

    def action_masks(self) -> np.ndarray:
        return self.mask


class Keep(BaseCallback):
    def __init__(self, out: Path, every: int):
        super().__init__()
        self.out, self.every, self.next, self.begun = out, every, 0, 0.0

    def _on_rollout_start(self) -> None:
        self.begun = self.begun or time.perf_counter()
        if self.num_timesteps >= self.next:
            self.next += self.every
            policy = self.model.policy
            layers = [x for x in policy.mlp_extractor.policy_net if isinstance(x, torch.nn.Linear)]
            arrays = {}
            for i, layer in enumerate([*layers, policy.action_net]):
                arrays |= {f"w{i}": layer.weight.detach().numpy(), f"b{i}": layer.bias.detach().numpy()}
            seconds = time.perf_counter() - self.begun
            np.savez(self.out / f"{self.num_timesteps:09d}.npz", moves=self.num_timesteps, seconds=seconds, **arrays)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, required=True)
    parser.add_argument("--every", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True)
    torch.set_num_threads(2)
    envs = DummyVecEnv([BothSides] * LANES)
    model = MaskablePPO("MlpPolicy", envs, seed=asked.seed, device="cpu", **SETTINGS)
    keep = Keep(asked.out, asked.every)
    model.learn(asked.moves, callback=keep)
    keep.next = 0
    keep._on_rollout_start()


if __name__ == "__main__":
    main()
