"""Strength of a player of a board game; nothing is written into the run.

    python bench/strength.py runs/connect_four --out bench/results/connect_four
    python bench/strength.py runs/othello6 --every 6 --out bench/results/othello6
    python bench/strength.py runs/go9 --out bench/results/go9_versus

A network alone, and in a search of 100 and 800 simulations: how often does its move keep the value of the decisive
positions, where the game has some? With 400 simulations: 100 games against tree search by 1,000 random
roll-outs, from 50 openings of 2 random plies, each with both colors. --perfect: in connect four so many games against
perfect play too, from positions after 8 random plies that perfect play does not lose. A game is held if the run gets
what its first position is worth.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, commands, lines_about, publish, table, verdict, wilson

import polyplay
from polyplay.acting.play import MatchStarts, PlayOptions, load_player, match
from polyplay.cli.evaluate import score_line
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.evaluation.agent import find_agent, find_agents
from polyplay.evaluation.evaluate import EvaluateOptions, play_and_score
from polyplay.evaluation.gtp import GtpPlayer, programs_running
from polyplay.evaluation.matches import (
    BoardPlayer,
    both_colors,
    named_player,
    openings,
    play_match,
    player_of,
    player_of_agent,
)
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.games import board_rules, records
from polyplay.games import records as kernels
from polyplay.games.board_pool import Opponent, board_of, opponent, solver
from polyplay.games.boards import GAMES, Game, game
from polyplay.games.records import CELLS
from polyplay.runs.load import crew_of, load_run
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.search import Search, SearchPolicy

# Decisive positions of connect four and of Othello 6×6, a measure of strength: how often does a move keep their


Position = tuple[str, int, str]
FOUR, OTHELLO = GAMES["connect_four"], game("othello+size=6")
FOLDER = Path(__file__).with_name("positions")
FILES = {FOUR.name: FOLDER / "connect_four.csv", OTHELLO.name: FOLDER / "othello6.csv"}
FEWEST, MOST = 8, 24  # stones of a position of connect four; of Othello 5 to 12 cells are empty
AT_ONCE = 100  # positions that a player is asked for together


@dataclass(frozen=True)
class Decisive:
    """Positions and what a solver says of them."""

    game: Game
    plays: list[str]  # the moves that lead to each
    records: np.ndarray  # int8 [n, record]
    outcomes: np.ndarray  # int8 [n], for the mover
    keeping: np.ndarray  # bool [n, actions]: moves that keep the outcome

    def first(self, n: int) -> Decisive:
        """The first n of them."""
        return Decisive(self.game, self.plays[:n], self.records[:n], self.outcomes[:n], self.keeping[:n])

    @property
    def at_random(self) -> float:
        """The share that a random legal move keeps on the average."""
        room = np.empty(self.game.actions, np.int16)
        legal = [board_rules.legal(self.game.numbers, record, room) for record in self.records]
        return float((self.keeping.sum(1) / legal).mean())


def file_of(board: Game) -> Path | None:
    """The file of a game's positions, by its rules whatever its name; None: it has none."""
    return next((FILES[g.name] for g in (FOUR, OTHELLO) if np.array_equal(g.numbers, board.numbers)), None)


@cache
def decisive_positions(board: Game) -> Decisive:
    """The 1,000 of a game."""
    path = file_of(board)
    if path is None:
        raise ValueError(f"game:{board.name} has no decisive positions")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["moves"], int(row["outcome"]), row["keeping"]) for row in csv.DictReader(file)]
    return positions_of(board, rows)


def positions_of(board: Game, rows: Iterable[Position]) -> Decisive:
    """Positions of rows: moves, outcome, the moves that keep it."""
    found, known = list(rows), {board.move_name(action): action for action in range(board.actions)}
    records = np.stack([board.new() for _ in found])
    keeping = np.zeros((len(found), board.actions), bool)
    for record, kept, (play, _, names) in zip(records, keeping, found, strict=True):
        for name in _names(board, play):
            board_rules.play(board.numbers, record, known[name])
        kept[[known[name] for name in _names(board, names)]] = True
    return Decisive(board, [row[0] for row in found], records, np.array([row[1] for row in found], np.int8), keeping)


