"""Speed of self-play alone: connect four or Go, 5 blocks of 64 filters, 100 simulations a move, 2 players on 2 cores.

    python bench/self_play.py --peers PEERS
    python bench/self_play.py --env game:go+size=9 --peers PEERS --only mctx openspiel --out bench/results/self_play_go9

Ours: the page's own loop (search/self_play), without a learner. Its turns alternate with turns in which the same
evaluator, in the same processes, gets full batches of the same positions and nothing else: the share is evaluations per
second in the former over those in the latter. First, games are played by a uniform evaluator, so that they are at all
stages. "kept": the subtree of the move played stays, and its visits count; else each move has all its simulations anew.

Peers (peers/README.md) follow in the same run. With several settings, each gets a short window and the fastest a long
one. Games per hour are moves per hour over the mean length of our games, for everyone: slow peers end few games.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    HERE,
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
)
from measure import measure
from search import SPEED, alone

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import tree
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.games.board_pool import board_of
from polyplay.games.boards import Game
from polyplay.learning.learner import Learner
from polyplay.learning.loop import ReplayFeed
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import SearchOptions
from polyplay.search.evaluators import BACKENDS, NetworkEvaluator
from polyplay.search.self_play import SelfPlay, game_rows
from polyplay.systems import load
from polyplay.workers.crew import Crew
from polyplay.workers.process import tune
from tests.search.twins import UniformEvaluator

# How self_play.py runs its peers: their programs, their settings, their rates


# name: environment, script, checkout, settings
PEERS = {
    "mctx": (
        "mctx",
        "board_mctx.py",
        "",
        [
            "--games 64",
            "--games 128",
            "--games 256",
            "--games 64 --processes 2",
            "--games 64 --precision bfloat16",
        ],
    ),
    "azg": ("azg", "board_azg.py", "alpha-zero-general", [""]),
    "lightzero": ("lz", "board_lightzero.py", "LightZero", [""]),
    "openspiel": ("spiel", "board_openspiel.py", "", [""]),
}
TITLES = {"mctx": "mctx + pgx", "azg": "alpha-zero-general", "lightzero": "LightZero", "openspiel": "OpenSpiel, Python"}
WARM = 3.0  # seconds after the first simulations

Measure = Callable[[list[str], float, float], Row]


def peer_rows(asked: argparse.Namespace, run: Measure) -> tuple[list[Row], list[Row], Row | None]:
    """(the peers at their best settings, all settings tried, mctx with a uniform evaluator)."""
    peers, probes = [], []
    for name in asked.only or PEERS:
        settings = PEERS[name][3]
        if len(settings) > 1:
            tried = [one(name, setting, asked.probe_window, asked, run) for setting in settings]
            probes += tried
            settings = [max(tried, key=lambda r: r["simulations/s"])["setting"]]
        peers.append(one(name, settings[0], asked.peer_window, asked, run))
    uniform = None
    if "mctx" in (asked.only or PEERS):
        uniform = one("mctx", "--games 64 --uniform", asked.probe_window, asked, run)
    return peers, probes, uniform


def one(name: str, setting: str, window: float, asked: argparse.Namespace, run: Measure) -> Row:
    """A peer's rates in one window."""
    environment, script, checkout, _ = PEERS[name]
    words = [
        "env",
        "-u",
        "PYTHONPATH",
        str(asked.peers / environment / "bin/python"),
        str(HERE / "peers" / script),
        *setting.split(),
    ]
    for option in ("simulations", "blocks", "filters"):
        words += [f"--{option}", str(getattr(asked, option))]
    words += ["--board", asked.env] if environment in ("mctx", "spiel") else []
    words += ["--path", str(asked.peers / "src" / checkout)] if checkout else []
    row = run(words, WARM, window)
    begin, end = row["lines"][0], row["lines"][-1]
    seconds = end["wall_seconds"] - begin["wall_seconds"]
    rates = {key: (end[key] - begin[key]) / seconds for key in ("steps", "evaluations", "moves")}
    found = {
        "player": TITLES[name],
        "setting": setting,
        "tree": "kept" if name == "azg" else "anew",
        "simulations/s": rates["steps"],
        "evaluations/s": rates["evaluations"],
        "moves/s": rates["steps"] / asked.simulations,
        "cores": row["own_cores"],
        "others' cores": row["others_cores"],
        "window, s": seconds,
    }
    print(found, flush=True)
    return found


