"""TorchRL's TensorDict replay buffers for bench/replays.py. Knows nothing of Polyplay.

    python bench/peers/replay_torchrl.py atari --size 100000

Prioritized where its C++ part loads; where it does not, as 0.14.1 with torch 2.13, pictures are drawn uniformly, which
is less work, and there is no update. LazyTensorStorage of obs and next whole, one thread.
"""

from __future__ import annotations

from typing import Any

import torch
from replay_clock import answer, command_line, pictures, rate, turns
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer


def made(size: int, n: int) -> tuple[Any, bool]:
    """A buffer, and whether it is prioritized."""
    try:
        storage = LazyTensorStorage(size)
        return TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=n), True
    except RuntimeError as e:
        print(f"uniform instead: {str(e).splitlines()[0]}", flush=True)
        return TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=n), False


def main() -> None:
    asked = command_line(__doc__)
    torch.set_num_threads(1)
    n, size = asked.batch, asked.size
    buffer, prioritized = made(size, n)
    if asked.kind == "tree" or (asked.kind == "priorities" and not prioritized):
        raise SystemExit("its segment tree does not load, or cannot be had alone")
    if asked.kind == "atari":
        frames = torch.from_numpy(pictures(n + 1))
        fields = {"obs": frames[:-1], "next": frames[1:], "action": torch.zeros(n, dtype=torch.int64)}
    else:
        fields = {name: torch.zeros(n, 1) for name in ("obs", "next", "action", "reward", "done")}
    rows = TensorDict(fields, batch_size=[n])
    for _ in range(-(-size // n)):
        buffer.extend(rows)
    sample = rate(buffer.sample, n, asked.seconds)
    insert = rate(lambda: buffer.extend(rows), n, asked.seconds)
    found = {"insert": insert, "sample": sample}
    if prioritized:
        turn, priority = turns(n, size), torch.rand(n)
        places = lambda: torch.from_numpy(turn())  # noqa: E731
        found["update"] = rate(lambda: buffer.update_priority(places(), priority), n, asked.seconds)
    answer(**found, drawn="prioritized" if prioritized else "uniformly")


if __name__ == "__main__":
    main()