def _names(board: Game, text: str) -> Iterable[str]:
    return text if board.gravity else text.split()


def moves_kept(player: Opponent, positions: Decisive) -> list[float]:
    """1 for each position in which the player's move keeps the value, otherwise 0."""
    records, found = positions.records.copy(), list[float]()
    random = np.arange(len(records), dtype=np.uint64)
    for first in range(0, len(records), AT_ONCE):
        at = np.arange(first, min(first + AT_ONCE, len(records)))
        found += positions.keeping[at, player(records, random, at)].astype(float).tolist()
    return found


def candidates(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Without end: moves and records of random play of connect four that may be decisive, each once."""
    rng, seen = np.random.default_rng(seed), set[bytes]()
    while True:
        found = random_play(FOUR, int(rng.integers(FEWEST, MOST + 1)), rng)
        if found and (key := found[1].tobytes()) not in seen and not wins_at_once(FOUR, found[1]):
            seen.add(key)
            yield found


def random_play(board: Game, stones: int, rng: np.random.Generator) -> tuple[str, np.ndarray] | None:
    """Moves and record after so many random legal moves of a game without passes; None if the game ends before."""
    record, legal, names = board.new(), np.empty(board.actions, np.int16), ""
    for _ in range(stones):
        action = int(legal[rng.integers(board_rules.legal(board.numbers, record, legal))])
        names += board.move_name(action)
        if board_rules.play(board.numbers, record, action) != records.GOES_ON:
            return None
    return names, record


def wins_at_once(board: Game, record: np.ndarray) -> bool:
    """Whether the mover has a win by one stone."""
    legal = np.empty(board.actions, np.int16)
    moves = legal[: board_rules.legal(board.numbers, record, legal)]
    return any(board_rules.play(board.numbers, record.copy(), int(action)) == records.WON for action in moves)


def keeping_moves(record: np.ndarray) -> tuple[int, list[int]] | None:
    """The outcome and the moves that keep it; None if all do: the position is not decisive."""
    outcomes = {action: int(np.sign(score)) for action, score in solver().scores(record).items()}
    best = max(outcomes.values())
    keeping = [action for action, outcome in outcomes.items() if outcome == best]
    return (best, keeping) if len(keeping) < len(outcomes) else None


def drawn(seed: int) -> Iterator[Position]:
    """Without end: rows of decisive positions of connect four."""
    for play, record in candidates(seed):
        if found := keeping_moves(record):
            yield play, found[0], "".join(map(FOUR.move_name, found[1]))


def run_positions() -> None:
    """Decisive positions of connect four and of Othello 6×6, a measure of strength: how often does a move keep their
    value?

        python bench/strength.py positions        # draws those of connect four anew

    A position is decisive if some legal move gives the value away: makes a draw or a loss of a win, or a loss of a
    draw. They come from random play by seed, and the mover has no win by one stone. Those of connect four are judged by
    the package bitbully (the extra `solver`); those of Othello by an exact solver that the package had until November
    2026.
    """
    parser = command_line(run_positions.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=FILES[FOUR.name])
    asked = parser.parse_args()
    rows = list(islice(drawn(asked.seed), asked.positions))
    with asked.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("moves", "outcome", "keeping"), *rows])
    positions = positions_of(FOUR, rows)
    print(f"{about()['command']}: {len(rows)} decisive positions, a random move keeps {positions.at_random:.1%}")
    for outcome, name in ((1, "won"), (0, "drawn"), (-1, "lost")):
        print(f"  {name}: {int((positions.outcomes == outcome).sum())}")


VERSUS = EvaluateOptions(protocol="versus", against="mcts:1000", simulations=400, device="cpu")
PLIES = 8  # before a game against perfect play


def player(run: Path, path: Path, simulations: int) -> BoardPlayer:
    """The policy of a checkpoint in a search of so many simulations."""
    page, settings, run_options, _ = load_run(run)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    return player_of(wired, load_player(wired, path, "cpu", simulations), {}, PlayOptions(0))


def values_kept(run: Path, path: Path, simulations: int, positions: int = 1000) -> list[float]:
    """1 for each decisive position whose value its move keeps, otherwise 0."""
    one = player(run, path, simulations)
    found = moves_kept(one.moves, decisive_positions(one.board).first(positions))
    print(f"{path.name}, {simulations} simulations: {100 * np.mean(found):.1f} % of moves keep the value", flush=True)
    return found


def measured(run: Path, path: Path, options: EvaluateOptions) -> Row:
    """A match, its first line printed."""
    page, settings, run_options, _ = load_run(run)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    found = play_and_score(wired, wired.envs, path, options)
    shown = f"{options.protocol}, {options.simulations} simulations"
    print(path.name, score_line({**found, "label": shown}), flush=True)
    return found


class Judge:
    """A player of connect four whose moves are judged: of those in positions that are not lost, how many keep the
    value.
    """

    def __init__(self, player: Opponent):
        self.player, self.moves, self.kept = player, 0, 0

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = self.player(records, random, at)
        for lane, move in zip(at.tolist(), chosen.tolist(), strict=True):
            scores = solver().scores(records[lane])
            best = np.sign(max(scores.values()))
            self.moves += int(best >= 0)
            self.kept += int(best >= 0 and np.sign(scores[move]) == best)
        return chosen


def unlost(board: Game, games: int, plies: int, seed: int) -> tuple[MatchStarts, np.ndarray]:
    """Positions that perfect play does not lose for the player, drawn ones with both colors; their values int8 [n]."""
    found = list[tuple[np.ndarray, bool, int]]()
    for record in openings(board, plies, seed):
        value = int(np.sign(max(solver().scores(record).values())))
        found += [(record, begins, worth) for begins, worth in ((True, value), (False, -value)) if worth >= 0]
        if len(found) >= games:
            break
    records, begins, values = zip(*found[:games], strict=True)
    return MatchStarts(np.stack(records), np.array(begins)), np.array(values, np.int8)


def against_perfect(one: BoardPlayer, games: int, seed: int = 0) -> Row:
    """Moves that keep the value, and games held."""
    judge, (starts, values) = Judge(one.moves), unlost(one.board, games, PLIES, seed)
    points = match(one.board, judge, opponent("perfect", one.board), starts, seed)
    held = int((points >= (1 + values) / 2).sum())
    kept = {"moves that keep the value against perfect": f"{judge.kept} of {judge.moves}"}
    return {**kept, "games held": f"{held} of {games}"}


def row_of(run: Path, path: Path, last: bool, perfect: int) -> Row:
    """A checkpoint's strength; the last one is measured with more simulations, and in matches."""
    counters, begun = checkpoint.manifest(path)["counters"], time.perf_counter()
    row: Row = {"moves played": int(counters["steps"]), "games": int(counters["episodes"])}
    row["minutes"] = round(counters["wall_seconds"] / 60, 1)
    for simulations in () if file_of(load_board(run)) is None else (0, 100, 800) if last else (0, 100):
        row[f"{simulations} simulations"] = f"{100 * np.mean(values_kept(run, path, simulations)):.1f} %"
    if last:
        found = measured(run, path, VERSUS)
        row["against mcts:1000"] = f"{found['points']:g} of {found['episodes']}"
    if last and perfect:
        row |= against_perfect(player(run, path, 400), perfect)
    return {**row, "seconds": round(time.perf_counter() - begun)}


def load_board(run: Path) -> Game:
    page, settings, run_options, _ = load_run(run)
    return board_of(page.build(settings, crew_of(replace(run_options, device="cpu"))).envs)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=0, help="checkpoints of a curve; 0: the last one alone")
    parser.add_argument("--perfect", type=int, default=0, help="games against perfect play, an even number")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    config, there = load_run(asked.run)[3]["config"], checkpoint.everything(asked.run)
    chosen = there[:: max(1, len(there) // asked.every)] if asked.every else []
    last = there[-1]
    rows = [row_of(asked.run, path, path == last, asked.perfect) for path in dict.fromkeys([*chosen, last])]
    what = about()
    heads = dict.fromkeys(key for row in rows for key in row)
    shown = [{key: row.get(key, "") for key in heads} for row in rows]
    settings = ", ".join(f"{k} {config[k]}" for k in ("blocks", "filters", "simulations", "ratio", "learning_rate"))
    board, lines = load_board(asked.run), [*lines_about(what), f"- run: {settings}"]
    text = [f"# {board.title}: strength of a run", "", *lines, ""]
    if file_of(board) is not None:
        kept = decisive_positions(board).at_random
        text += [f"A random legal move keeps the value of {100 * kept:.1f} %.", ""]
    text += table(shown)
    publish(asked.out, {**what, "rows": rows}, text)


# Games of connect four against perfect play that begin early: after two random plies, after every two plies, an


GAME = GAMES["connect_four"]
SIMULATIONS = 400


class Perfect:
    """BitBully on our records. A score is positive where the mover wins, and the greater, the sooner."""

    @cached_property
    def solver(self) -> Any:
        from bitbully import BitBully

        return BitBully()

    def scores(self, record: np.ndarray) -> dict[int, int]:
        """Of every legal move, for the player that makes it."""
        from bitbully import Board

        cells = record[CELLS:].reshape(GAME.rows, GAME.columns).tolist()
        found: dict[int, int] = self.solver.score_all_moves(Board(cells))
        return dict(sorted(found.items()))

    def outcome(self, record: np.ndarray) -> int:
        """1 where the mover wins, 0 for a draw, -1 where the other wins."""
        return int(np.sign(max(self.scores(record).values())))

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = []
        for lane in at.tolist():
            scores = self.scores(records[lane])
            best = [move for move, score in scores.items() if score == max(scores.values())]
            draw = np.random.default_rng([int(random[lane]), kernels.ply(records[lane])])
            chosen.append(int(draw.choice(best)))
        return np.array(chosen)


@dataclass
class PerfectJudge:
    """A player, and by ply how many of its moves in positions that are not lost keep their value."""

    player: Opponent
    perfect: Perfect
    moves: np.ndarray
    kept: np.ndarray

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = self.player(records, random, at)
        for lane, move in zip(at.tolist(), chosen.tolist(), strict=True):
            outcomes = {a: int(np.sign(score)) for a, score in self.perfect.scores(records[lane]).items()}
            best, ply = max(outcomes.values()), kernels.ply(records[lane])
            self.moves[ply] += best >= 0
            self.kept[ply] += best >= 0 and outcomes[move] == best
        return chosen


def every_opening() -> Iterator[np.ndarray]:
    """The positions after each two moves."""
    for first in GAME.legal(GAME.new()):
        record = GAME.new()
        board_rules.play(GAME.numbers, record, first)
        for second in GAME.legal(record):
            after = record.copy()
            board_rules.play(GAME.numbers, after, second)
            yield after


def random_openings(plies: int, seed: int) -> Iterator[np.ndarray]:
    """Without end: positions after as many random moves, in which the game goes on."""
    rng = np.random.default_rng(seed)
    while True:
        record, result = GAME.new(), kernels.GOES_ON
        for _ in range(plies):
            result = board_rules.play(GAME.numbers, record, int(rng.choice(GAME.legal(record))))
            if result != kernels.GOES_ON:
                break
        if result == kernels.GOES_ON:
            yield record


def not_lost(openings: Iterator[np.ndarray], perfect: Perfect, most: int) -> tuple[MatchStarts, np.ndarray]:
    """Starts of games, at most `most`, in which perfect play does not lose for the agent, and their outcomes."""
    found = list[tuple[np.ndarray, bool, int]]()
    for record in openings:
        outcome = perfect.outcome(record)
        found += [(record, begins, value) for begins, value in ((True, outcome), (False, -outcome)) if value >= 0]
        if len(found) >= most:
            break
    records, begins, values = zip(*found[:most], strict=True)
    return MatchStarts(np.stack(records), np.array(begins)), np.array(values)


def played(run: Path, what: str, starts: MatchStarts, values: np.ndarray, perfect: Perfect, seed: int) -> Row:
    """A row of the table."""
    begun = time.perf_counter()
    player = player_of_agent(find_agent(str(run)), PlayOptions(0, seed), SIMULATIONS)
    judge = PerfectJudge(player.moves, perfect, np.zeros(GAME.longest, int), np.zeros(GAME.longest, int))
    points = match(GAME, judge, perfect, starts, seed)
    held, n = int((points >= (1 + values) / 2).sum()), len(points)
    low, high = wilson(held / n, n)
    early = slice(0, 8)
    return {
        "games begin": what,
        "games": n,
        "won starts": int((values == 1).sum()),
        "held": held,
        "share": f"{100 * held / n:.0f} %",
        "95 % interval": f"{100 * low:.0f} % to {100 * high:.0f} %",
        "moves that keep the value": f"{judge.kept.sum()} of {judge.moves.sum()}",
        "of these before ply 8": f"{judge.kept[early].sum()} of {judge.moves[early].sum()}",
        "seconds": round(time.perf_counter() - begun),
    }


def run_first_plies() -> None:
    """Games of connect four against perfect play that begin early: after two random plies, after every two plies, and
    after eight random ones. The perfect player and the judge are another's solver with its table of openings, BitBully.

        pip install bitbully
        python bench/strength.py plies bench/champions/connect_four --out bench/results/connect_four_plies

    A game begins where perfect play does not lose for the agent, with either color. The agent searches with 400
    simulations. Perfect play wins as soon as it can and loses as late as it can; among equal moves it draws one. A game
    is held if its result is no worse than that of its start under perfect play.
    """
    parser = command_line(run_first_plies.__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--early", type=int, default=62, help="games that begin after two random plies")
    parser.add_argument("--late", type=int, default=100, help="games that begin after eight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked, perfect = parser.parse_args(), Perfect()
    kinds = {
        "after 2 random plies": (random_openings(2, asked.seed), asked.early),
        "after each 2 plies": (every_opening(), 2 * GAME.columns**2),
        "after 8 random plies": (random_openings(8, asked.seed), asked.late),
    }
    rows = [
        played(asked.run, name, *not_lost(starts, perfect, most), perfect, asked.seed)
        for name, (starts, most) in kinds.items()
    ]
    what = about()
    text = ["# Connect four: games against perfect play that begin early", "", *lines_about(what)]
    text += [f"- the agent searches with {SIMULATIONS} simulations; perfect play: BitBully {version()}", ""]
    publish(asked.out, {**what, "bitbully": version(), "rows": rows}, [*text, *table(rows)])


def version() -> str:
    from importlib.metadata import version

    return version("bitbully")


# Elo of a run's checkpoints and of opponents by name, from a tournament: every two meet, with both colors


def spread(paths: list[Path], n: int) -> list[Path]:
    """n of them at even distances, the last one among them; fewer if there are fewer."""
    n = min(n, len(paths))
    return [paths[round((i + 1) * len(paths) / n) - 1] for i in range(n)]


def elo_row_of(player: Row, games: int) -> Row:
    name, low, high = str(player["name"]), player["low"], player["high"]
    counters = checkpoint.manifest(Path(name))["counters"] if Path(name).is_dir() else {}
    row: Row = {"player": "" if counters else name, "moves played": "", "minutes": ""}
    if counters:
        row |= {"moves played": int(counters["steps"]), "minutes": round(counters["wall_seconds"] / 60)}
    interval = "anchor" if low is None or low == high else f"{low:.0f} to {high:.0f}"
    return row | {"Elo": round(player["elo"]), "95 % interval": interval, f"points of {games}": player["points"]}


def run_elo() -> None:
    """Elo of a run's checkpoints and of opponents by name, from a tournament: every two meet, with both colors.

        python bench/strength.py elo runs/go9 --checkpoints 6 --games 20 --simulations 100 --anchor mcts:1000 \
            --others random "gtp:gnugo --mode gtp --chinese-rules --capture-all-dead --positional-superko --level 1"

    Elo is relative to the anchor's, whose Elo is 0.
    """
    parser = command_line(run_elo.__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoints", type=int, default=6)
    parser.add_argument("--games", type=int, default=20, help="of every two, an even number")
    parser.add_argument("--simulations", type=int, default=100, help="of each move of the run's")
    parser.add_argument("--anchor", default="mcts:1000")
    parser.add_argument("--others", nargs="*", default=["random"])
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    chosen = spread(checkpoint.everything(asked.run), asked.checkpoints)
    options = TournamentOptions(asked.games, asked.anchor, asked.simulations)
    names = [*map(str, chosen), *asked.others]
    found = play_tournament(names, options, lambda line: print(line, flush=True))
    best = sorted(found["players"], key=lambda player: -player["elo"])
    rows, what = [elo_row_of(player, asked.games * (len(best) - 1)) for player in best], about()
    text = [f"# {asked.run.name}: Elo of its checkpoints", "", *lines_about(what), ""]
    text += [f"Every two players met in {asked.games} games, with both colors, after {found['opening_plies']} random"]
    text += [f"plies; {asked.simulations} simulations a move of the run's. Elo is relative to {asked.anchor}.", ""]
    publish(asked.out or RESULTS / f"{asked.run.name}_elo", {**what, **found}, [*text, *table(rows)])


# PPO learns connect four against tree search by random roll-outs, which is part of its environment


OPPONENT, PARTS = "mcts:50", 20
TRAIN = "--env game:connect_four --lanes 64 --minibatches 4 --epochs 4 --gamma 0.997 --lam 0.95 --entropy-cost 0.01"
TRAIN += f" --env-kwargs opponent={OPPONENT} --steps 3000000 --no-tensorboard"


def run_against_search() -> None:
    """PPO learns connect four against tree search by random roll-outs, which is part of its environment.

        python bench/strength.py against RUN

    Trains into RUN if it is not there, by the command that the page prints. The curve: the mean return of all games
    that ended in each twentieth of the run (1 for a win, -1 for a loss, 0 is even). Then 1,000 games as in training,
    and 400 from 200 openings of 2 random plies, each with both colors, which training did not have.
    """
    parser = command_line(run_against_search.__doc__)
    parser.add_argument("run", type=Path)
    asked = parser.parse_args()
    if not asked.run.exists():
        command = [sys.executable, "-m", "polyplay", "train", "ppo", *TRAIN.split(), "--run", str(asked.run)]
        subprocess.run(command, check=True)
    games = list(read_lines(asked.run / "episodes.jsonl", "steps", "episodic_return"))
    steps, returns = (np.array([game[key] for game in games]) for key in ("steps", "episodic_return"))
    part = np.minimum((steps * PARTS / steps.max()).astype(int), PARTS - 1)
    rows = [
        {
            "agent steps": int(steps[part == i].max()),
            "minutes": round(max(g["wall_seconds"] for g, p in zip(games, part, strict=True) if p == i) / 60, 1),
            "games": int((part == i).sum()),
            "mean return": round(float(returns[part == i].mean()), 3),
        }
        for i in range(PARTS)
    ]
    usual = polyplay.evaluate(asked.run, episodes=1_000, trust=True)
    other = polyplay.evaluate(asked.run, protocol="versus", against=OPPONENT, episodes=400, trust=True)
    after = {"as in training": usual["episodic_return_mean"], "from openings": 2 * other["episodic_return_mean"] - 1}
    what = about()
    text = [f"# PPO against tree search by 50 random roll-outs (`{OPPONENT}`)", "", *lines_about(what), ""]
    text += [f"Trained by `polyplay train ppo {TRAIN}`.", "", *table(rows), ""]
    text += ["After training:", "", *table([{k: round(v, 3) for k, v in after.items()}])]
    publish(RESULTS / "against_search", {**what, "rows": rows, "after": after}, text)


# How an agent does against GNU Go at some of its levels, with both colors: its points of N games


FLAGS = "--mode gtp --chinese-rules --capture-all-dead --positional-superko"
GNUGO_PLIES = 2


class Progress:
    """Prints every tenth game of a match, which can take an hour. See match.Watch."""

    def __init__(self, games: int):
        self.games, self.over, self.points = games, 0, 0.0

    def __call__(self, found: dict[int, float], moves: int) -> bool:
        for points in found.values():
            self.over, self.points = self.over + 1, self.points + points
            if self.over % 10 == 0:
                print(f"{self.points:g} points of {self.over} games, {self.games} in all", flush=True)
        return True


def against(agent: BoardPlayer, name: str, games: int, seed: int) -> tuple[Row, list[str]]:
    """A row of the table, and by what faults the program lost games."""
    other = named_player(name, agent.board, "bench/strength.py gnugo: ")
    program = other.moves
    assert isinstance(program, GtpPlayer)
    with programs_running([program]):
        points = play_match(agent, other, both_colors(agent.board, games, GNUGO_PLIES, seed), seed, Progress(games))
    low, high = (games * end for end in wilson(float(points.mean()), games))
    row = {"points": float(points.sum()), "of": games, "95 % interval": f"{low:.1f} to {high:.1f}"}
    row |= {"agreed": f"{program.agreed} of {program.scored}", "faults": len(program.faults)}
    return row, program.faults


def run_gnugo() -> None:
    """How an agent does against GNU Go at some of its levels, with both colors: its points of N games.

        python bench/strength.py gnugo runs/go9 --games 100 --levels 0 1 10 --simulations 400

    Every opening of two random moves is played with both colors. Our rules decide on moves and score: GNU Go is told
    to capture all dead stones before it passes (FLAGS). Its final_score is asked for after every game of two passes.
    """
    parser = command_line(run_gnugo.__doc__)
    parser.add_argument("run", help="a run of game:go, or one of its checkpoints")
    parser.add_argument("--games", type=int, default=100, help="against each level, an even number")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--simulations", type=int, default=None, help="of each move; default: the run's own")
    parser.add_argument("--program", default="gnugo", help="GNU Go's name or path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "gnugo")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    agent = player_of_agent(find_agent(asked.run), PlayOptions(0, asked.seed), asked.simulations)
    rows, faults = list[Row](), list[str]()
    for level in asked.levels:
        name = f"gtp:{asked.program} {FLAGS} --level {level}"
        found, lost = against(agent, name, asked.games, asked.seed)
        rows.append({"GNU Go's level": level, **found})
        faults += lost
    what = about()
    text = ["# Against GNU Go", "", *lines_about(what), ""]
    text += [f"`{Path(asked.run).name}`, {agent.about['checkpoint']}, game:{agent.board.name};"]
    text += [f"{'its own' if asked.simulations is None else asked.simulations} simulations a move;"]
    text += [f"`gnugo {FLAGS} --level N`.", "", *table(rows), ""]
    text += ["*agreed*: in how many games of two passes GNU Go's score names our winner."]
    text += ["*faults*: games that it lost by its own fault.", *(f"- {fault}" for fault in faults)]
    publish(asked.out, {**what, "rows": rows, "faults": faults, "agent": agent.about}, text)


# Whether an agent has solved Go on 5×5, where Black can take the whole board: preset `go5`, komi 24.5


DRAWN = 10  # plies in which the agent as White draws its moves


def itself(policy: SearchPolicy, games: int) -> Opponent:
    options = replace(policy.options, temperature=((0, 1.0), (DRAWN, 0.0)))
    evaluator = NetworkEvaluator(policy.factory, games * options.leaves)
    evaluator.load(policy.weights, 0)
    search = Search(policy.board, games, options, evaluator, seed=3)
    return lambda records, random, at: search.choose_moves(records[at])


def policy_of(run: Path) -> SearchPolicy:
    """Its newest weights."""
    (agent,) = find_agents(str(run))
    policy = load_player(agent.wired, agent.weights)
    assert isinstance(policy, SearchPolicy)
    return policy


def games_taken(policy: SearchPolicy, games: int) -> dict[str, int]:
    """In how many of its games as Black it takes the whole board, by opponent."""
    board = policy.board
    black: Opponent = lambda records, random, at: policy.choose(records[at])[0]  # noqa: E731
    starts = MatchStarts(np.stack([board.new()] * games), np.ones(games, bool))
    others = {name: opponent(name, board) for name in ("random", "mcts:1000")} | {"itself": itself(policy, games)}
    return {name: int((match(board, black, white, starts, seed=1) == 1).sum()) for name, white in others.items()}


def run_go5() -> None:
    """Whether an agent has solved Go on 5×5, where Black can take the whole board: preset `go5`, komi 24.5.

        python bench/strength.py go5 runs/go5 --games 20

    The newest weights play Black, by the most visited move. White is a player of random moves, tree search by random
    roll-outs, and the agent itself, whose first moves are drawn by their visits, so that games differ. With this komi
    Black wins only with all 25 points.
    """
    parser = command_line(run_go5.__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--games", type=int, default=20, help="against each")
    parser.add_argument("--simulations", type=int, default=400, help="of each move")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy, n = policy_of(asked.run), asked.games
    policy.simulate(asked.simulations)
    taken, board = games_taken(policy, n), policy.board
    rows: list[Row] = [{"White": name, "games": n, "Black takes all 25 points in": k} for name, k in taken.items()]
    first, value = policy.choose(board.new()[None])
    policy.simulate(0)
    bare, raw = policy.choose(board.new()[None])
    counters = checkpoint.manifest(checkpoint.everything(asked.run)[-1])["counters"]
    what, hours = about(), 2 * counters["wall_seconds"] / 3600
    text = ["# Go on 5×5", "", *lines_about(what), ""]
    text += [f"`{asked.run.name}`, {counters['steps']:,} moves, {hours:.2f} core-hours,"]
    text += [f"{asked.simulations} simulations a move.", ""]
    text += [*table(rows), ""]
    text += [f"Black opens at {board.move_name(int(first[0]))}, and expects {value[0]:+.2f};"]
    text += [f"the bare network at {board.move_name(int(bare[0]))}, {raw[0]:+.2f}.", ""]
    least = min(taken.values())
    text += [verdict(f"games of {n} that Black wins against the worst of them", least, least=n)]
    publish(RESULTS / "go5", {**what, "counters": counters, "rows": rows, "first": int(first[0])}, text)


if __name__ == "__main__":
    sys.exit(
        commands(
            {
                "": main,
                "positions": run_positions,
                "plies": run_first_plies,
                "elo": run_elo,
                "against": run_against_search,
                "gnugo": run_gnugo,
                "go5": run_go5,
            }
        )
    )
