"""Replay alone at a million transitions against others: insert, sample and update of 512, items a second, one thread.

    python bench/replays.py --peers PEERS            # about 15 min, 8 GB
    python bench/replays.py --peers PEERS --short    # small and brief, to see it work

PEERS holds a virtual environment per peer (bench/peers/README.md); who is not there is left out. Every round runs each
program once, in turn, by itself; ratios are taken within a round, to the best peer in its median.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import HERE, RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table, verdict
from measure import versions

import polyplay
from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import DRAWN, GENERATION, LIVE, ReplayBuffer, n_step_windows
from polyplay.buffers.rollout_queue import row_spec
from polyplay.buffers.sum_tree import SumTree, counter_rng
from polyplay.core import checkpoint
from polyplay.core.files import write_json
from polyplay.core.tree import Field
from polyplay.runs.load import crew_of, load_run

sys.path.append(str(Path(__file__).resolve().parent / "peers"))
from replay_clock import LANES, WINDOWS, answer, rate, turns
from replay_clock import command_line as timing

TITLES = {
    "tree": "A sum tree alone",
    "priorities": "Prioritized transitions of observations of one float",
    "atari": "Full Atari transitions, obs and next: 2 × 4×84×84",
}
OPERATIONS = ("insert", "sample", "update")
PEERS = {  # environment: packages, and what it can do
    "cpprb": (("cpprb", "numpy"), ("priorities", "atari")),
    "tianshou": (("tianshou", "numpy", "numba"), ("tree", "priorities", "atari")),
    "torchrl": (("torchrl", "tensordict", "torch"), ("priorities", "atari")),
}


def python(who: str, peers: Path | None) -> Path | None:
    found = (peers / who / "bin" / "python").absolute() if peers else None
    return found if found and found.exists() else None


def one(who: str, kind: str, asked: argparse.Namespace) -> Row:
    """A program's answer, or why there is none."""
    ours = who == "polyplay"
    program = HERE / "replays.py" if ours else HERE / "peers" / f"replay_{who}.py"
    size = asked.peer_size if kind == "atari" and not ours else asked.size
    runs = sys.executable if ours else str(python(who, asked.peers))
    words = [
        runs,
        str(program),
        *(["ours"] if ours else []),
        kind,
        "--size",
        str(size),
        "--seconds",
        str(asked.seconds),
    ]
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=os.environ | one_thread)
    row: Row = {"who": who, "kind": kind, "size": size}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        return row | {"failed": last.replace(f"{ROOT}/", "")[:200]}
    return row | json.loads(done.stdout.splitlines()[-1])


def players(asked: argparse.Namespace) -> list[tuple[str, str]]:
    """Who does what."""
    found = []
    for kind in TITLES:
        found.append(("polyplay", kind))
        found += [(who, kind) for who, (_, can) in PEERS.items() if kind in can and python(who, asked.peers)]
    return found


def best(rows: list[Row], kind: str, operation: str) -> tuple[float | None, str, float | None]:
    """(our median ratio to the best peer, that peer, our median rate)."""
    of: dict[str, dict[int, float]] = {}
    for r in rows:
        if r["kind"] == kind and operation in r:
            of.setdefault(r["who"], {})[r["round"]] = r[operation]
    ours = of.pop("polyplay", {})
    rate = statistics.median(ours.values()) if ours else None
    if not of or not ours:
        return None, "", rate
    peer = max(of, key=lambda who: statistics.median(of[who].values()))
    ratios = [ours[k] / v for k, v in of[peer].items() if k in ours]
    return (statistics.median(ratios) if ratios else None), peer, rate


