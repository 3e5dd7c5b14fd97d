"""What a system on a small network could do at most: its environments alone, or its updates alone, in agent steps/s.

    python bench/small_limits.py --part environments --env HalfCheetah-v5 --lanes 8
    python bench/small_limits.py --part updates --env CartPole-v1 --unroll 32 --epochs 20 --minibatches 1
    python bench/compare.py ppo-cartpole --peers PEERS                      # in turn with those who play

environments: a process for each core steps its share of the lanes, one Gymnasium environment after the other, with
random actions; nobody waits for anybody. updates: the system's own, on rows of noise, one after the other in one
thread, counted as if the steps that they are due for had been played.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch

sys.path.append(str(Path(__file__).resolve().parent / "peers"))

from logs import Log
from measure import Profile, keywords, wire

from polyplay.core import tree
from polyplay.core.machine import cores
from polyplay.nets.factory import build_network
from polyplay.workers.row_costs import cpu_cost

BURST = 0.25  # seconds


def play(env: str, lanes: int, seed: int, counter: Any) -> None:
    """Step these lanes for ever."""
    games = [gymnasium.make(env) for _ in range(lanes)]
    for i, game in enumerate(games):
        game.reset(seed=seed + i)
        game.action_space.seed(seed + i)
    drawn = [games[0].action_space.sample() for _ in range(1000)]
    turn = 0
    while True:
        for game in games:
            _, _, terminated, truncated, _ = game.step(drawn[turn % 1000])
            turn += 1
            if terminated or truncated:
                game.reset()
        counter.value += lanes


def environments(asked: argparse.Namespace) -> None:
    several = multiprocessing.get_context("fork")
    shares = [len(range(i, asked.lanes, cores())) for i in range(cores())]
    counters = [several.Value("q", 0, lock=False) for _ in filter(None, shares)]
    for i, counter in enumerate(counters):
        several.Process(target=play, args=(asked.env, shares[i], 1000 * i, counter), daemon=True).start()
    log = Log(asked.log)
    while True:
        time.sleep(BURST)
        log.write(steps=sum(counter.value for counter in counters))
        asked.log or print(sum(counter.value for counter in counters) / log.elapsed())


def updates(asked: argparse.Namespace) -> None:
    given = keywords(" ".join(f"{k}={v}" for k, v in asked.given), "") | {"env": asked.env, "lanes": asked.lanes}
    cost, steps = learning(asked.system, given)
    log, done = Log(asked.log), 0.0
    while True:
        before = log.elapsed()
        each = cost()
        done += (log.elapsed() - before) / each * steps
        log.write(steps=done)
        asked.log or print(f"{1e3 * each:.3f} ms for {steps:g} agent steps: {steps / each:.0f} steps/s", flush=True)


def learning(
    system: str, given: dict[str, Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[Callable[[], float], float]:
    """What measures the seconds of a system's updates that follow one another, and the agent steps that they are due
    for.
    """
    wired, precision = wire(system, given), given.get("precision", "float32")
    parts = Profile(wired.envs, wired.spec, precision, wired.reuse)
    parts.clock = clock
    if (replay := wired.replay) is None:
        return lambda: parts.learn(wired.T, wired.B, BURST) * 1e-6, wired.T * wired.B
    batch = tree.map(torch.from_numpy, tree.zeros(replay.drawn(), ()))
    parts.run.target = build_network(wired.spec.policy, 1, precision)
    parts.run.target.cache_weights()

    def update() -> None:
        deque(parts.apply_gradient(parts.run(batch, {}, 0)), 0)

    return lambda: cpu_cost(update, BURST, parts.clock) * 1e-6, replay.batch / replay.ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("environments", "updates"), required=True)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--system", default="ppo", help="of updates; all other options are that system's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters a second")
    asked, more = parser.parse_known_args()
    asked.given = [(k.removeprefix("--").replace("-", "_"), v) for k, v in zip(more[::2], more[1::2], strict=True)]
    (environments if asked.part == "environments" else updates)(asked)


if __name__ == "__main__":
    main()
