"""Environments that were not written for Polyplay: the command line checks each, trains in it and learns it.

Needs `pip install 'gymnasium[box2d,mujoco,toy-text]' minigrid envpool vizdoom crafter dm-control shimmy popgym nasim
flappy-bird-gymnasium highway-env mpe2 'mujoco<4'` beside Polyplay. Writes bench/results/third_party.md (and
.json), which docs/start/your_environment.md shows. `--only` measures some rows again and keeps the others. A row has
the mean return of the last 100 episodes of training, a curve of it, and the score of an evaluation; third_party.png
shows the curves.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from common import HERE, RESULTS, Row, about, command_line, commands, lines_about, publish, said, spread, table, thin
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel
from strength import decisive_positions, moves_kept

import polyplay
from polyplay.acting.play import match
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core import checkpoint, tree
from polyplay.core.files import read_lines
from polyplay.envs import Discrete, Envs
from polyplay.envs.pettingzoo import parallel_of
from polyplay.envs.spaces import action_sampler
from polyplay.evaluation.matches import both_colors
from polyplay.games.board_pool import Opponent, opponent
from polyplay.games.board_rules import show_all
from polyplay.games.boards import GAMES

# package, name, words of training, mean return that counts as learned
LIST: list[tuple[str, str, str, float]] = [
    ("gymnasium", "CartPole-v1", "ppo --steps 200k", 400.0),
    ("gymnasium", "Taxi-v4", "ppo --steps 1m", 5.0),
    ("gymnasium", "samples:vector", "ppo --steps 300k", -120.0),
    ("box2d", "LunarLander-v3", "ppo --steps 600k", 150.0),
    ("mujoco", "HalfCheetah-v5", "ppo --steps 600k", 1500.0),
    ("box2d", "CarRacing-v3", "ppo", 800.0),
    ("ale-py", "BreakoutNoFrameskip-v4", "ppo --steps 1500k", 20.0),
    ("gymnasium", "samples:LookAndSign", "ppo --steps 60k", 14.0),
    ("envpool", "envpool:CartPole-v1", "ppo --steps 200k", 400.0),
    ("minigrid", "samples:rooms", "ppo --steps 200k", 0.8),
    ("vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", "ppo --env-kwargs frame_skip=4 --steps 150k", 80.0),
    ("crafter", "samples:Craft", "ppo --steps 60k", 2.5),
    ("dm-control", "samples:cart", "ppo --steps 600k", 700.0),
    ("popgym", "samples:repeat", "ppo --core gru --steps 300k", 0.5),
    ("nasim", "samples:network", "ppo --steps 100k", 150.0),
    (
        "flappy-bird-gymnasium",
        "flappy_bird_gymnasium:FlappyBird-v0",
        "ppo --env-kwargs use_lidar=false --steps 600k",
        20.0,
    ),
    ("highway-env", "highway_env:highway-fast-v0", "dqn --steps 30k", 20.0),
    ("mpe2", "mpe2.simple_spread_v3:env", "ppo --steps 3m", -25.0),
]


SEEN = ("--images", "--stack", "--gray", "--size", "--frame-skip", "--env-kwargs")  # what the observations depend on


def run_polyplay(*words: str, seconds: float) -> tuple[int, str, str]:
    """(exit status, standard output, last line of the error)"""
    command = [sys.executable, "-m", "polyplay", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=seconds)
    except subprocess.TimeoutExpired:
        return 124, "", f"took longer than {seconds:g} s"
    error = [line for line in done.stderr.splitlines() if line.startswith("polyplay")] or done.stderr.splitlines()
    return done.returncode, done.stdout, (error or [""])[-1]


POINTS = 80  # of a curve


def one(package: str, name: str, words: str, target: float, check_steps: int) -> Row:
    """An environment as a row of the table."""
    row: Row = {"package": f"{package} {metadata.version(package)}", "environment": name}
    given = words.split()
    options = [w for i, w in enumerate(given) if w in SEEN or (given[i - 1] in SEEN and w[:2] != "--")]
    code, out, error = run_polyplay("check", name, *options, "--steps", str(check_steps), "--json", seconds=300)
    row["check"] = _verdict(json.loads(out)) if out.startswith("{") else error or f"exit status {code}"
    before = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        train = ["train", given[0], "--env", name, *given[1:], "--no-tensorboard", "--quiet", "--run", str(run)]
        code, _, error = run_polyplay(*train, seconds=14400)
        minutes = round((time.monotonic() - before) / 60, 1)
        summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
        lines = [r for r in read_lines(run / "metrics.jsonl") if r.get("episodic_return_mean") is not None]
        run_polyplay("evaluate", str(run), "--episodes", "30", seconds=1800)
        scores = [json.loads(file.read_text()) for file in run.glob("evaluation-*.json")]
        score = scores[0]["episodic_return_mean"] if scores else None
    got = summary.get("episodic_return_mean")
    row["trains"] = "yes" if code == 0 else f"exit status {code}: {error}"
    row["learns"] = "yes" if got is not None and got >= target else "no"
    row |= {"return": got, "asked": target, "evaluation": score, "agent steps": summary.get("steps")}
    row |= {"minutes": minutes, "command": f"polyplay train {words} --env {name}"}
    print(row, flush=True)
    return row | {"curve": [[r["steps"], round(r["episodic_return_mean"], 3)] for r in thin(lines, POINTS)]}


def draw_curves(rows: list[Row], out: Path) -> None:
    """A panel per environment: its mean return, and the one asked."""
    columns = 5
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.3 * lines), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False)
    for panel in panels.flat[len(rows) :]:
        panel.set_visible(False)
    for panel, row in zip(panels.flat, rows, strict=False):
        panel.axhline(row["asked"], color=FAINT, linewidth=2.0)
        panel.plot([s / 1e3 for s, _ in row["curve"]], [x for _, x in row["curve"]], color=COLORS[0], linewidth=1.6)
        panel.set_title(row["environment"].removesuffix(":env").rpartition(":")[2], loc="left", color=INK, fontsize=9)
        panel.tick_params(colors=INK, length=0, labelsize=8)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    figure.supxlabel("thousand agent steps", color=INK, fontsize=9)
    figure.supylabel("mean return of 100 episodes", color=INK, fontsize=9)
    figure.savefig(out)


def _verdict(report: dict[str, Any]) -> str:
    bad = [f"{f['level']}: {f['name']}" for f in report["rules"] if f["level"] in ("warning", "failed")]
    return "all well" if not bad else "; ".join(bad)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--check-steps", type=int, default=500)
    parser.add_argument("--only", nargs="*", help="parts of names")
    asked = parser.parse_args()
    file, where = RESULTS / "third_party", about()
    there = asked.only and file.with_suffix(".json").exists()
    old = json.loads(file.with_suffix(".json").read_text())["rows"] if there else []
    rows = {row["environment"]: row for row in old}
    for row in LIST:
        if not asked.only or any(part in row[1] for part in asked.only):
            rows[row[1]] = one(*row, asked.check_steps) | {"commit": where["commit"][:12]}
    found = [rows[name] for _, name, *_ in LIST if name in rows]
    text = ["# Environments of others", "", *lines_about(where), ""]
    packages = {row["package"] for row in found if row["learns"] == "yes"}
    text += [
        f"Of {len({row['package'] for row in found})} packages, {len(packages)} have an environment that is learned:"
    ]
    text += ["the mean return of the last 100 episodes of training is at least the one asked. evaluation: the mean"]
    text += ["of 30 games afterwards. Rows ran beside other work, so minutes are no measure of speed.", ""]
    text += ["![curves; the gray line is the return asked](third_party.png)", ""]
    draw_curves([row for row in found if row.get("curve")], file.with_suffix(".png"))
    shown = [{k: v for k, v in row.items() if k != "curve"} for row in found]
    publish(file, {**where, "rows": found}, [*text, *table(shown)])


# Microseconds an agent step of turn-based PettingZoo environments, all agents at once: by PettingZoo's own conv


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


def run_conversions() -> None:
    """Microseconds an agent step of turn-based PettingZoo environments, all agents at once: by PettingZoo's own
    conversion, by ours (envs/pettingzoo.py), and in an inline pool, which writes rows besides.

        python bench/third_party.py conversions

    Random legal actions. CPU time of one process; arms take turns, ratios are taken within a round.
    """
    parser = command_line(run_conversions.__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measure(module, asked.rounds, asked.seconds) for module in MODULES]
    what = about()
    text = ["# Turn-based PettingZoo environments, all agents at once: µs an agent step", "", *lines_about(what), ""]
    publish(RESULTS / "conversions", {**what, "rows": rows}, [*text, *table(rows)])


# PettingZoo's connect four, learnt by self-play from one command, beside Stable-Baselines3's MaskablePPO


GAME, GAMES_EACH, PLIES = GAMES["connect_four"], 400, 2
ENV = "pettingzoo.classic.connect_four_v3:env"
TRAIN = f"--env {ENV} --lanes 64 --unroll 64 --minibatches 4 --epochs 4 --network separate --hidden 256 256 --gamma 1"
TRAIN += " --lam 0.9 --learning-rate 1e-3 --entropy-cost 0.1 --max-grad-norm 0.5 --normalize-advantage --steps 10000000"
TRAIN += " --checkpoint-every 60 --keep 100 --no-tensorboard"
AGAINST = {"random": "points against random", "mcts:50": "points against search of 50"}


class Player:
    """An Opponent that is shown positions as PettingZoo shows them. choose: (boards [n, 6, 7, 2], legal moves [n, 7])
    -> the likeliest moves [n].
    """

    def __init__(self, choose: Any):
        self.choose = choose

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        boards, mask = shown(records[at])
        return np.asarray(self.choose(boards, mask), np.int64)


def shown(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = len(records)
    planes, mask = np.zeros((n, *GAME.planes), np.float32), np.zeros((n, GAME.actions), bool)
    show_all(GAME.numbers, records, np.arange(n), records[:, 0], planes, mask, np.zeros(n, bool))
    return np.moveaxis(planes[:, :2], 1, -1).astype(np.int8), mask


def of_run(found: Path) -> Any:
    agent = polyplay.load(found, trust=True)
    return lambda boards, mask: agent.act({"observation": boards}, mask=mask, greedy=True)[0]


def of_peer(file: Path) -> Any:
    arrays = np.load(file)
    layers = [(arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(sum(name[0] == "w" for name in arrays))]

    def choose(boards: np.ndarray, mask: np.ndarray) -> np.ndarray:
        x = boards.reshape(len(boards), -1).astype(np.float32)
        for w, b in layers[:-1]:
            x = np.tanh(x @ w.T + b)
        logits = np.where(mask, x @ layers[-1][0].T + layers[-1][1], -np.inf)
        return np.argmax(logits, 1)

    return choose


def measured(choose: Any) -> Row:
    found = {"value kept": float(np.mean(moves_kept(Player(choose), decisive_positions(GAME))))}
    for name, column in AGAINST.items():
        other: Opponent = opponent(name, GAME)
        starts = both_colors(GAME, GAMES_EACH, PLIES, 0)
        found[column] = float(match(GAME, Player(choose), other, starts, 0).mean())
    return {k: round(v, 3) for k, v in found.items()}


def curve_of_run(run: Path) -> list[Row]:
    rows = []
    for found in checkpoint.everything(run):
        about_it = checkpoint.manifest(found)["counters"]
        at = {"moves": about_it["steps"] // 2, "minutes": round(about_it["wall_seconds"] / 60, 1)}
        rows.append({**at, **measured(of_run(found))})
        print(rows[-1], flush=True)
    return rows


def curve_of_peer(directory: Path) -> list[Row]:
    rows = []
    for file in sorted(directory.glob("*.npz")):
        arrays = np.load(file)
        at = {"moves": int(arrays["moves"]), "minutes": round(float(arrays["seconds"]) / 60, 1)}
        rows.append({**at, **measured(of_peer(file))})
        print(rows[-1], flush=True)
    return rows


def draw(curves: dict[str, list[Row]], out: Path) -> None:
    figure = Figure(figsize=(10, 3.6), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    for axes, column in zip(panels, ("value kept", *AGAINST.values()), strict=True):
        for (name, rows), color in zip(curves.items(), COLORS, strict=False):
            axes.plot([r["moves"] / 1e6 for r in rows], [r[column] for r in rows], color=color, label=name)
        axes.set_title(column, color=INK, fontsize=10)
        axes.set_xlabel("million moves", color=INK)
        axes.grid(color=FAINT)
    panels[0].legend(frameon=False)
    figure.savefig(out)


def run_pettingzoo_game() -> None:
    """PettingZoo's connect four, learnt by self-play from one command, beside Stable-Baselines3's MaskablePPO.

        python bench/third_party.py pettingzoo RUN --peer DIR

    Trains PPO, one policy in both seats, into RUN if it is not there, by the command that the page prints. DIR: what
    `peers/sb3_connect_four.py --moves 5000000` left. The curve, for each checkpoint and its likeliest moves: how often
    they keep the value of the decisive positions; and points, 1 for a win and ½ for a draw, in 400 games
    from 200 openings of 2 random plies, each with both colors, against random moves and against tree search by 50
    random roll-outs. A move is one player's; in PettingZoo's parallel form the other player has a row too, so that a
    move is two agent steps. Polyplay's policy learns from all moves, the peer's from those of one side.
    """
    parser = command_line(run_pettingzoo_game.__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    asked = parser.parse_args()
    if not asked.run.exists():
        command = [sys.executable, "-m", "polyplay", "train", "ppo", *TRAIN.split(), "--run", str(asked.run)]
        subprocess.run(command, check=True)
    curves = {"polyplay ppo": curve_of_run(asked.run), "MaskablePPO": curve_of_peer(asked.peer)}
    what = about()
    text = ["# PettingZoo's connect four by self-play", "", *lines_about(what), ""]
    text += [f"Trained by `polyplay train ppo {TRAIN}`.", "", "![curves](pettingzoo_game.png)", ""]
    chance = f"{decisive_positions(GAME).at_random:.0%}"
    text += [f"Of the likeliest moves of each checkpoint; a random move keeps the value in {chance} of the positions."]
    text += ["Networks, learning rate and passes are the same. Both ran at the same time, beside other work, so their"]
    text += ["minutes do not compare.", ""]
    for name, rows in curves.items():
        text += [f"## {name}", "", *table(rows), ""]
    publish(RESULTS / "pettingzoo_game", {**what, "curves": curves}, text)
    draw(curves, RESULTS / "pettingzoo_game.png")


# What Polyplay relies on in EnvPool, looked for in the real one: `pip install 'polyplay[envpool]'`, then this


FAMILIES = ("Pong-v5", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "LunarLander-v3")
DICTS = ("FetchReach-v1", "MiniGrid-Empty-5x5-v0")
RULES: tuple[dict[str, Any], ...] = ({}, {"groups": 2}, {"at_once": 3})


def lanes_of(envs: Envs, turns: int, seed: int = 3) -> list[list[dict[str, Any]]]:
    """Rows per lane; a lane's actions depend on its own past alone, so that rules can be compared."""
    pool, rows = envs.open(seed), [[] for _ in range(envs.lanes)]  # type: Any, list[list[dict[str, Any]]]
    random = [np.random.default_rng(i) for i in range(envs.lanes)]
    action = envs.spec.action
    for _ in range(turns):
        lanes, batch = pool.recv()
        chosen: list[Any] = []
        for k, lane in enumerate(np.arange(envs.lanes)[lanes].tolist()):
            rows[lane].append(tree.map(lambda x, k=k: np.copy(x[k]), batch))
            draw = random[lane]
            chosen.append(draw.integers(action.n) if isinstance(action, Discrete) else draw.normal(size=action.shape))
        pool.send(lanes, np.array(chosen, np.int64 if isinstance(action, Discrete) else np.float32))
    pool.close()
    return rows


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    pairs = zip(a, b, strict=False)
    return all((x == y).all() for p, q in pairs for (_, x), (_, y) in zip(tree.leaves(p), tree.leaves(q), strict=True))