CASES = [("torch", "float32"), ("torch", "bfloat16"), ("openvino", "bfloat16")]
SHARE = 0.93
# × the best peer
TARGETS = {("torch", "bfloat16"): 4.5, ("openvino", "bfloat16"): 5.5, ("torch", "float32"): 2.2}
GO_TARGETS = {**TARGETS, ("torch", "bfloat16"): 5.5}
SLOW_TARGET = 150.0  # × OpenSpiel's Python, in Go
GAMES_TARGET = 8.0  # × the best peer's games per hour, subtree kept: connect four
COUNTS = ("evaluations", "moves", "games", "seconds", "cpu", "alone", "alone_seconds", "alone_cpu")


class Counted:
    """A network evaluator that counts, and keeps the last full batch."""

    def __init__(self, inner: NetworkEvaluator, board: Game):
        self.inner, self.title, self.evaluations = inner, inner.title, 0
        self.full = np.zeros((inner.batch, *board.planes), np.float32)

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.evaluations += len(planes)
        return self.inner.evaluate(planes)


class Player:
    """One worker's games, whose slots are given back at once."""

    def __init__(self, i: int, backend: str, precision: str, kept: bool, asked: argparse.Namespace):
        envs = Envs(asked.env, asked.games)
        self.board, factory = board_of(envs), BoardNetworkFactory(envs.spec, asked.blocks, asked.filters)
        network = NetworkEvaluator(factory, asked.games, backend, precision, asked.device)
        network.take(0)
        temperature = ((0, 1.0), (12, 0.0))
        options = SearchOptions(
            asked.simulations, "alphago_zero", noise=0.25, noise_alpha=1.0, temperature=temperature, reuse=kept
        )
        self.queue = RolloutQueue(game_rows(self.board), {}, 4 * (self.board.longest + 1), 1, 4)
        self.ctx = WorkerContext("self_play", i, asked.players, 0, i, Counters(1), RunControl())
        self.evaluator = Counted(network, self.board)
        producer = self.queue.producer(0)
        self.play = SelfPlay(self.ctx, self.board, asked.games, options, self.evaluator, producer)
        self.taken = self.queue.batches(1).consumer(0, wait=False)
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        for slot in self.play.slots(lambda: 0):
            if slot is not None:
                self.play.out.commit(slot)
                next(self.taken)
            yield

    def spread(self, seconds: float) -> None:
        """Bring games to all stages."""
        self.play.search.evaluator = UniformEvaluator(self.board.actions)
        self.during(seconds)
        self.play.search.evaluator = self.evaluator
        while len(planes := self.play.search.round()) < len(self.evaluator.full):
            next(self.steps)
        self.evaluator.full[:] = planes

    def during(self, seconds: float) -> Row:
        """Counts of some seconds of self-play."""
        counted = self.ctx.counters
        before = self.evaluator.evaluations, counted.get("steps"), counted.get("episodes")
        begun, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            next(self.steps)
        passed, cpu = time.perf_counter() - begun, time.process_time() - cpu
        after = self.evaluator.evaluations, counted.get("steps"), counted.get("episodes")
        made = dict(zip(COUNTS, (b - a for a, b in zip(before, after, strict=True)), strict=False))
        return {**made, "seconds": passed, "cpu": cpu}

    def alone(self, seconds: float) -> Row:
        """Of the evaluator alone."""
        n, begun, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            self.evaluator.inner.evaluate(self.evaluator.full)
            n += len(self.evaluator.full)
        passed, cpu = time.perf_counter() - begun, time.process_time() - cpu
        return {"alone": n, "alone_seconds": passed, "alone_cpu": cpu}


