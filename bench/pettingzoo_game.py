"""PettingZoo's connect four, learnt by self-play from one command, beside Stable-Baselines3's MaskablePPO.

    python bench/pettingzoo_game.py RUN --peer DIR

Trains PPO, one policy in both seats, into RUN if it is not there, by the command that the page prints. DIR: what
`peers/sb3_connect_four.py --moves 5000000` left. The curve, for each checkpoint and its likeliest moves: how often they
keep the value of the decisive positions (positions.py); and points, 1 for a win and ½ for a draw, in 400
games from 200 openings of 2 random plies, each with both colours, against random moves and against tree search by 50
random roll-outs. A move is one player's; in PettingZoo's parallel form the other player has a row too, so that a move
is two agent steps. Polyplay's policy learns from all moves, the peer's from those of one side.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from positions import decisive_positions, moves_kept

import polyplay
from polyplay.acting.play import match
from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.core import checkpoint
from polyplay.evaluation.matches import both_colors
from polyplay.games.board_pool import show_all
from polyplay.games.boards import GAMES
from polyplay.games.mcts import Opponent, opponent

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
        for (name, rows), color in zip(curves.items(), COLOURS, strict=False):
            axes.plot([r["moves"] / 1e6 for r in rows], [r[column] for r in rows], color=color, label=name)
        axes.set_title(column, color=INK, fontsize=10)
        axes.set_xlabel("million moves", color=INK)
        axes.grid(color=FAINT)
    panels[0].legend(frameon=False)
    figure.savefig(out)


def main() -> None:
    parser = command_line(__doc__)
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


if __name__ == "__main__":
    main()