def convention(rows: list[dict[str, Any]]) -> bool:
    """First rows follow ends and nothing else, and have no reward."""
    ended = True
    for row in rows:
        if bool(row["first"]) != ended or (row["first"] and row["reward"]):
            return False
        ended = bool(row["terminated"] | row["truncated"])
    return True


def family(name: str) -> bool:
    """Under every rule, with 1 and 2 threads, lanes have the same rows, and they are the convention."""
    short = {"max_episode_steps": 15}
    plain = lanes_of(Envs(f"envpool:{name}", 4, workers=1, options=short), 60)
    for rule in RULES:
        rows = lanes_of(Envs(f"envpool:{name}", 4, workers=2, options=short, **rule), 60)
        if not all(len(b) > 5 and same(a, b) and convention(b) for a, b in zip(plain, rows, strict=True)):
            return False
    return any(sum(bool(r["first"]) for r in lane) > 1 for lane in plain)


def seeds() -> bool:
    """CartPole starts somewhere else in every lane, and with every seed."""
    envs = Envs("envpool:CartPole-v1", 4)
    return len({r[0]["obs"].tobytes() for seed in (0, 1) for r in lanes_of(envs, 1, seed)}) == 8


def lives() -> bool:
    """Breakout, five lives, with episodic_life: ends that are not over, then one that is."""
    (rows,) = lanes_of(Envs("envpool:Breakout-v5", 1, options={"episodic_life": True}), 400)
    ends = [bool(r["over"]) for r in rows if r["terminated"]]
    return convention(rows) and ends[:5] == [False, False, False, False, True]


