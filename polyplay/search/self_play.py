"""Self-play of board games: whole games by tree search, resignation, and game records.

A search plays both sides of many games at once. The positions of finished games become rows of a rollout queue.

A slot of the queue (memory of one rollout) holds as many whole games as fit, one after another. Each game is an episode
in the format of docs/concepts/rows.md, with one row per position. The field `first` marks the first row of a game, and
`terminated` marks the row after the last move. Unused rows also have `first`, so that no transition leads into them.

The reward of a move is the game's outcome for the player who made the move. The discount is 0, so the reward of a move
is also its return. A move is an agent step. The reported return of a game is the outcome for the first player. With
capped playouts, some searches have fewer simulations. Their moves have no row and are not agent steps.

The number of a game contains the worker's incarnation (how often the worker was replaced) in its high bits, and the
number of earlier games in its low 32 bits.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from polyplay.acting.actor import EpisodeCounter
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.rollout_queue import ROWS, Producer, RolloutQueue
from polyplay.core import checkpoint, numbers, tree
from polyplay.core.files import Row, to_plain
from polyplay.core.tree import Batch, Field, Spec
from polyplay.core.worker import WorkerContext, WorkerCounters
from polyplay.envs.pool import Envs
from polyplay.games import records
from polyplay.games.boards import Game
from polyplay.nets.device import enter_device
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search.evaluators import BACKENDS, PRECISIONS, NetworkEvaluator
from polyplay.search.search import Finished, Search
from polyplay.search.tree import SearchOptions
from polyplay.weights.params import Params, WeightCache

MANY = 64  # number of self-play games logged each time the number of games doubles


def is_sampled(number: int) -> bool:
    """Tell whether game `number` (from 0) of a worker is logged.

    The first 2 · MANY games are all logged. Of the next 2 · MANY games, every second is logged, of the next 4 · MANY
    games every fourth, and so on.
    """
    return number % (1 << max(0, number.bit_length() - (2 * MANY - 1).bit_length())) == 0


class GameNotes:
    """Moves of unfinished games, with the values and visits that searches found."""

    def __init__(self, board: Game, games: int):
        self.board, shape = board, (games, board.longest + 1)
        self.length, self.action = np.zeros(games, np.int64), np.zeros(shape, np.int64)
        self.value = np.full(shape, np.nan, np.float32)  # value of the root, for the player to move
        # visits of the chosen move, and of all moves
        self.visits, self.searched = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.arrays = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}

    def begin(self, game: int, actions: np.ndarray) -> None:
        """Start the notes of a new game. Its first moves, `actions`, int64 [n], have value NaN and no visits."""
        self.length[game] = n = len(actions)
        self.action[game, :n], self.value[game, :n] = actions, np.nan
        self.visits[game, :n] = self.searched[game, :n] = 0

    def add(self, games: np.ndarray, actions: np.ndarray, done: Finished) -> None:
        """Add one move to each of these games. done: results of the searches that chose the moves."""
        at = (games, self.length[games])
        self.action[at], self.value[at] = actions, done.value
        self.visits[at], self.searched[at] = done.visits[np.arange(len(games)), actions], done.visits.sum(1)
        self.length[games] += 1

    def row(self, game: int, outcome: float) -> Row:
        """Return a log row about a finished or resigned game. outcome: 1 if the first player won, 0 if drawn, -1 if
        lost.
        """
        n, record, result = int(self.length[game]), self.board.new(), records.GOES_ON
        for action in self.action[game, :n]:
            result = self.board.play(record, action)
        return {
            "game": self.board.name,
            "outcome": int(outcome),
            "margin": None if result == records.GOES_ON else self.board.margin(record),
            "resigned": bool(result == records.GOES_ON),
            "moves": [self.board.move_name(action) for action in self.action[game, :n].tolist()],
            "values": [to_plain(round(value, 4)) for value in self.value[game, :n].tolist()],
            "visits": self.visits[game, :n].tolist(),
            "searched": self.searched[game, :n].tolist(),
        }


# Resignation (Silver et al. 2017, Methods, "Self-play").
#
# A player resigns when the value of the root and that of its best child are both below a threshold v. In a share of the
# games, players play on to the end instead. The newest games played on set v: the greatest threshold at which less than
# a given share of would-be resignations is wrong, because the first player to resign would not have lost. Before enough
# games are known, no player resigns.


RESIGN_METRICS = ("resigned", "resign_value", "resign_false_rate")
GRID = np.linspace(records.NEVER, 0.0, 101).astype(np.float32)  # candidates for the threshold v
NEWEST, ENOUGH = 1000, 100  # number of newest games played on that count; number needed before players resign


class Resignation:
    """Decides when to resign in one worker's games. The seed and lane select the games that are played to the end."""

    def __init__(self, options: records.ResignOptions, games: int, longest: int, seed: int, first_lane: int):
        self.options, self.seed, self.lanes = options, ~seed, first_lane + np.arange(games)
        self.begun = np.zeros(games, np.int64)  # number of games started so far, by lane
        self.played_on = np.zeros(games, bool)
        self.values = np.zeros((games, longest + 1), np.float32)  # by ply: the greater value of root and best child
        self.would, self.wrong = np.zeros((NEWEST, len(GRID)), bool), np.zeros((NEWEST, len(GRID)), bool)
        self.known = np.array(0)  # number of games that were played on to the end
        self.v = np.array(records.NEVER if options.v is None else options.v)
        self.arrays = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray) and name != "lanes"}
        self.begin(np.arange(games))

    def begin(self, games: np.ndarray) -> None:
        """Draw which of these new games are played to the end, without resigning."""
        self.begun[games] += 1
        drawn = numbers.uniform(self.seed, self.lanes[games], self.begun[games], 1)[:, 0]
        self.played_on[games] = drawn < self.options.played_on

    def decide(self, games: np.ndarray, plies: np.ndarray, root: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Return whether the player to move resigns, bool [n]. root, best: values of the root and of its best child."""
        better = np.maximum(root, best)
        self.values[games, plies] = better
        return (better < self.v) & ~self.played_on[games] & (plies > 0)

    def ended(self, game: int, moves: int, worth: float) -> None:
        """If the game was chosen to be played to the end, record it and update the resignation threshold v. moves:
        number of moves in the game. worth: the game's outcome for the first player.
        """
        if not self.played_on[game] or not moves:
            return
        lowest = np.minimum.accumulate(self.values[game, :moves])
        first = np.searchsorted(-lowest, -GRID, side="right")  # by candidate v: the first ply with a value below v
        would = first < moves
        lost = np.where(first % 2 == 0, worth, -worth) < 0
        at = self.known % NEWEST
        self.would[at], self.wrong[at] = would, would & ~lost
        self.known += 1
        if self.options.v is None:
            self.v[...] = self._learnt()

    def _learnt(self) -> float:
        would, wrong = self.would.sum(0), self.wrong.sum(0)
        fine = (wrong < self.options.wrong * would) & (would >= ENOUGH / 2)
        return float(GRID[np.flatnonzero(fine)[-1]]) if self.known >= ENOUGH and fine.any() else records.NEVER

    @property
    def rate(self) -> float:
        """Fraction of wrong resignations in the games that were played to the end, if players had resigned below v."""
        at = int(np.searchsorted(GRID, self.v, side="right")) - 1
        return int(self.wrong[:, at].sum()) / max(int(self.would[:, at].sum()), 1)


def learned_value(found: Path) -> float:
    """Return the lowest resignation threshold v that self-play workers have learned, or NEVER if none has learned one.

    found: a checkpoint. If it has only weights (a champion), read the run's newest checkpoint with self-play workers.
    """
    for path in (found, *reversed(checkpoint.everything(found.parents[1]))):
        opened, parts = checkpoint.open_checkpoint(path), sorted(path.glob("workers/self_play-*.safetensors"))
        saved = [opened.arrays(f"workers/{part.stem}").get("resignation/v") for part in parts]
        learned = [float(v) for v in saved if v is not None and v > records.NEVER]
        if parts:
            return min(learned, default=records.NEVER)
    return records.NEVER


# Statistics of searches and games: how games end, and how well the network predicted the ends.


ACCURACY = tuple(f"value_accuracy_{part}" for part in ("early", "middle", "late"))  # in each third of a game
SEARCH_METRICS = ("batch_occupancy", "first_player_wins", "draws", "visits_entropy", "fresh_value_loss", *ACCURACY)
SELF_PLAY_METRICS = (*SEARCH_METRICS, *RESIGN_METRICS)


def tally_game(counters: WorkerCounters, rows: Batch, raw: np.ndarray) -> None:
    """Add a finished game to the worker's statistics.

    rows: all rows of the game.
    raw: the network's values of the game's positions.
    """
    z, visits = rows["reward"][1:], rows["visits"][:-1].astype(np.float64)
    moves, tally = len(z), counters.tally
    tally("first_player_wins", float(z[0] > 0), 1)
    tally("draws", float(z[0] == 0), 1)
    played = np.where(visits > 0, visits, 1.0)  # so that 0 log 0 = 0
    full = int(visits.any(1).sum())  # number of rows with visits; with capped playouts, not all
    tally("visits_entropy", -float((visits * np.log(played)).sum()), full)
    tally("fresh_value_loss", float(np.square(z - raw).sum()), moves)
    if z[0] != 0:
        right, stage = np.sign(raw) == z, 3 * np.arange(moves) // moves
        for i, name in enumerate(ACCURACY):
            tally(name, int(right[stage == i].sum()), int((stage == i).sum()))


EVALUATIONS = 32  # batches from one pull of the weights to the next
NOBODY = records.ResignOptions(played_on=1.0)


def game_rows(board: Game) -> Spec:
    """Return the fields of a row of the rollout, which describes one position of a game.

    Besides the fields of all rollouts, a row has `obs` (planes that the player to move sees), `mask` (legal moves),
    `action`, `visits` (divided by their sum) and `game` (the game's number). Planes of 0 and 1 are packed into bits.
    """
    shares, integer = Field((board.actions,), "float32"), Field((), "int64")
    bits, mask = Field((-(-math.prod(board.planes) // 8),), "uint8"), Field((board.actions,), "bool")
    planes = bits if board.binary else Field(board.planes, "float32")
    return {"obs": planes, "mask": mask, **ROWS, "action": integer, "visits": shares, "game": integer}


def self_play(
    ctx: WorkerContext,
    *,
    envs: Envs,
    board: Game,
    policy: BoardNetworkFactory,
    options: SearchOptions,
    out: RolloutQueue,
    params: Params,
    backend: str = "torch",
    resign: records.ResignOptions = NOBODY,
) -> Iterator[None]:
    """Run a self-play worker, which plays envs.lanes games at once and pulls new weights every EVALUATIONS batches.

    `backend`: see NetworkEvaluator. If the backend or the precision is "auto", a resumed worker keeps its first choice.
    """
    saved = actor_checkpoint.load_actor(ctx, out.consumers)
    if saved:
        ctx.incarnation = int(saved["incarnation"])
    producer = out.producer(ctx.index)
    producer.give(saved.get("flight", {}), actor_checkpoint.slots_read(ctx, out))
    evaluator = _evaluator(ctx, policy, envs.lanes * options.leaves, backend, saved)
    held = WeightCache(evaluator.vector, EVALUATIONS)
    player = SelfPlay(ctx, board, envs.lanes, options, evaluator, producer, held, resign)
    if "search" in saved:
        player.load(saved)

    def pull() -> int:
        held.version = held.version if held.age else params.pull(held.vector, held.version)
        if held.version != evaluator.version:
            evaluator.take(held.version)
        held.tick()
        return held.version

    while not params.wait(0, ctx.index, out.patience):  # also with saved weights, so that a resumed learner is first
        yield
    for slot in player.slots(pull):
        if slot is not None:
            producer.commit(slot, ctx.incarnation)
            ctx.counters.add("rollouts", 1)
        yield
        while actor_checkpoint.answer_save(ctx, player, producer) and ctx.serial:
            yield
        yield from actor_checkpoint.rest_at_end(ctx, producer)


def _evaluator(
    ctx: WorkerContext, policy: BoardNetworkFactory, batch: int, backend: str, saved: Batch
) -> NetworkEvaluator:
    precision, chosen = ctx.precision, "auto" in (backend, ctx.precision)
    if "computed" in saved:
        before = saved["computed"]
        backend = BACKENDS[before[0]] if backend == "auto" else backend
        precision = PRECISIONS[before[1]] if precision == "auto" else precision
    evaluator = NetworkEvaluator(policy, batch, backend, precision, enter_device(ctx.device))
    if chosen:
        why = "as before" if "computed" in saved else "the fastest way on this machine"
        ctx.log("note", f"self-play: {evaluator.backend} in {evaluator.precision} computes the network, {why}")
    return evaluator


class SelfPlay:
    """Games of one self-play worker. `slots` fills slots of the queue with whole games, and yields their numbers."""

    between = True  # the state can be saved at any time

    def __init__(
        self,
        ctx: WorkerContext,
        board: Game,
        games: int,
        options: SearchOptions,
        evaluator: NetworkEvaluator,
        out: Producer,
        held: WeightCache | None = None,
        resign: records.ResignOptions = NOBODY,
    ):
        if board.longest >= out.T:
            raise ValueError(f"a slot of {out.T + 1} rows has no room for a game of {board.longest} moves")
        self.ctx, self.board, self.out, self.first_lane = ctx, board, out, ctx.index * games
        self.evaluator = evaluator
        self.search = Search(board, games, options, evaluator, seed=ctx.env_seed, lane=self.first_lane)
        self.notes = GameNotes(board, games)
        self.resignation = Resignation(resign, games, board.longest, ctx.env_seed, self.first_lane)
        self.search.restart()
        self.games = EpisodeCounter(games)
        self.games.over[:] = False
        self.recorded = np.zeros(games, np.int64)  # number of rows so far, by game
        self.moves = tree.zeros(tree.widen(game_rows(board), (games, board.longest + 1)))  # rows of unfinished games
        self.finished: deque[Batch] = deque()  # rows of finished games that are in no slot yet
        self.version, self.held = -1, held
        self.raw = np.zeros((games, board.longest), np.float32)  # the network's values in unfinished games, by ply
        self.number = 0  # number of games that ended so far
        self.arrays: Batch = {"moves": self.moves, "games": vars(self.games), "recorded": self.recorded}
        self.arrays |= {"raw": self.raw, "resignation": self.resignation.arrays, "notes": self.notes.arrays}

    def slots(self, pull: Callable[[], int]) -> Iterator[int | None]:
        """Play games forever. Yield the number of each slot (memory of one rollout) that is full, and None in between.

        `pull`: function that updates the weights and returns their version.
        """
        while True:
            while sum(map(_length, self.finished)) <= self.out.T:
                self.version = pull()
                self._step()
                self.ctx.turn()
                yield None
            with self.ctx.counters.timed("wait"):
                while (slot := self.out.slot()) is None:
                    yield None
            self._fill(slot)
            yield slot

    def _step(self) -> None:
        """Evaluate one batch of leaves, then make a move in each game whose search is done."""
        search, counters = self.search, self.ctx.counters
        with counters.timed("env"):
            before = int(search.tree.plays["done"].sum())
            planes = search.round()
        if len(planes):
            counters.tally("batch_occupancy", len(planes), len(search.planes))
            with counters.timed("infer"):
                answers = search.evaluate(planes)
            counters.served(len(planes))
            with counters.timed("env"):
                search.answer(*answers)
        with counters.timed("env"):
            counters.add("simulations", int(search.tree.plays["done"].sum()) - before)
            done = search.finished()
            if len(done.games):
                self._move(done)

    def _move(self, done: Finished) -> None:
        """Make a move in each of these games, or end the game if the player to move resigns."""
        resigns = self.resignation.decide(done.games, done.plies, done.value, done.best)
        for game in done.games[resigns].tolist():
            self.ctx.counters.tally("resigned", 1, 0)
            self._end(game, 1.0)
        self.search.restart(done.games[resigns])
        done = done.at(~resigns)
        if not len(done.games):
            return
        at, actions = (done.games, done.plies), self.search.choose(done)
        planes = self.board.shown(done.records)
        obs = np.packbits(planes.reshape(len(planes), -1) > 0.5, axis=1) if self.board.binary else planes
        shares = self.search.targets(done)
        row = {"obs": obs, "mask": done.legal, "action": actions, "visits": shares, "version": self.version}
        for name, value in row.items():
            self.moves[name][at] = value
        self.raw[at] = done.raw
        self.games.length[done.games] += 1
        self.recorded[done.games] += done.full
        self.notes.add(done.games, actions, done)
        self.ctx.counters.add("steps", int(done.full.sum()))
        results = self.search.advance(done.games, actions)
        ended = np.flatnonzero(results != records.GOES_ON)
        for game, result in zip(done.games[ended].tolist(), results[ended].tolist(), strict=True):
            self._end(game, float(records.WORTH[result]))
        if len(ended):
            self.search.restart(done.games[ended])

    def _end(self, game: int, worth: float) -> None:
        """End a game, and queue its rows. worth: the game's outcome for the player who moved last."""
        moves = int(self.games.length[game])
        rows = tree.map(lambda x: x[game, : moves + 1].copy(), self.moves)
        rows["obs"][moves], rows["mask"][moves], rows["visits"][moves] = 0, False, 0.0
        rows["action"][moves], rows["version"][moves] = 0, self.version
        rows["reward"][0] = 0.0
        rows["reward"][1:] = np.where(np.arange(moves) % 2 == (moves - 1) % 2, 1.0, -1.0) * worth
        rows["first"][0], rows["terminated"][moves] = True, True
        rows["game"][:] = (self.ctx.incarnation << 32) + self.number
        if self.ctx.index == 0 and is_sampled(self.number):
            about: Row = {"name": f"self_play-{self.ctx.incarnation}-{self.number}", "kind": "self_play"}
            about |= {"black": self.version, "white": self.version, **self.notes.row(game, float(rows["reward"][1]))}
            self.ctx.log("game", json.dumps(about))
        self.notes.begin(game, self.notes.action[game, :0])
        self.number += 1
        tally_game(self.ctx.counters, rows, self.raw[game, :moves])
        self.ctx.counters.episode(float(rows["reward"][1]), moves, self.first_lane + game)
        self.resignation.ended(game, moves, float(rows["reward"][1]))
        if self.recorded[game]:
            self.finished.append(rows if self.recorded[game] == moves else recorded_rows(rows))
        self.resignation.begin(np.array([game]))
        self.games.length[game] = self.recorded[game] = 0
        for name, value in zip(RESIGN_METRICS, (0, float(self.resignation.v), self.resignation.rate), strict=True):
            self.ctx.counters.tally(name, value, 1)

    def _fill(self, slot: int) -> None:
        """Write as many finished games as fit into a slot, beginning with the oldest."""
        at, rows = 0, tree.map(lambda x: x[slot, :, 0], self.out.rows)
        while self.finished and at + _length(self.finished[0]) <= self.out.T:
            game = self.finished.popleft()
            tree.write(rows, slice(at, at + _length(game)), game)
            at += _length(game)
        rest = slice(at, None)
        tree.write(rows, rest, tree.map(lambda x: np.zeros((), x.dtype), rows))
        rows["first"][rest], rows["version"][rest], rows["game"][rest] = True, self.version, -1

    # ------------------------------------------------------------------------------------------- saving

    def save(self) -> Batch:
        """Return the state to save: searches, rows of unfinished games, and rows of games that wait for a slot."""
        lengths = np.array([_length(game) for game in self.finished], np.int64)
        packed = {k: np.concatenate([g[k] for g in self.finished]) for k in self.moves} if self.finished else {}
        numbers = {"incarnation": self.ctx.incarnation, "version": self.version, "number": self.number}
        own: Batch = {k: np.array(v) for k, v in {**numbers, "lengths": lengths}.items()}
        own |= {"search": self.search.state(), **tree.map(np.copy, self.arrays)}
        if isinstance(chosen := self.evaluator, NetworkEvaluator):
            own["computed"] = np.array([BACKENDS.index(chosen.backend), PRECISIONS.index(chosen.precision)])
        if self.held is not None and (held := self.held.save()):
            own["held"] = held
        return {**own, **({"finished": packed} if packed else {})}

    def load(self, saved: Batch) -> None:
        self.search.load(saved["search"])
        self.version, self.number = int(saved["version"]), int(saved["number"])
        tree.write(self.arrays, ..., {k: saved[k] for k in self.arrays})
        if self.held is not None and "held" in saved:
            self.held.load(saved["held"])
        ends = np.cumsum(saved["lengths"])
        for begin, end in zip(ends - saved["lengths"], ends, strict=True):
            self.finished.append({k: np.array(v[begin:end]) for k, v in saved["finished"].items()})


def recorded_rows(rows: Batch) -> Batch:
    """Return the rows of moves whose search had all simulations (rows with visits), and the game's last row."""
    full = rows["visits"].any(1)
    found = tree.map(lambda x: x[np.append(full[:-1], True)], rows)
    found["reward"][1:], found["first"][0] = rows["reward"][1:][full[:-1]], True
    return found


def _length(game: Batch) -> int:
    return len(game["first"])
