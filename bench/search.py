"""Speed of the tree search alone: simulations/s on one core, with an evaluator that always says the same.

    python bench/search.py

A row is one search from the start of every game, repeated. Repetitions do the same to the bit, so each round has a
least and a median time among them; a speed is all simulations over the sum of those times. The least one is that of a
core that nobody else disturbs; where others compute, the median is below it. For `self-play`, games are played to their
end and begun anew, with noise at the root: moves, choices and kept subtrees are included, per second of CPU time.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import psutil
from common import (
    RESULTS,
    ROOT,
    Row,
    about,
    command_line,
    commands,
    lines_about,
    publish,
    said,
    spread,
    table,
    verdict,
    wilson,
)
from strength import decisive_positions, moves_kept, values_kept

from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.envs import Envs
from polyplay.games.boards import GAMES, game
from polyplay.games.records import GOES_ON
from polyplay.nets.device import is_half
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.runs.directory import read_config
from polyplay.search import Search, SearchOptions
from polyplay.search.evaluators import BACKENDS, PRECISIONS, NetworkEvaluator
from polyplay.search.search import SearchPolicy
from polyplay.systems import load
from polyplay.workers.crew import Crew
from polyplay.workers.process import tune
from tests.search.twins import UniformEvaluator

SPEED = "simulations/s, least time"
TARGET = 2.5e6  # simulations/s
WARM = 12  # searches of every game before those of self-play count: by then games are at different plies
SECONDS = 3.0  # of self-play


def one_search(search: Search) -> list[float]:
    """Seconds of each round of one search of all games."""
    search.restart()
    seconds = []
    while not len(search.finished().games):
        begun = time.perf_counter()
        planes = search.round()
        search.answer(*search.evaluator.evaluate(planes))
        seconds.append(time.perf_counter() - begun)
    return seconds


def alone(name: str, games: int, leaves: int, asked: argparse.Namespace) -> Row:
    """One row: searches of so many games at once."""
    board = game(name)
    options = SearchOptions(simulations=asked.simulations, leaves=leaves)
    uniform = UniformEvaluator(board.actions)
    search = Search(board, games, options, uniform)
    one_search(search)  # compiles
    times = np.array([one_search(search) for _ in range(asked.repeats)])
    n = int(search.tree.plays["done"].sum())
    return {
        "game": name,
        "games": games,
        "leaves per game": leaves,
        SPEED: n / times.min(0).sum(),
        "median": n / np.median(times, 0).sum(),
        "µs/round": 1e6 * times.min(0).mean(),
        "self-play": plays(Search(board, games, replace(options, noise=0.25, reuse=False), uniform)),
    }


def plays(search: Search) -> float:
    """Simulations per second of CPU time, games played from start to end; a while goes by before it counts."""
    search.restart()
    n, begun = 0, 0.0
    while True:
        now = time.thread_time()
        if not begun and search.tree.plays["searches"].min() > WARM:
            n, begun = 0, now
        if begun and now - begun > SECONDS:
            return n / (now - begun)
        done = search.step()
        if len(done.games):
            n += len(done.games) * search.options.simulations  # inherited ones do not count
            results = search.advance(done.games, search.choose(done))
            search.restart(done.games[results != GOES_ON])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--game", nargs="+", default=["connect_four", "tic_tac_toe"])
    parser.add_argument("--games", type=int, nargs="+", default=[32, 128, 256, 512])
    parser.add_argument("--leaves", type=int, nargs="+", default=[1, 8], help="per game and round")
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS / "search")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    cases = [(name, games, leaves) for name in asked.game for games in asked.games for leaves in asked.leaves]
    rows = [alone(*case, asked) for case in cases]
    data = {**about(), "load": load, "simulations": asked.simulations, "repeats": asked.repeats, "rows": rows}
    fewest = min(asked.leaves)
    best = {
        name: max(r[SPEED] for r in rows if (r["game"], r["leaves per game"]) == (name, fewest)) for name in asked.game
    }
    text = [
        "# Tree search alone",
        "",
        *lines_about(data),
        f"- {asked.simulations} simulations per search, {asked.repeats} repetitions; load average before: {load:.1f}",
        "",
        *table(rows),
        "",
        *(verdict(f"{name}, leaves per game {fewest}, simulations/s", v, least=TARGET) for name, v in best.items()),
    ]
    publish(asked.out, data, text)


# The ways to compute a network in the search: evaluations/s of each, in as many processes at once as there are


CASES = {  # env, blocks, filters, positions in a batch
    "connect four, `quick`": ("game:connect_four", 4, 48, 64),
    "Go 9×9, 5×64": ("game:go+size=9", 5, 64, 64),
    "Go 9×9, 10×128": ("game:go+size=9", 10, 128, 64),
    "Go 19×19, 20×256": ("game:go", 20, 256, 8),
}


def work(case: str, way: tuple[str, str], seconds: float, together: Any, answers: Any) -> None:
    """Evaluations/s of one process, at the same time as the others'."""
    tune(1)
    env, blocks, filters, batch = CASES[case]
    evaluator = NetworkEvaluator(BoardNetworkFactory(Envs(env, 1).spec, blocks, filters), batch, *way)
    evaluator.take(0)
    planes = np.random.default_rng(0).integers(0, 2, (batch, *evaluator.network.planes)).astype(np.float32)
    evaluator.evaluate(planes)
    together.wait()
    n, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        evaluator.evaluate(planes)
        n += len(planes)
    answers.put(n / passed)


