"""cpprb's PrioritizedReplayBuffer for bench/replays.py. Knows nothing of Polyplay.

    python bench/peers/replay_cpprb.py atari --size 100000

priorities: all that a transition has is a float; atari: obs and next_obs whole (its stack_compress takes rows one by
one only, and is slower here). Its α is 0.6, its ε 1e-4; weights by the least priority of all.
"""

from __future__ import annotations

import numpy as np
from cpprb import PrioritizedReplayBuffer
from replay_clock import answer, command_line, pictures, rate, turns


def main() -> None:
    asked = command_line(__doc__)
    n, size = asked.batch, asked.size
    if asked.kind == "tree":
        raise SystemExit("cpprb's tree cannot be had alone")
    if asked.kind == "priorities":
        names = ("obs", "next_obs", "act", "rew", "done")
        buffer = PrioritizedReplayBuffer(size, {name: {} for name in names})
        rows = {name: np.zeros((n, 1), np.float32) for name in names}
    else:
        pixels = {"shape": (4, 84, 84), "dtype": np.uint8}
        fields = {"obs": pixels, "next_obs": pixels, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        buffer = PrioritizedReplayBuffer(size, fields)
        frames = pictures(n + 1)
        one = np.zeros((n, 1), np.float32)
        rows = {"obs": frames[:-1], "next_obs": frames[1:], "act": one.astype(np.int64), "rew": one, "done": one}
    for _ in range(-(-size // n)):
        buffer.add(**rows)
    turn, rng = turns(n, size), np.random.default_rng(0)
    priority = rng.random(n)
    for _ in range(2 * size // n):
        buffer.update_priorities(turn(), priority)
    sample = rate(lambda: buffer.sample(n, 0.4), n, asked.seconds)
    update = rate(lambda: buffer.update_priorities(turn(), priority), n, asked.seconds)
    insert = rate(lambda: buffer.add(**rows), n, asked.seconds)
    answer(insert=insert, sample=sample, update=update)


if __name__ == "__main__":
    main()
