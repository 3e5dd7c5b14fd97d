"""Networks in bfloat16 against float32, on one core: acting for 1, 16 and 64 lanes, an update from 40 and 160 rows.

    python bench/precision.py

Each pair is measured in turn, block by block, with the library's own policies and V-trace loss on random images:
CPU time per row, and the median of the blocks' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.buffers.rollout_queue import row_spec
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import policy_losses
from polyplay.nets import actor_critic, device, factory
from polyplay.weights.params import FlatParams

BOTH = ("float32", "bfloat16")
SPEC = EnvSpec(Field((4, 84, 84), "uint8"), Discrete(6))


def rows(policy: actor_critic.ActorCritic, shape: tuple[int, ...]) -> tree.Batch:
    made = tree.zeros(row_spec(SPEC.obs, policy.spec(), None), shape)
    made["obs"][...] = np.random.default_rng(0).integers(0, 256, made["obs"].shape)
    return tree.map(torch.from_numpy, made)


def acting(policy: actor_critic.ActorCritic, n: int) -> Callable[[], object]:
    row = rows(policy, (n,))
    row["noise"] = torch.rand(n, policy.noise)

    def act() -> None:
        with torch.no_grad():
            policy.act(row, {})

    return act


def learning(policy: actor_critic.ActorCritic, n: int) -> Callable[[], object]:
    vector, loss, batch = FlatParams(policy), policy_losses.VTrace(), rows(policy, (5, n // 5))
    hyperparameters = Hyperparameters(entropy_cost=0.01)

    def update() -> None:
        vector.zero_grad()
        loss(policy.unroll(batch, {}), batch, hyperparameters).loss.backward()

    return update


def in_turn(pair: list[Callable[[], object]], seconds: float) -> list[list[float]]:
    """CPU seconds of a turn of each, block by block."""
    for turn in pair:
        for _ in range(3):
            turn()
    found: list[list[float]] = [[], []]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found[1]) < 5:
        for turn, times in zip(pair, found, strict=True):
            before = time.process_time()
            for _ in range(5):
                turn()
            times.append((time.process_time() - before) / 5)
    return found


def measure(network: str, what: str, n: int, seconds: float) -> Row:
    pair = []
    for how in BOTH:
        torch.manual_seed(0)
        policy = device.set_precision(factory.make(network, SPEC, exact=False), how)
        pair.append((acting if what == "act" else learning)(policy, n))
    times = in_turn(pair, seconds)
    row: Row = {"network": network, "what": what, "rows": n}
    row |= {f"{how}, µs a row": statistics.median(t) / n * 1e6 for how, t in zip(BOTH, times, strict=True)}
    return row | {"float32 / bfloat16": statistics.median(a / b for a, b in zip(*times, strict=True))}


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=["a3c", "ga3c", "nature", "impala"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair")
    parser.add_argument("--out", type=Path, default=RESULTS / "precision")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    where, found = about(), []
    for network in asked.networks:
        for what, n in (("act", 1), ("act", 16), ("act", 64), ("learn", 40), ("learn", 160)):
            found.append(measure(network, what, n, asked.seconds))
            print(found[-1], flush=True)
    has = f"- the processor multiplies bfloat16 itself: {'yes' if device.is_half('auto') else 'no'}"
    text = ["# bfloat16 against float32", "", *lines_about(where), has, "", *table(found)]
    publish(asked.out, {**where, "rows": found}, text)


if __name__ == "__main__":
    main()