def whole_games() -> bool:
    (rows,) = lanes_of(Envs("envpool:Breakout-v5", 1), 400)
    ends = [bool(r["over"]) for r in rows if r["terminated"]]
    return convention(rows) and bool(ends) and all(ends)


def cut() -> bool:
    (rows,) = lanes_of(Envs("envpool:Pong-v5", 1, options={"max_episode_steps": 10}), 30)
    return [t for t, r in enumerate(rows) if r["truncated"] and r["over"] and not r["terminated"]] == [10, 21]


def parked() -> bool:
    """A lane that is not answered for long does not hold up the others; pools are given up with steps under way."""
    pool = Envs("envpool:Pong-v5", 4, at_once=3).open(0)
    lanes, _ = pool.recv()
    for _ in range(50):
        pool.send(lanes[1:], np.zeros(len(lanes) - 1, np.int64))
        again, _ = pool.recv()
        lanes = np.concatenate([lanes[:1], again])
    pool.send(lanes, np.zeros(len(lanes), np.int64))
    pool.close()
    return len(lanes) == 4


def learns(on: str) -> bool:
    settings: dict[str, Any] = dict(
        network="mlp", optimizer="adam", entropy_cost=0.0, lanes=8, unroll=8, steps=40_000, learning_rate=4e-3
    )
    more: dict[str, Any] = dict(gamma=0.98, lam=0.98, reward="scale", inputs="normalize", anneal="constant", replicas=1)
    with tempfile.TemporaryDirectory() as place:
        run = polyplay.train("a2c", env="envpool:CartPole-v1", on=on, run=f"{place}/run", **settings, **more)
        return run.summary["episodic_return_mean"] > 100 and run.evaluate(10)["episodic_return_mean"] > 100


