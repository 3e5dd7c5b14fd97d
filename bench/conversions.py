"""Microseconds an agent step of turn-based PettingZoo environments, all agents at once: by PettingZoo's own conversion,
by ours (envs/pettingzoo.py), and in an inline pool, which writes rows besides.

    python bench/conversions.py

Random legal actions. CPU time of one process; arms take turns, ratios are taken within a round.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

from polyplay.envs import Envs
from polyplay.envs.pettingzoo import parallel_of
from polyplay.envs.spaces import action_sampler

MODULES = ("mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3", "pettingzoo.classic.tictactoe_v3")
THEIRS, OURS, POOL = "PettingZoo's", "ours", "ours in a pool"


def playing(env: Any) -> Callable[[float], float]:
    """µs of an agent step, over so many seconds."""
    random = np.random.default_rng(0)

    def mask(obs: Any, agent: Any) -> Any:
        seen = obs[agent]
        return np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(env.action_space(agent).n)

    def run(seconds: float) -> float:
        steps, begun = 0, time.process_time()
        while time.process_time() < begun + seconds:
            obs, _ = env.reset(seed=1)
            while env.agents:
                moves = {a: mask(obs, a) for a in env.agents}
                steps += len(moves)
                obs, *_ = env.step({a: int(random.choice(m)) if len(m) else 0 for a, m in moves.items()})
        return (time.process_time() - begun) / steps * 1e6

    return run


def pooled(envs: Envs) -> Callable[[float], float]:
    pool, draw = envs.open(0), action_sampler(envs.spec.action, 0)

    def run(seconds: float) -> float:
        steps, begun = 0, time.process_time()
        while time.process_time() < begun + seconds:
            lanes, row = pool.recv()
            steps += int(np.count_nonzero(~row["first"]))
            pool.send(lanes, draw(envs.lanes, row.get("mask")))
        return (time.process_time() - begun) / steps * 1e6

    return run


def measure(module: str, rounds: int, seconds: float) -> Row:
    make = importlib.import_module(module).env
    convert = aec_to_parallel if make().metadata.get("is_parallelizable") else turn_based_aec_to_parallel
    seats = len(make().possible_agents)
    arms = {THEIRS: playing(convert(make())), OURS: playing(parallel_of(make()))}
    arms[POOL] = pooled(Envs(f"{module}:env", 4 * seats, inline=True))
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, run in arms.items():
            found[name].append(run(seconds))
    ratio = [a / b for a, b in zip(found[THEIRS], found[OURS], strict=True)]
    cells = {name: said(spread(values), 1) for name, values in found.items()}
    return {"environment": module, **cells, "PettingZoo's / ours": said(spread(ratio))}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measure(module, asked.rounds, asked.seconds) for module in MODULES]
    what = about()
    text = ["# Turn-based PettingZoo environments, all agents at once: µs an agent step", "", *lines_about(what), ""]
    publish(RESULTS / "conversions", {**what, "rows": rows}, [*text, *table(rows)])


if __name__ == "__main__":
    main()