def work(i: int, case: tuple, asked: argparse.Namespace, together: Any, answers: Any) -> None:
    """One player's turns, at the same time as the others'."""
    tune(1)  # as any worker of a run
    player = Player(i, *case, asked)
    player.spread(asked.spread)
    player.during(asked.turn / 2)
    sums = dict.fromkeys(COUNTS, 0.0)
    for _ in range(max(1, round(asked.window / asked.turn))):
        for timed in (lambda: player.during(asked.turn), lambda: player.alone(asked.turn / 3)):
            together.wait()
            for name, value in timed().items():
                sums[name] += value
    answers.put(sums)


def ours(backend: str, precision: str, kept: bool, asked: argparse.Namespace) -> Row:
    """All players' rates."""
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(asked.players), context.Queue()
    given = ((backend, precision, kept), asked, together, answers)
    players = [context.Process(target=work, args=(i, *given), daemon=True) for i in range(asked.players)]
    for player in players:
        player.start()
    found = [answers.get(timeout=120 + 3 * asked.window) for _ in players]
    for player in players:
        player.join()

    def rate(name: str, over: str) -> float:
        return sum(f[name] / f[over] for f in found)

    moves = rate("moves", "seconds")
    return {
        "player": "Polyplay",
        "setting": f"{backend} {precision}",
        "tree": "kept" if kept else "anew",
        "simulations/s": None if kept else asked.simulations * moves,
        "evaluations/s": rate("evaluations", "seconds"),
        "alone/s": rate("alone", "alone_seconds"),
        "share": rate("evaluations", "seconds") / rate("alone", "alone_seconds"),
        "share, CPU time": rate("evaluations", "cpu") / rate("alone", "alone_cpu"),
        "moves/s": moves,
        "length": sum(f["moves"] for f in found) / max(1, sum(f["games"] for f in found)),
    }


def verdicts(rows: list[Row], peers: list[Row], uniform: Row | None, tree: float, go: bool) -> list[str]:
    anew = {r["setting"]: r for r in rows if r["tree"] == "anew"}
    kept = {r["setting"]: r for r in rows if r["tree"] == "kept"}
    lines = [verdict(f"{r['setting']}, {r['tree']}, share", r["share"], least=SHARE) for r in rows]
    if peers:
        best = max(peers, key=lambda r: r["simulations/s"])
        for (backend, precision), least in (GO_TARGETS if go else TARGETS).items():
            if row := anew.get(f"{backend} {precision}"):
                name = f"{row['setting']}, simulations/s over those of {best['player']}"
                lines.append(verdict(name, row["simulations/s"] / best["simulations/s"], least=least))
        quick = max(peers, key=lambda r: r["moves/s"])
        for row in () if go else kept.values():
            name = f"{row['setting']}, subtree kept, games/hour over those of {quick['player']}"
            lines.append(verdict(name, row["moves/s"] / quick["moves/s"], least=GAMES_TARGET))
        for slow in (r for r in peers if go and r["player"].startswith("OpenSpiel")):
            most = max(anew.values(), key=lambda r: r["simulations/s"])
            name = f"{most['setting']}, simulations/s over those of {slow['player']}"
            lines.append(verdict(name, most["simulations/s"] / slow["simulations/s"], least=SLOW_TARGET))
    if uniform:
        lines.append(f"- uniform evaluators: ours {tree:.0f}, mctx {uniform['simulations/s']:.0f} simulations/s")
        name, ratio = "the tree alone over mctx, uniform evaluators", tree / uniform["simulations/s"]
        lines.append(f"- {name}: **{ratio:.3g}**" if go else verdict(name, ratio, least=10))
    return lines


