"""Runs ikostrikov/pytorch-a3c (48d9584) from its own checkout, on today's PyTorch and gymnasium.

    python bench/peers/a3c.py --path pytorch-a3c --num-processes 2 --num-steps 5 --log log.jsonl

Processes, shared model, shared Adam and the worker's loop are the repository's own files. Replaced: `gym`
(oldgym.py); its network and frames (4 convolutions and an LSTM on 42×42) by the small network of the A3C paper on four
frames of 84×84, prepared with OpenCV; its tester, a process that plays a game a minute, by one that writes the
workers' step counter down. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from logs import Log
from oldgym import Env, install
from torch import Tensor, multiprocessing, nn


class ActorCritic(nn.Module):
    """16 8×8/4, 32 4×4/2, 256 hidden units, no padding: 84 → 20 → 9. The LSTM's state goes through untouched."""

    def __init__(self, channels: int, actions: Any):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 16, 8, 4), nn.Conv2d(16, 32, 4, 2)
        self.fc = nn.Linear(32 * 9 * 9, 256)
        self.critic_linear, self.actor_linear = nn.Linear(256, 1), nn.Linear(256, actions.n)

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor, Any]:
        x, state = inputs
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.relu(self.fc(x.flatten(1)))
        return self.critic_linear(x), self.actor_linear(x), state


class Frames:
    """The last four frames, float32 [4, 84, 84] in 0 … 1."""

    def __init__(self, name: str):
        self.env = Env(name)
        self.action_space, self.seed = self.env.action_space, self.env.seed
        self.observation_space = np.zeros((4, 84, 84), np.float32)  # only its shape is asked for
        self.stack = np.zeros((4, 84, 84), np.float32)

    def reset(self) -> np.ndarray:
        self.stack[:] = 0.0
        return self._push(self.env.reset())

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, dict]:
        frame, reward, done, info = self.env.step(action)
        return self._push(frame), reward, done, info

    def _push(self, frame: np.ndarray) -> np.ndarray:
        gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        self.stack[:-1] = self.stack[1:]
        np.multiply(cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA), 1.0 / 255.0, out=self.stack[-1])
        return self.stack.copy()


def counting(log: str) -> Any:
    """What takes the tester's place."""

    def test(rank: int, args: Any, model: nn.Module, counter: Any) -> None:
        lines = Log(log)
        while True:
            lines.write(steps=counter.value)
            time.sleep(lines.every)

    return test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True, help="a checkout of ikostrikov/pytorch-a3c")
    parser.add_argument("--log", required=True, help="file for a line of counters twice a second")
    asked, more = parser.parse_known_args()  # the rest is its own: --num-processes, --num-steps, --env-name, --seed, …
    code = asked.path.resolve()
    multiprocessing.set_start_method("fork")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    sys.path.insert(0, str(code))
    install("model", ActorCritic=ActorCritic)
    install("envs", create_atari_env=Frames)
    install("test", test=counting(asked.log))
    import my_optim

    # its workers rely on gradients that stay where they are; zero_grad drops them nowadays
    drop = my_optim.SharedAdam.zero_grad
    my_optim.SharedAdam.zero_grad = lambda self: drop(self, set_to_none=False)
    sys.argv = [str(code / "main.py"), *more]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