def rate(case: str, way: tuple[str, str], cores: int, seconds: float) -> float:
    """Of `cores` new processes: where its arrays lie in memory changes it, as for a worker of a run."""
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(cores), context.Queue()
    processes = [context.Process(target=work, args=(case, way, seconds, together, answers)) for _ in range(cores)]
    for process in processes:
        process.start()
    found = sum(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return found


def run_evaluators() -> None:
    """The ways to compute a network in the search: evaluations/s of each, in as many processes at once as cores.

        python bench/search.py evaluators

    Each case has the board, network and batch of a preset or of a row in docs/systems/alphago_zero.md. The ways take
    turns; a figure is the median of the turns, added up over the processes, which are new ones each time.
    """
    parser = command_line(run_evaluators.__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    cores, what, rows, measured = len(os.sched_getaffinity(0)), about(), list[Row](), Row()
    backends = [name for name in BACKENDS if name != "openvino" or importlib.util.find_spec("openvino")]
    ways = list(itertools.product(backends, PRECISIONS if is_half("auto") else PRECISIONS[:1]))
    for case in CASES:
        turns = [{way: rate(case, way, cores, asked.seconds) for way in ways} for _ in range(asked.turns)]
        row: Row = {"network": case}
        row |= {" ".join(way): statistics.median(turn[way] for turn in turns) for way in ways}
        for way in ways[len(PRECISIONS) :]:
            ratios = [turn[way] / turn["torch", way[1]] for turn in turns]
            row[f"{way[0]} over torch, {way[1]}"] = said(spread(ratios))
        rows.append(row)
        measured[case] = {" ".join(way): [turn[way] for turn in turns] for way in ways}
        print(rows[-1], flush=True)
    title = "# Ways to compute a network in the search"
    text = [title, "", *lines_about(what), f"- evaluations/s of {cores} processes at once", "", *table(rows)]
    publish(RESULTS / "evaluators", {**what, "rows": rows, "turns": measured}, text)


# One game, as when a person waits: several leaves at a time with virtual loss, against one leaf at a time


BOARD = GAMES["connect_four"]
ONE_GAME_CASES = [("torch", "float32"), ("torch", "bfloat16"), ("openvino", "bfloat16")]
ONE_GAME_TARGET = 4.0  # × one leaf at a time


def speed(backend: str, precision: str, leaves: int, seconds: float) -> float:
    """Simulations/s of one game's searches of 400 simulations, one after the other."""
    factory = BoardNetworkFactory(Envs("game:connect_four", 1).spec, 5, 64)
    evaluator = NetworkEvaluator(factory, leaves, backend, precision)
    evaluator.take(0)
    options = SearchOptions(400, "alphago_zero", leaves=leaves, reuse=False)
    search = Search(BOARD, 1, options, evaluator)
    n, begun = -1, time.perf_counter()  # the first one warms up
    while n < 1 or time.perf_counter() - begun < seconds:
        search.restart()
        while not len(search.step().games):
            pass
        n += 1
        begun = time.perf_counter() if n == 0 else begun
    return n * options.simulations / (time.perf_counter() - begun)


def strength(champion: Path, leaves: int, simulations: int, positions: int) -> float:
    """Share of decisive positions whose value its move keeps."""
    page, config = load("alphago_zero"), read_config(champion)["config"]
    wired = page.build(page.Config(**config | {"simulations": simulations}), Crew(0))
    player = play.load_player(wired, checkpoint.everything(champion)[-1])
    assert isinstance(player, SearchPolicy)
    player.simulate(simulations, leaves)
    asked = decisive_positions(BOARD).first(positions)
    kept = moves_kept(lambda records, random, at: player.choose(records[at])[0], asked)
    return sum(kept) / len(kept)


def run_one_game() -> None:
    """One game, as when a person waits: several leaves at a time with virtual loss, against one leaf at a time.

        python bench/search.py one_game --champion bench/champions/connect_four

    Speed: searches from the start of connect four, 5 blocks of 64 filters, one game, one process; batches of as many
    positions as there are leaves. Strength: the champion on the committed decisive positions at equal simulations, by
    the share of positions whose value its move keeps; its standard error is about 1 point.
    """
    parser = command_line(run_one_game.__doc__)
    parser.add_argument("--champion", type=Path, default=Path(__file__).parent / "champions" / "connect_four")
    parser.add_argument("--leaves", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--simulations", type=int, nargs="+", default=[100, 400], help="of the searches for strength")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each speed")
    parser.add_argument("--out", type=Path, default=RESULTS / "one_game")
    asked = parser.parse_args()
    what, rows = about(), list[Row]()
    here = [c for c in ONE_GAME_CASES if c[0] == "torch" or importlib.util.find_spec("openvino")]
    for leaves in asked.leaves:
        row: Row = {"leaves": leaves}
        for case in here:
            row[f"{' '.join(case)}, simulations/s"] = speed(*case, leaves, asked.seconds)
        for n in asked.simulations:
            row[f"kept with {n}, %"] = 100 * strength(asked.champion, leaves, n, asked.positions)
        rows.append(row)
        print(row, flush=True)
    names = [f"{' '.join(case)}, simulations/s" for case in here]
    first = rows[0]
    lines = [verdict(f"{k}, × one leaf", max(r[k] for r in rows) / first[k], least=ONE_GAME_TARGET) for k in names]
    text = ["# One game", "", *lines_about(what), "", *table(rows), "", *lines]
    publish(asked.out, {**what, "rows": rows}, text)


# What each change to AlphaGo Zero is worth in connect four at equal core-minutes: runs of preset `quick`, one a


QUICK = "--preset quick --players 1"
PUCT = "--root puct --simulations 64"
VARIANTS = {
    "puct": ("no gate; 64 simulations; boards are turned in learning", PUCT),
    "gate": (
        "a gate: 100 games every 250 updates",
        f"{PUCT} --gate 0.55 --gate-games 100 --gate-every 250 --champion-games 0",
    ),
    "alphazero": (
        "AlphaZero's exploration, boards not turned",
        f"{PUCT} --exploration alphazero --symmetries none",
    ),
    "no symmetries": ("boards not turned", f"{PUCT} --symmetries none"),
    "gumbel": ("Gumbel, 16 simulations", "--root gumbel --simulations 16"),
    "gumbel, noise": ("the same with noise in whole games", "--root gumbel --simulations 16 --temperature-plies 42"),
    "caps": (
        "a quarter of the searches has 128 simulations, others 20",
        "--root puct --simulations 128 --fast-simulations 20",
    ),
}
CONSTANT = 0.7  # share of the core-minutes after which the learning rate falls
COST, STRENGTH = "core_minutes.jsonl", "strength.json"


class Cost:
    """CPU time of a process and all that it started, those that ended included."""

    def __init__(self, pid: int):
        self.root, self.seen = psutil.Process(pid), dict[int, float]()

    def minutes(self) -> float:
        try:
            there = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            there = []
        for process in there:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self.seen[process.pid] = times.user + times.system
        return sum(self.seen.values()) / 60


def phase(words: list[str], run: Path, core: int, spent: float, limit: float) -> float:
    """Train until the run ends, or has cost `limit` core-minutes; those spent at its end. Notes each checkpoint's."""
    text = f"taskset -c {core} polyplay {' '.join(words)}"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (run.parent / f"{run.name}.log").open("a") as log:
        log.write(f"$ {text}\n")
        log.flush()
        to = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        child = subprocess.Popen(text.split(), cwd=ROOT, env=environment, start_new_session=True, **to)
        cost, total, told = Cost(child.pid), spent, False
        while child.poll() is None:
            time.sleep(1.0)
            total = spent + cost.minutes()
            note(run, total)
            if total >= limit and not told:
                child.send_signal(signal.SIGINT)
                told = True
    note(run, total)
    if child.returncode not in (0, 130):
        sys.exit(f"{run}: {text} ended with {child.returncode}, see its log")
    return total


def note(run: Path, minutes: float) -> None:
    """A line for each checkpoint that is new."""
    there = checkpoint.everything(run)
    known = {row["checkpoint"] for row in read_lines(run / COST)} if (run / COST).exists() else set()
    with (run / COST).open("a") if run.exists() else open(os.devnull, "a") as file:
        for path in there:
            if path.name not in known:
                file.write(json.dumps({"checkpoint": path.name, "core_minutes": round(minutes, 2)}) + "\n")


def train(run: Path, variant: str, seed: int, core: int, asked: argparse.Namespace) -> None:
    options = f"{QUICK} {VARIANTS[variant][1]} --evaluator {asked.evaluator} --precision {asked.precision} --quiet"
    limits = f"--steps 100M --checkpoint-every {asked.every} --keep 100"
    words = f"train alphago_zero {options} --seed {seed} {limits} --run {run}"
    spent = phase(words.split(), run, core, 0.0, CONSTANT * asked.core_minutes)
    steps = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"]
    total = round(steps / CONSTANT)
    phase(f"resume {run} --steps {total}".split(), run, core, spent, 2 * asked.core_minutes)


def train_all(asked: argparse.Namespace) -> None:
    """The runs that are not there yet, one on each core."""
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)

    def one(variant: str, seed: int) -> None:
        core = cores.get()
        try:
            train(run_of(asked, variant, seed), variant, seed, core, asked)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        wanted = [(v, s) for s in asked.seeds for v in asked.variants if not run_of(asked, v, s).exists()]
        for done in [pool.submit(one, *pair) for pair in wanted]:
            done.result()


def run_of(asked: argparse.Namespace, variant: str, seed: int) -> Path:
    return (asked.runs / f"{variant.replace(',', '').replace(' ', '_')}-{seed}").resolve()


def near(costs: list[Row], minutes: Iterable[float]) -> list[Row]:
    """Of each number of core-minutes the checkpoint that is nearest; the last one among them."""
    chosen = [min(costs, key=lambda row: abs(row["core_minutes"] - m)) for m in minutes]
    return list({row["checkpoint"]: row for row in [*chosen, costs[-1]]}.values())


def rows_of(run: Path, variant: str, seed: int, asked: argparse.Namespace) -> list[Row]:
    if (run / STRENGTH).exists():
        return [{**row, "run": variant} for row in json.loads((run / STRENGTH).read_text())]
    rows = []
    for cost in near(list(read_lines(run / COST)), asked.at):
        path = checkpoint.checkpoints_dir(run) / cost["checkpoint"]
        counters = checkpoint.manifest(path)["counters"]
        row: Row = {"run": variant, "seed": seed, "core-minutes": cost["core_minutes"]}
        row |= {"moves learnt": int(counters["steps"]), "games": int(counters["episodes"])}
        for simulations, name in ((0, "network alone"), (100, "100 simulations")):
            found = values_kept(run, path, simulations)
            share = sum(found) / len(found)
            low, high = wilson(share, len(found))
            row[name] = f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        rows.append(row)
    (run / STRENGTH).write_text(json.dumps(rows, indent=1))
    return rows


def run_search_ablations() -> None:
    """What each change to AlphaGo Zero is worth in connect four at equal core-minutes: runs of `quick`, one a core.

        python bench/search.py ablations --core-minutes 20 --seeds 1 2 --runs runs/search_ablations

    A run has a core of its own. Its core-minutes are the CPU time of all its processes, so other programs on the
    machine cost it nothing but caches. After 70 % of them it is stopped and goes on with `polyplay resume RUN --steps
    N`, where N is what it will have played at the end: its learning rate, until then constant, falls in a line to 0.
    Runs that are there already are not trained, and what was measured of them (strength.json) is not measured again.

    Strength is the share of decisive positions in which the move keeps the value (bench/strength.py): of the network
    alone and of 100 simulations of the run's own search. Intervals are Wilson's, of one run's positions; the spread of
    runs is what differs between the seeds.
    """
    parser = command_line(run_search_ablations.__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--core-minutes", type=float, default=20.0)
    parser.add_argument("--at", type=float, nargs="+", default=[5.0, 10.0, 15.0], help="measured there, and at the end")
    parser.add_argument("--every", type=float, default=150.0, help="seconds between checkpoints")
    parser.add_argument("--evaluator", default="openvino")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "search_ablations")
    parser.add_argument("--train-only", action="store_true")
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    train_all(asked)
    if asked.train_only:
        return
    pairs = [(v, s) for v in asked.variants for s in asked.seeds if run_of(asked, v, s).exists()]
    rows = [row for v, s in pairs for row in rows_of(run_of(asked, v, s), v, s, asked)]
    what = about()
    text = ["# What each change is worth in connect four", "", *lines_about(what)]
    text += [f"- each run: `polyplay train alphago_zero {QUICK} --evaluator {asked.evaluator} --precision "]
    text[-1] += f"{asked.precision}` with the options below, on one core; intervals: 95 %, Wilson's"
    options = [{"run": v, "what": VARIANTS[v][0], "options": f"`{VARIANTS[v][1]}`"} for v in asked.variants]
    text += ["", *table(options), "", *table(rows)]
    publish(RESULTS / "search_ablations", {**what, "rows": rows}, text)


if __name__ == "__main__":
    sys.exit(
        commands({"": main, "evaluators": run_evaluators, "one_game": run_one_game, "ablations": run_search_ablations})
    )
