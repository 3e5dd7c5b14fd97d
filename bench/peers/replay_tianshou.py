"""Tianshou's SegmentTree and PrioritizedReplayBuffer for bench/replays.py. Knows nothing of Polyplay.

    python bench/peers/replay_tianshou.py tree

The buffer takes a row at a time. atari: save_only_last_obs and ignore_obs_next, so that a frame is kept once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from replay_clock import answer, command_line, pictures, rate, turns
from tianshou.data import Batch, PrioritizedReplayBuffer, SegmentTree


def tree(size: int, n: int, seconds: float) -> None:
    made, turn, rng = SegmentTree(size), turns(n, size), np.random.default_rng(0)
    made[np.arange(size)] = rng.random(size)
    values, place = rng.random(n), [0]

    def insert() -> None:
        made[np.arange(place[0], place[0] + n)] = values
        place[0] = (place[0] + n) % (size - n)

    def sample() -> None:
        made.get_prefix_sum_idx(rng.random(n) * made.reduce())

    def update() -> None:
        made[turn()] = values

    answer(insert=rate(insert, n, seconds), sample=rate(sample, n, seconds), update=rate(update, n, seconds))


def rows(kind: str, n: int) -> list[Batch]:
    seen = pictures(n) if kind == "atari" else np.zeros((n, 1), np.float32)
    rest = {"act": 0, "rew": 0.0, "terminated": False, "truncated": False, "info": {}}
    return [Batch(obs=x, obs_next=x, **rest) for x in seen]


def buffer(kind: str, size: int) -> PrioritizedReplayBuffer:
    once = {"stack_num": 4, "save_only_last_obs": True, "ignore_obs_next": True} if kind == "atari" else {}
    return PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4, **once)


def main() -> None:
    asked = command_line(__doc__)
    n, size = asked.batch, asked.size
    if asked.kind == "tree":
        return tree(size, n, asked.seconds)
    made, given = buffer(asked.kind, size), rows(asked.kind, n)

    def insert() -> None:
        for row in given:
            made.add(row)

    for _ in range(-(-size // n)):
        insert()
    turn, priority = turns(n, size), np.random.default_rng(0).random(n)
    update: Callable[[], None] = lambda: made.update_weight(turn(), priority)  # noqa: E731
    for _ in range(2 * size // n):
        update()
    sample = rate(lambda: made.sample(n), n, asked.seconds)
    answer(insert=rate(insert, n, asked.seconds), sample=sample, update=rate(update, n, asked.seconds))


if __name__ == "__main__":
    main()
