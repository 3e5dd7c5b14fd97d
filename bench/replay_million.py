"""A memory of a million Atari transitions for real: pages touched, saved, and restored in another process to the bit.

    python bench/replay_million.py                  # 8 GB of memory, 8 GB of disk, a few minutes
    python bench/replay_million.py --size 50000     # small, to see it work

Frames are random bytes and episodes end, so nothing is shared between frames that would not be in a game. One process
fills a prioritized memory, saves it, then draws and judges batches, of which it tells a digest; another one loads what
was saved and does the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.rollout_queue import row_spec
from polyplay.core.files import write_json
from polyplay.core.tree import Field

LANES, ROWS, EPISODE, BATCHES = 8, 250, 1_000, 200
POLICY = {"action": Field((), "int64")}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="transitions")
    parser.add_argument("--folder", type=Path, help="where to save for a while; a temporary directory if not given")
    parser.add_argument("--do", choices=("both", "fill", "restore"), default="both", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.do != "both":
        print(json.dumps((fill if asked.do == "fill" else restore)(asked.size, asked.folder)))
        return
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        filled, restored = (run(what, asked.size, folder) for what in ("fill", "restore"))
    finally:
        shutil.rmtree(folder)
    found = {**about(), "filled": filled, "restored": restored, "same": filled["digest"] == restored["digest"]}
    print(json.dumps(found, indent=1))
    if asked.size >= 1_000_000:
        write_json(RESULTS / "replay_million.json", found)
    sys.exit(0 if found["same"] else 1)


def run(what: str, size: int, folder: Path) -> Row:
    words = [sys.executable, __file__, "--do", what, "--size", str(size), "--folder", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def opened(size: int) -> ReplayBuffer:
    spec = row_spec(Field((4, 84, 84), "uint8"), POLICY)
    return Replay(spec, LANES, size, 512, stack=4, n_step=3, sampler=Proportional(0.6, 0.4)).open(0)


def fill(size: int, folder: Path) -> Row:
    warm()
    before, memory, rng = pages(), opened(size), np.random.default_rng(0)
    begin, at = time.perf_counter(), 0
    past = np.zeros((3, LANES, 84, 84), np.uint8)
    while (memory.index.lane[0] < memory.index.R).any():
        rows, past = played(rng, at, past)
        memory.add(rows, slice(None))
        at += ROWS
    del rows
    taken, spent = pages() - before, time.perf_counter() - begin
    begin, peak = time.perf_counter(), highest()
    memory.save(folder)
    row = {"transitions": memory.index.size, "bytes_a_transition_touched": taken / memory.index.size}
    row |= {"bytes_a_transition_told": memory.nbytes / memory.index.size, "seconds_to_fill": spent}
    row |= {"seconds_to_save": time.perf_counter() - begin, "more_memory_while_saving": highest() - peak}
    saved = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return row | {"bytes_saved": saved, "digest": digest(memory)}


def warm() -> None:
    """Compiled code and this script's own rows are no part of a memory."""
    memory, past = opened(4 * ROWS * LANES), np.zeros((3, LANES, 84, 84), np.uint8)
    for n in range(6):
        rows, past = played(np.random.default_rng(0), n * ROWS, past)
        memory.add(rows, slice(None))
    digest(memory)


def restore(size: int, folder: Path) -> Row:
    memory, begin = opened(size), time.perf_counter()
    memory.load(folder)
    spent = time.perf_counter() - begin
    row = {"transitions": memory.index.size, "seconds_to_load": spent}
    return row | {"digest": digest(memory), "most_memory": highest()}


def played(rng: np.random.Generator, at: int, past: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Rows [ROWS, LANES] of noise from row `at` of each lane, and the 3 frames that the next stacks begin with."""
    frames = np.concatenate([past, rng.integers(0, 256, (ROWS, LANES, 84, 84), np.uint8)])
    first = np.arange(at, at + ROWS) % EPISODE == 0
    if first[0]:  # stacks are zeros before an episode
        frames[:3] = 0
    spec = row_spec(Field((4, 84, 84), "uint8"), POLICY)
    rows: dict[str, Any] = {k: np.zeros((ROWS, LANES, *f.shape), f.dtype) for k, f in spec.items() if k != "obs"}
    rows["obs"] = np.stack([frames[j : j + ROWS] for j in range(4)], 2)
    rows["first"][:] = first[:, None]
    rows["terminated"][:] = (np.arange(at + 1, at + 1 + ROWS) % EPISODE == 0)[:, None]
    rows["action"], rows["reward"] = rng.integers(0, 6, (ROWS, LANES)), rng.integers(-1, 2, (ROWS, LANES))
    rows["reward"] = rows["reward"].astype(np.float32)
    return rows, frames[-3:].copy()


def digest(memory: ReplayBuffer) -> str:
    """Of BATCHES batches drawn, each judged by chance before the next."""
    hashed, rng = hashlib.sha256(), np.random.default_rng(1)
    for _ in range(BATCHES):
        batch = memory.sample()
        for name in sorted(batch):
            hashed.update(np.ascontiguousarray(batch[name]))
        memory.update_priorities(batch["id"], rng.random(len(batch["id"])))
    return hashed.hexdigest()


def pages() -> int:
    """Bytes of memory that this process has touched and holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