def pong(system: str) -> bool:
    with tempfile.TemporaryDirectory() as place:
        run = polyplay.train(system, env="envpool:Pong-v5", preset="quick", steps=2_000, run=f"{place}/run")
        return run.exit_code == 0 and run.summary["frames"] >= 8_000


CLAIMS: tuple[tuple[str, Callable[[], bool]], ...] = (
    *((f"{n}: rows by convention, the same under every rule and with any threads", lambda n=n: family(n))
      for n in (*FAMILIES, *DICTS)),
    ("every lane and every run has seeds of its own", seeds),
    ("with episodic_life a lost life terminates, the game goes on", lives),
    ("without it games are played to their end", whole_games),
    ("time limits truncate at the right row", cut),
    ("lanes can be parked, and a pool given up in mid-step", parked),
    ("a2c learns CartPole with it, normalized, in a process, and evaluates", lambda: learns("process")),
    ("a2c trains on its Pong", lambda: pong("a2c")),
    ("impala trains on its Pong", lambda: pong("impala")),
)  # fmt: skip


def run_epool() -> int:
    """What Polyplay relies on in EnvPool, looked for in the real one: `pip install 'polyplay[envpool]'`, then this.

    The tests use a stand-in (tests/envs/fakepool.py), since EnvPool with its assets takes some 780 MB. Every line is a
    claim that holds; the first that does not ends the script with exit status 1. Nothing is measured here.
    """
    command_line(run_epool.__doc__).parse_args()
    warnings.simplefilter("ignore")
    import envpool

    print(f"EnvPool {envpool.__version__}, {len(envpool.list_all_envs())} tasks", flush=True)
    for claim, holds in CLAIMS:
        good = holds()
        print(f"{'holds' if good else 'FAILS'}  {claim}", flush=True)
        if not good:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(
        commands({"": main, "conversions": run_conversions, "pettingzoo": run_pettingzoo_game, "envpool": run_epool})
    )
