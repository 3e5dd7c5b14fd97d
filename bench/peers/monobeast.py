"""Runs facebookresearch/torchbeast's MonoBeast (2021-09, 0af07b0) from its own checkout on Pong until stopped.

    python bench/peers/monobeast.py --path torchbeast --network nature --num_actors 4 --log log.jsonl

Actors, buffers, queues, learner threads, V-trace and environment wrappers are the repository's own; so is every other
flag. Replaced: `gym` (oldgym.py), its file of losses by this log, and its network by the one that all peers train
(networks.py), unless --network own. Steps are those learnt from. Knows nothing of Polyplay.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import torch
from logs import Log, command_line
from networks import NETWORKS, ActorCritic, count
from oldgym import install, old_gym
from torch import nn


class Net(nn.Module):
    """With the interface of MonoBeast's AtariNet."""

    network = "nature"

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int, use_lstm: bool = False):
        super().__init__()
        self.num_actions = num_actions
        self.net = ActorCritic(self.network, num_actions, observation_shape)
        print(f"{count(self)} parameters", flush=True)

    def initial_state(self, batch_size: int) -> tuple:
        return ()

    def forward(self, inputs: dict, core_state: tuple = ()) -> Any:
        t, b = inputs["frame"].shape[:2]
        logits, value = self.net(inputs["frame"].flatten(0, 1))
        action = torch.multinomial(torch.softmax(logits, 1), 1)
        said = {"policy_logits": logits.view(t, b, -1), "baseline": value.view(t, b), "action": action.view(t, b)}
        return said, core_state


class Writer:
    """What its FileWriter is asked for."""

    log_file: Log

    def __init__(self, **_: Any):
        self.log_file.write(steps=0)

    def log(self, row: dict) -> None:
        if self.log_file.due():
            self.log_file.write(steps=row["step"])

    def close(self) -> None:
        pass


def scoring(learn: Any, log: Log) -> Any:
    """Its learning step, telling the games of the batch: episode_return is unclipped."""

    def scored(*given: Any) -> dict:
        stats = learn(*given)
        for score in stats["episode_returns"]:
            log.game(score)
        return stats

    return scored


def main() -> None:
    parser = command_line(__doc__, NETWORKS, own=True)
    parser.add_argument("--path", type=Path, required=True, help="a checkout of facebookresearch/torchbeast")
    parser.add_argument("--threads", type=int, default=1, help="torch.set_num_threads; it sets OMP_NUM_THREADS=1")
    asked, more = parser.parse_known_args()  # the rest is its own: --num_actors, --batch_size, --num_learner_threads …
    sys.path.insert(0, str(asked.path.resolve()))
    for name, members in old_gym().items():
        install(name, **members)
    from torchbeast import monobeast

    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    Net.network, Writer.log_file = asked.network, Log(asked.log)
    if asked.network != "own":
        monobeast.Net = Net
    monobeast.learn = scoring(monobeast.learn, Writer.log_file)
    monobeast.file_writer = types.SimpleNamespace(FileWriter=Writer)
    fixed = ["--disable_checkpoint", "--disable_cuda", "--total_steps", str(10**10)]
    monobeast.main(monobeast.parser.parse_args([*fixed, *more]))


if __name__ == "__main__":
    main()