def page(what: Row) -> list[str]:
    rows, lines = what["rows"], ["# Replay alone", "", *lines_about(what)]
    lines += [f"- {who}: {version}" for who, version in what["peers"].items()]
    lines += ["- items a second, one thread, medians of rounds; batches of 512", ""]
    for kind, title in TITLES.items():
        shown = []
        for who in dict.fromkeys(r["who"] for r in rows if r["kind"] == kind):
            mine = [r for r in rows if (r["who"], r["kind"]) == (who, kind)]
            row: Row = {"who": who, "transitions": mine[-1]["size"]}
            for operation in (*OPERATIONS, "memcpy", "bytes"):
                if found := [r[operation] for r in mine if operation in r]:
                    row[operation] = statistics.median(found)
            shown.append(row | {"note": mine[-1].get("failed") or mine[-1].get("drawn", "")})
        lines += [f"## {title}", "", *table(shown), ""]
    return [*lines, "## Against the best peer of each", "", *judged(rows), ""]


def judged(rows: list[Row]) -> list[str]:
    lines = []
    for kind in TITLES:
        for operation in OPERATIONS:
            ratio, peer, rate = best(rows, kind, operation)
            goal = 2.0 if (kind, operation) == ("atari", "sample") else 1.0
            if rate is not None and ratio is not None:
                lines.append(verdict(f"{kind}, {operation}: {rate:,.0f}/s, × {peer}", ratio, least=goal))
    shares = [r["of_memcpy"] for r in rows if "of_memcpy" in r]
    if shares:
        lines.append(verdict("atari, sample: of a memcpy in the same order", statistics.median(shares), least=0.6))
    sizes = [r["bytes"] for r in rows if r["kind"] == "atari" and "bytes" in r]
    return lines + ([verdict("bytes per transition", statistics.median(sizes), most=7200)] if sizes else [])


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peers", type=Path, help="directory of the peers' environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each operation")
    parser.add_argument("--size", type=int, default=1_000_000, help="transitions")
    parser.add_argument("--peer-size", type=int, default=100_000, help="of peers with pictures: 56 kB each")
    parser.add_argument("--short", action="store_true", help="1 round, 20,000 transitions, 0.2 s")
    parser.add_argument("--out", type=Path, default=RESULTS / "replays")
    asked = parser.parse_args()
    if asked.short:
        asked.rounds, asked.seconds, asked.size, asked.peer_size = 1, 0.2, 20_000, 2_000
    where = about()
    where["command"] = where["command"].replace(str(asked.peers), "PEERS").replace(str(asked.out), "OUT")
    peers = {who: versions(str(p), PEERS[who][0]) for who in PEERS if (p := python(who, asked.peers))}
    rows: list[Any] = []
    what: Row = {**where, "peers": peers, "rows": rows}
    for number in range(1, asked.rounds + 1):
        for who, kind in players(asked):
            rows.append({"round": number, **one(who, kind, asked)})
            told = {k: round(v) for k, v in rows[-1].items() if k in OPERATIONS}
            print(f"round {number}: {kind:<10} {who:<9} {told or rows[-1].get('failed')}", flush=True)
    publish(asked.out, what, page(what))


# Polyplay's replay for bench/replays.py: what bench/peers/replay_*.py measure of others, and a memcpy beside it


EPISODE = 16  # additions: of 512 rows from 8 lanes, episodes of 1,024
POLICY = {"action": Field((), "int64")}


def tree(size: int, n: int, seconds: float) -> None:
    made, turn, rng, draws = SumTree(size), turns(n, size), np.random.default_rng(0), counter_rng(0)
    made.load(rng.random(size))
    values, place = rng.random(n), [0]

    def insert() -> None:
        made.put(np.arange(place[0], place[0] + n), values)
        place[0] = (place[0] + n) % (size - n)

    def sample() -> None:
        made.draw(draws, n, False)

    found = {"insert": rate(insert, n, seconds), "sample": rate(sample, n, seconds)}
    answer(**found, update=rate(lambda: made.put(turn(), values), n, seconds))


def going_round(rows: int, seed: int) -> np.ndarray:
    """uint8 [rows, 4, 84, 84]: stacks of random frames, the last of which goes on with the first."""
    frames = np.random.default_rng(seed).integers(0, 256, (rows, 84, 84), np.uint8)
    return np.stack([np.roll(frames, 3 - j, 0) for j in range(4)], 1)


