"""sb3-contrib's MaskablePPO plays PettingZoo's connect four against itself, and keeps its policy every so many moves.

    python bench/peers/sb3_connect_four.py --moves 5000000 --out DIR

Stable-Baselines3 knows one player, so the environment has the other one: the policy of the moment, which answers all
games at once. The learner begins every second game of a place. It is rewarded with 1 for a win and -1 for a loss, and
learns from its own moves, half of those played. Each file of DIR has the policy's layers (`w0`, `b0`, … of tanh units,
then logits), the moves played by both, and the seconds of training so far. Knows nothing of Polyplay.
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
from stable_baselines3.common.vec_env import VecEnv

LANES, UNROLL = 64, 64
SETTINGS: dict[str, Any] = {"n_steps": UNROLL, "batch_size": LANES * UNROLL // 4, "n_epochs": 4, "gamma": 1.0}
SETTINGS |= {"gae_lambda": 0.9, "ent_coef": 0.1, "vf_coef": 1.0, "max_grad_norm": 0.5, "normalize_advantage": True}
SETTINGS |= {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.1 * left + 1e-9}
SETTINGS |= {"policy_kwargs": {"net_arch": {"pi": [256, 256], "vf": [256, 256]}}}


class SelfPlay(VecEnv):
    """As many games as lanes, each against `model`."""

    def __init__(self, lanes: int) -> None:
        seen = gymnasium.spaces.Box(0, 1, (6, 7, 2), np.int8)
        super().__init__(lanes, seen, gymnasium.spaces.Discrete(7))
        self.games = [connect_four_v3.env() for _ in range(lanes)]
        self.side = np.arange(lanes) % 2  # the learner's, in each game
        self.model: MaskablePPO | None = None

    def look(self, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What those who are to move see, and may do."""
        seen = [self.games[i].observe(self.games[i].agent_selection) for i in lanes]
        masks = np.stack([x["action_mask"] for x in seen]).astype(bool)
        return np.stack([x["observation"] for x in seen]).astype(np.int8), masks

    def play(self, lane: int, move: int) -> float:
        """The mover's reward."""
        game, mover = self.games[lane], self.games[lane].agent_selection
        game.step(int(move))
        return float(game.rewards[mover])

    def over(self, lane: int) -> bool:
        game = self.games[lane]
        return any(game.terminations.values()) or any(game.truncations.values())

    def answer(self, lanes: np.ndarray) -> np.ndarray:
        """The model moves in these games: what it got."""
        assert self.model is not None
        obs, masks = self.look(lanes)
        moves, _ = self.model.predict(obs, action_masks=masks)
        return np.array([self.play(i, move) for i, move in zip(lanes.tolist(), moves, strict=True)])

    def begin(self, lanes: np.ndarray) -> None:
        for i in lanes.tolist():
            self.games[i].reset()
        if len(second := lanes[self.side[lanes] == 1]):
            self.answer(second)

    def reset(self) -> np.ndarray:
        self.begin(np.arange(self.num_envs))
        return self.look(np.arange(self.num_envs))[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        everyone = np.arange(self.num_envs)
        reward = np.array([self.play(i, move) for i, move in enumerate(self.actions)], np.float32)
        ends = np.array([self.over(i) for i in everyone])
        if len(on := everyone[~ends]):
            reward[on] -= self.answer(on)
            ends[on] = [self.over(i) for i in on]
        infos: list[dict[str, Any]] = [{} for _ in everyone]
        if len(done := everyone[ends]):
            for i, last in zip(done, self.look(done)[0], strict=True):
                infos[i]["terminal_observation"] = last
            self.side[done] = 1 - self.side[done]
            self.begin(done)
        return self.look(everyone)[0], reward, ends, infos

    def env_method(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        assert name == "action_masks", name
        return list(self.look(np.arange(self.num_envs))[1])

    def has_attr(self, name: str) -> bool:
        return name == "action_masks"

    def get_attr(self, name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"{name} of these games cannot be set")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def close(self) -> None:
        pass


class Keep(BaseCallback):
    def __init__(self, out: Path, every: int):
        super().__init__()
        self.out, self.every, self.next, self.begun = out, every, 0, 0.0

    def _on_rollout_start(self) -> None:
        self.begun = self.begun or time.perf_counter()
        moves = 2 * self.num_timesteps
        if moves >= self.next:
            self.next += self.every
            policy = self.model.policy
            layers = [x for x in policy.mlp_extractor.policy_net if isinstance(x, torch.nn.Linear)]
            arrays = {}
            for i, layer in enumerate([*layers, policy.action_net]):
                arrays |= {f"w{i}": layer.weight.detach().numpy(), f"b{i}": layer.bias.detach().numpy()}
            seconds = time.perf_counter() - self.begun
            np.savez(self.out / f"{moves:09d}.npz", moves=moves, seconds=seconds, **arrays)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, required=True)
    parser.add_argument("--every", type=int, default=250_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True)
    torch.set_num_threads(asked.threads)
    envs = SelfPlay(LANES)
    envs.model = MaskablePPO("MlpPolicy", envs, seed=asked.seed, device="cpu", **SETTINGS)
    keep = Keep(asked.out, asked.every)
    envs.model.learn(asked.moves // 2, callback=keep)
    keep.next = 0
    keep._on_rollout_start()


if __name__ == "__main__":
    main()