def measured(words: list[str], warm: float, window: float) -> Row:
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.jsonl"
        return measure([*words, "--log", str(log)], log, warm, window, ROOT, stop=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--env", default="game:connect_four")
    for name, value in {"players": 2, "games": 64, "simulations": 100, "blocks": 5, "filters": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--window", type=float, default=60.0, help="seconds of self-play for each row of ours")
    parser.add_argument("--turn", type=float, default=6.0, help="seconds of self-play between two of the evaluator")
    parser.add_argument("--spread", type=float, default=4.0, help="seconds of play by a uniform evaluator before")
    parser.add_argument("--peers", type=Path, help="environments, see peers/README.md; without it there are only ours")
    parser.add_argument("--only", nargs="+", help="of the peers: mctx azg lightzero openspiel")
    parser.add_argument("--peer-window", type=float, default=40.0)
    parser.add_argument("--probe-window", type=float, default=12.0, help="for each setting of a peer that has several")
    parser.add_argument("--device", default="cpu", help="of the evaluators")
    parser.add_argument("--out", type=Path, default=RESULTS / "self_play")
    asked = parser.parse_args()
    name, what = asked.env.removeprefix("game:"), about()
    go = name.startswith("go")
    here = [c for c in CASES if c[0] != "openvino" or importlib.util.find_spec("openvino")]
    rows = [shown(ours(*case, kept, asked)) for kept in (False, True) for case in here]
    run: Callable = measured
    peers, probes, uniform = peer_rows(asked, run) if asked.peers else ([], [], None)
    tree = alone(name, 128, 1, argparse.Namespace(simulations=200, repeats=40))[SPEED] if uniform else 0.0
    length = float(np.mean([r["length"] for r in rows if r["tree"] == "anew"]))
    for row in [*rows, *peers]:
        row["games/hour"] = 3600 * row["moves/s"] / length
    text = ["# Self-play alone", "", *lines_about(what)]
    text += [
        f"- {asked.env}; {asked.players} players of {asked.games} games; windows of {asked.window:g} s;"
        f" games of {length:.1f} moves"
    ]
    text += ["", *table([*rows, *peers]), "", *verdicts(rows, peers, uniform, tree, go)]
    if probes:
        text += ["", "## Settings of peers", "", *table(probes)]
    publish(asked.out, {**what, "rows": rows, "peers": peers, "probes": probes, "uniform": uniform, "tree": tree}, text)


def shown(row: Row) -> Row:
    print(row, flush=True)
    return row


# A whole run of AlphaGo Zero against what its parts allow: moves per second of players and learner together


TARGET = 0.85
PAGE = load("alphago_zero")


def settings(asked: argparse.Namespace) -> Row:
    """Of the page: quick's, but for network and search."""
    sizes = {
        "games": asked.games,
        "players": asked.players,
        "simulations": asked.simulations,
        "learning_starts": asked.start,
    }
    return {**sizes, "root": "puct", "blocks": asked.blocks, "filters": asked.filters, "evaluator": asked.evaluator}


def update_seconds(asked: argparse.Namespace) -> float:
    """Of an update of the learner, its replay's draw included, with one thread."""
    torch.set_num_threads(1)
    crew = Crew(0, steps=1_000_000, precision=asked.precision)
    PAGE.build(PAGE.Config(**vars(PAGE.presets["quick"]()) | settings(asked)), crew)
    role = next(r for r in crew.roles if r.spec)
    ctx = WorkerContext("learn", 0, 1, 0, 0, Counters(1), RunControl(), precision=asked.precision)
    learner = role.source.open(ctx, Learner(ctx, role.spec), role.holds["publish"])
    fill(learner, asked)
    begun, n = 0.0, -3
    while n < 1 or time.perf_counter() - begun < asked.update_seconds:
        begun = time.perf_counter() if n == 0 else begun
        deque(learner.learn(()), 0)
        n += 1
    return (time.perf_counter() - begun) / n


def fill(learner: ReplayFeed, asked: argparse.Namespace) -> None:
    """Positions of games that a uniform evaluator plays."""
    player = Player(0, "torch", "float32", True, asked)
    player.play.search.evaluator = UniformEvaluator(player.board.actions)
    while learner.buffer.steps < 2 * asked.start:
        for slot in player.play.slots(lambda: 0):
            if slot is not None:
                player.play.out.commit(slot)
                rows, state = next(player.taken)
                deque(learner.learn((tree.map(lambda x: x.copy(), rows), state)), 0)
                next(player.taken)
                break


def whole(asked: argparse.Namespace) -> Row:
    """The run's moves per second in a window."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        words = [sys.executable, "-m", "polyplay", "train", "alphago_zero", "--preset", "quick", "--run", str(run)]
        for name, value in settings(asked).items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        words += ["--precision", asked.precision, "--steps", "100000000", "--report-every", "1", "--seed", "0"]
        return measure(words, run / "metrics.jsonl", asked.warm, asked.window, ROOT, stop=True)


def run_self_play_run() -> None:
    """A whole run of AlphaGo Zero against what its parts allow: moves per second of players and learner together.

        python bench/self_play.py run

    The run: connect four, 5 blocks of 64 filters, 100 simulations a move, the subtree kept, a learner with the batches
    and the ratio of preset `quick`. Its parts, each alone: the players without a learner (self_play.py), and the
    learner's updates from a replay that is full, on one core. A move costs the players' cores a time and the learner a
    share of an update; the limit is cores / their sum.
    """
    parser = command_line(run_self_play_run.__doc__)
    for name, value in {"players": 2, "games": 64, "simulations": 100, "blocks": 5, "filters": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--start", type=int, default=2_000, help="moves before the first update")
    parser.add_argument("--evaluator", choices=BACKENDS, default="torch")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds after the first update")
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--turn", type=float, default=6.0)
    parser.add_argument("--spread", type=float, default=4.0)
    parser.add_argument("--update-seconds", type=float, default=10.0, help="of updates alone")
    parser.add_argument("--out", type=Path, default=RESULTS / "self_play_run")
    asked = parser.parse_args()
    what, quick = about(), PAGE.presets["quick"]()
    update = update_seconds(asked)
    before = ours(asked.evaluator, asked.precision, True, asked)
    row = whole(asked)
    after = ours(asked.evaluator, asked.precision, True, asked)
    alone = spread([before["moves/s"], after["moves/s"]])
    cost = asked.players / alone["median"] + quick.ratio / quick.batch * update
    limit = asked.players / cost
    found = {
        "moves/s": row["sps"],
        "games/hour": 3600 * row["sps"] / after["length"],
        "limit, moves/s": limit,
        "share": row["sps"] / limit,
        "players alone, moves/s": alone["median"],
        "ms/update alone": 1000 * update,
        "own cores": row["own_cores"],
        "others' cores": row["others_cores"],
    }
    text = ["# A whole run of AlphaGo Zero", "", *lines_about(what)]
    text += [f"- {asked.evaluator} {asked.precision}; players alone, before and after: {said(alone, 1)} moves/s", ""]
    text += [*table([found]), "", verdict("share of what the parts allow", found["share"], least=TARGET)]
    publish(asked.out, {**what, "row": found}, text)


# What OpenSpiel's rules cost a search: self-play of connect four by them, beside our own rules


LEAST = 0.8
GAMES = {"ours": "game:connect_four", "OpenSpiel's": "game:spiel:connect_four"}


def run_spiel() -> None:
    """What OpenSpiel's rules cost a search: self-play of connect four by them, beside our own rules.

        python bench/self_play.py spiel

    Both play with the same network in one process, in turns: 5 blocks of 64 filters, 100 simulations a move.
    """
    parser = command_line(run_spiel.__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turn", type=float, default=5.0, help="seconds of each in a round")
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    how = {"games": 64, "simulations": 100, "blocks": 5, "filters": 64, "players": 1}
    players = {
        name: Player(0, "torch", asked.precision, False, argparse.Namespace(env=env, **how))
        for name, env in GAMES.items()
    }
    for player in players.values():
        player.spread(4.0)
    rates = dict[str, list[float]]()
    for _ in range(asked.rounds):
        for name, player in players.items():
            found = player.during(asked.turn)
            rates.setdefault(name, []).append(how["simulations"] * found["moves"] / found["seconds"])
    ratios = [theirs / ours for ours, theirs in zip(*rates.values(), strict=True)]
    rows = [{"rules": name, "simulations/s": round(sorted(of)[len(of) // 2])} for name, of in rates.items()]
    what, found = about(), spread(ratios)
    text = ["# OpenSpiel's rules in a search", "", *lines_about(what), ""]
    text += [f"Connect four, torch {asked.precision}, one core; {asked.rounds} rounds of {asked.turn:g} s.", ""]
    text += [*table(rows), "", f"OpenSpiel's over ours: {said(found)}.", ""]
    text += [verdict("OpenSpiel's rules over ours", found["median"], least=LEAST)]
    publish(RESULTS / "spiel", {**what, "rates": rates, "ratios": found}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "run": run_self_play_run, "spiel": run_spiel}))