def filled(kind: str, size: int, n: int) -> tuple[ReplayBuffer, Callable[[], None]]:
    """A full memory, and what adds the same n rows once more; an episode begins every EPISODE times."""
    T = max(1, n // LANES)
    obs = Field((4, 84, 84), "uint8") if kind == "atari" else Field((1,), "float32")
    stack = 4 if kind == "atari" else 0
    replay = Replay(row_spec(obs, POLICY), LANES, size, n, stack=stack, sampler=Proportional(0.6, 0.4))
    rows = {k: np.zeros((T, LANES), f.dtype) for k, f in replay.spec.items() if k != "obs"}
    seen = [going_round(T, lane) if stack else np.zeros((T, 1), np.float32) for lane in range(LANES)]
    rows["obs"] = np.stack(seen, 1)
    begin = {**rows, "first": (np.arange(T) == 0)[:, None].repeat(LANES, 1)}
    memory, number = replay.open(0), [0]

    def add() -> None:
        memory.add(rows if number[0] % EPISODE else begin, slice(None))
        number[0] += 1

    while (memory.index.lane[0] < memory.replay.rows).any():
        add()
    rng, live = np.random.default_rng(0), np.arange(len(memory.index.id))
    memory.update_priorities(memory.index.id, rng.random(len(live)))
    return memory, add


def beside_memcpy(memory: ReplayBuffer, n: int, seconds: float) -> dict[str, float]:
    """Samples and copies of the same stacks, in turn."""
    planes: np.ndarray = memory.columns.arrays["obs"]
    flat, outs = planes.reshape(-1), [np.ones((2 * n, 28_224), np.uint8) for _ in range(2)]
    stacks = np.lib.stride_tricks.sliding_window_view(flat, 28_224)[::7_056]
    orders = []
    for _ in range(50):
        slots = memory.sample()["id"] % GENERATION
        both = np.stack([slots, n_step_windows(slots, *memory.windows)[0]])
        orders.append(np.clip(both.reshape(-1) - 3, 0, len(planes) - 5))
    number = [0]

    def copy() -> None:
        number[0] += 1
        out = outs[number[0] % 2]
        for i, begin in enumerate(orders[number[0] % 50]):
            out[i] = stacks[begin]

    found: dict[str, list[float]] = {"sample": [], "memcpy": []}
    for _ in range(WINDOWS):
        found["sample"].append(rate(memory.sample, n, seconds / WINDOWS))
        found["memcpy"].append(rate(copy, n, seconds / WINDOWS))
    shares = [a / b for a, b in zip(found["sample"], found["memcpy"], strict=True)]
    return {k: statistics.median(v) for k, v in found.items()} | {"of_memcpy": statistics.median(shares)}


def run_replay_ours() -> None:
    """Polyplay's replay for bench/replays.py: what bench/peers/replay_*.py measure of others, and a memcpy beside it.

        python bench/replays.py ours atari --size 1000000

    memcpy: stacks of 28,224 bytes copied from where a sample's lie to where it puts them, in the same order: what a
    sample of pictures would cost if it were nothing else. In turn with the samples, window by window.
    """
    asked = timing(run_replay_ours.__doc__)
    n, seconds = asked.batch, asked.seconds
    if asked.kind == "tree":
        return tree(asked.size, n, seconds)
    memory, add = filled(asked.kind, asked.size, n)
    atari = asked.kind == "atari"
    found = beside_memcpy(memory, n, seconds) if atari else {"sample": rate(memory.sample, n, seconds)}
    ids, number, priority = [memory.sample()["id"] for _ in range(200)], [0], np.random.default_rng(0).random(n)

    def update() -> None:
        number[0] += 1
        memory.update_priorities(ids[number[0] % 200], priority)

    found["update"] = rate(update, n, seconds)
    found["insert"] = rate(add, n, seconds)
    answer(**found, bytes=memory.nbytes / memory.size, size=memory.size)


# A memory of a million Atari transitions for real: pages touched, saved, and restored in another process to the


MILLION_LANES, ROWS, MILLION_EPISODE, BATCHES = 8, 250, 1_000, 200
MILLION_POLICY = {"action": Field((), "int64")}


def run_replay_million() -> None:
    """A memory of a million Atari transitions: pages touched, saved, and restored in another process to the bit.

        python bench/replays.py million                  # 8 GB of memory, 8 GB of disk, a few minutes
        python bench/replays.py million --size 50000     # small, to see it work

    Frames are random bytes and episodes end, so nothing is shared between frames that would not be in a game. One
    process fills a prioritized memory, saves it, then draws and judges batches, of which it tells a digest; another one
    loads what was saved and does the same.
    """
    parser = command_line(run_replay_million.__doc__)
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
    words = [sys.executable, __file__, "million", "--do", what, "--size", str(size), "--folder", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def opened(size: int) -> ReplayBuffer:
    spec = row_spec(Field((4, 84, 84), "uint8"), MILLION_POLICY)
    return Replay(spec, MILLION_LANES, size, 512, stack=4, n_step=3, sampler=Proportional(0.6, 0.4)).open(0)


def fill(size: int, folder: Path) -> Row:
    warm()
    before, memory, rng = pages(), opened(size), np.random.default_rng(0)
    begin, at = time.perf_counter(), 0
    past = np.zeros((3, MILLION_LANES, 84, 84), np.uint8)
    while (memory.index.lane[0] < memory.replay.rows).any():
        rows, past = played(rng, at, past)
        memory.add(rows, slice(None))
        at += ROWS
    del rows
    taken, spent = pages() - before, time.perf_counter() - begin
    begin, peak = time.perf_counter(), highest()
    memory.save(folder)
    row = {"transitions": memory.size, "bytes_a_transition_touched": taken / memory.size}
    row |= {"bytes_a_transition_told": memory.nbytes / memory.size, "seconds_to_fill": spent}
    row |= {"seconds_to_save": time.perf_counter() - begin, "more_memory_while_saving": highest() - peak}
    saved = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return row | {"bytes_saved": saved, "digest": digest(memory)}


def warm() -> None:
    """Compiled code and this script's own rows are no part of a memory."""
    memory, past = opened(4 * ROWS * MILLION_LANES), np.zeros((3, MILLION_LANES, 84, 84), np.uint8)
    for n in range(6):
        rows, past = played(np.random.default_rng(0), n * ROWS, past)
        memory.add(rows, slice(None))
    digest(memory)


def restore(size: int, folder: Path) -> Row:
    memory, begin = opened(size), time.perf_counter()
    memory.load(folder)
    spent = time.perf_counter() - begin
    row = {"transitions": memory.size, "seconds_to_load": spent}
    return row | {"digest": digest(memory), "most_memory": highest()}


def played(rng: np.random.Generator, at: int, past: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Rows [ROWS, LANES] of noise from row `at` of each lane, and the 3 frames that the next stacks begin with."""
    frames = np.concatenate([past, rng.integers(0, 256, (ROWS, MILLION_LANES, 84, 84), np.uint8)])
    first = np.arange(at, at + ROWS) % MILLION_EPISODE == 0
    if first[0]:  # stacks are zeros before an episode
        frames[:3] = 0
    spec = row_spec(Field((4, 84, 84), "uint8"), MILLION_POLICY)
    rows: dict[str, Any] = {
        k: np.zeros((ROWS, MILLION_LANES, *f.shape), f.dtype) for k, f in spec.items() if k != "obs"
    }
    rows["obs"] = np.stack([frames[j : j + ROWS] for j in range(4)], 2)
    rows["first"][:] = first[:, None]
    rows["terminated"][:] = (np.arange(at + 1, at + 1 + ROWS) % MILLION_EPISODE == 0)[:, None]
    rows["action"], rows["reward"] = (
        rng.integers(0, 6, (ROWS, MILLION_LANES)),
        rng.integers(-1, 2, (ROWS, MILLION_LANES)),
    )
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


# Which sequences R2D2 learns from: priorities in its replay, and how many sequences are never drawn


SMALL = {"network": "a3c", "core_size": 64, "unroll": 10, "sequence": 20, "burn_in": 10, "batch": 8}
SMALL |= {"capacity": 10_000, "learning_starts": 1_250, "target_update": 50, "learning_rate": 1e-3}
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "greatest": 1.0}


def measure(steps: int, seed: int, directory: Path) -> Row:
    run = polyplay.train(
        "r2d2", run=str(directory / "run"), steps=steps, seed=seed, serial=True, tensorboard=False, **SMALL
    ).directory
    page, settings, options, _ = load_run(run)
    crew = crew_of(options)
    page.build(settings, crew)
    replay = next(role.held_replay for role in crew.roles if role.held_replay)
    buffer = replay.open(0)
    buffer.load(checkpoint.everything(run)[-1] / "replay" / "learn-0")

    metrics, flags = buffer.metrics(), buffer.index.flags
    live = np.flatnonzero(flags & LIVE)
    drawn = flags[live] & DRAWN > 0
    priority = buffer.priorities(live)
    mass = priority**replay.sampler.alpha
    return {
        "drawn / arrived": round(buffer.sampled / buffer.inserted, 3),
        "never sampled": round(metrics["never_sampled"], 3),
        **{name: float(f"{np.quantile(priority, q):.3g}") for name, q in QUANTILES.items()},
        "median if drawn": float(f"{np.median(priority[drawn]):.3g}"),
        "median if not": float(f"{np.median(priority[~drawn]):.3g}"),
        "not drawn yet": round(float(1 - drawn.mean()), 3),
        "their chance": round(float(mass[~drawn].sum() / mass.sum()), 3),
    }


HEAD = """# Priorities of R2D2

`r2d2 paper` made small (bench/replays.py), Pong, one thread. "never sampled" is the share of sequences that
left the replay without having been drawn; p10 to greatest are priorities in the replay at the end of the run. "not
drawn yet" is the share of sequences in it that were not drawn so far, "their chance" the share of all chance that
they have.
""".splitlines()


def run_r2d2_priorities() -> None:
    """Which sequences R2D2 learns from: priorities in its replay, and how many sequences are never drawn.

        python bench/replays.py r2d2 --name NAME

    `r2d2` with its preset `paper` on Pong, made small: sequences of 20 after 10 instead of 80 after 40, a replay of
    10,000 agent steps, a small network, 60,000 agent steps in one thread. Five sequences arrive for each that is drawn,
    as in the preset. No timing: what it prints does not depend on the machine's speed. The run's last checkpoint is
    opened and its replay read. Rows of earlier measurements stay in the file; one of the same name is replaced.
    """
    parser = command_line(run_r2d2_priorities.__doc__)
    parser.add_argument("--name", default="now", help="what the row is called")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "r2d2_priorities", help="results, without an ending")
    asked = parser.parse_args()
    file = asked.out.with_suffix(".json")
    rows = json.loads(file.read_text()) if file.exists() else []
    with tempfile.TemporaryDirectory() as directory:
        found = {"name": asked.name, **measure(asked.steps, asked.seed, Path(directory)), "about": about()}
    rows = [row for row in rows if row["name"] != asked.name] + [found]
    write_json(file, rows)
    text = [*HEAD, "", *table([{k: v for k, v in row.items() if k != "about"} for row in rows])]
    for row in rows:
        text += ["", f"{row['name']}:", "", *lines_about(row["about"])]
    asked.out.with_suffix(".md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    sys.exit(commands({"": main, "ours": run_replay_ours, "million": run_replay_million, "r2d2": run_r2d2_priorities}))
