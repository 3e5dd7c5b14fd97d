"""Self-play: a search plays both sides of many games, and whole games become rows of a rollout queue.

A slot holds the games that fit, one behind another, each as docs/concepts/rows.md has an episode: a row per position,
the first one `first`, and a row behind the last move with `terminated`. Rows that are left over are `first`, so no
transition leads into them. The reward of a move is the game's outcome for who made it: with a discount of 0 it is the
return. A move is an agent step; a game's return is the first player's. A game's number is the player's incarnation, and
below it (32 bits) how many games that had ended before: no two games of a player have the same one.

Where playouts are capped, moves of searches that are not full have no row, and are no agent steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from polyplay.acting.game_records import GameNotes
from polyplay.acting.resignation import Resignation, ResignOptions
from polyplay.acting.rows import EpisodeCounter
from polyplay.acting.search import Search, SearchOptions
from polyplay.acting.search.evaluators import BACKENDS, PRECISIONS, NetworkEvaluator
from polyplay.acting.search.search import Evaluator, Finished
from polyplay.acting.search_metrics import SearchMetrics
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.rollout_queue import Producer, RolloutQueue
from polyplay.buffers.rollout_slots import ROWS
from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.tree import Batch, Field, Spec
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.kernels import GOES_ON, WORTH, compiled, write_planes
from polyplay.envs.pool import Envs
from polyplay.nets.device import enter_device
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.weights.params import HeldWeights, Params

EVALUATIONS = 32  # between two pulls of the weights
NOBODY = ResignOptions(played_on=1.0)


def game_rows(board: Game) -> Spec:
    """Fields of a row: the mover's planes, as bits (np.packbits) if they are of 0 and 1, its legal moves, the visits as
    shares, the move, the number of the game.
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
    resign: ResignOptions = NOBODY,
) -> Iterator[None]:
    """A player of envs.lanes games at once, with its own copy of the weights, pulled every EVALUATIONS batches.

    backend: see NetworkEvaluator. Where it, or the precision, is "auto", what was chosen is saved, and a resumed player
    goes on with that.
    """
    saved = actor_checkpoint.load_actor(ctx, out.consumers)
    if saved:
        ctx.incarnation = int(saved["incarnation"])
    producer = out.producer(ctx.index)
    producer.give(saved.get("flight", {}), actor_checkpoint.slots_read(ctx, out))
    evaluator = _evaluator(ctx, policy, envs.lanes * options.leaves, backend, saved)
    held = HeldWeights(evaluator.vector, EVALUATIONS)
    player = SelfPlay(ctx, board, envs.lanes, options, evaluator, producer, held, resign)
    if "search" in saved:
        player.load(saved)

    def pull() -> int:
        held.version = held.version if held.age else params.pull(held.vector, held.version)
        if held.version != evaluator.version:
            evaluator.take(held.version)
        held.used()
        return held.version

    while not params.wait(0, ctx.index, out.patience):  # also with saved weights: a resumed learner has the first turn
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
        ctx.say("note", f"self-play: {evaluator.backend} in {evaluator.precision} computes the network, {why}")
    return evaluator


class SelfPlay:
    """The games of one worker. `slots` gives a slot whenever one is full of whole games."""

    between = True  # everything can be saved wherever it stands

    def __init__(
        self,
        ctx: WorkerContext,
        board: Game,
        games: int,
        options: SearchOptions,
        evaluator: Evaluator,
        out: Producer,
        held: HeldWeights | None = None,
        resign: ResignOptions = NOBODY,
    ):
        if board.longest >= out.T:
            raise ValueError(f"a slot of {out.T + 1} rows has no room for a game of {board.longest} moves")
        self.ctx, self.board, self.out, self.first_lane = ctx, board, out, ctx.index * games
        self.evaluator = evaluator
        self.search = Search(board, games, options, evaluator, seed=ctx.env_seed, first_lane=self.first_lane)
        self.notes = GameNotes(board, games)
        self.resignation = Resignation(resign, games, board.longest, ctx.env_seed, self.first_lane)
        self.search.restart()
        self.games = EpisodeCounter(games)
        self.games.over[:] = False
        self.recorded = np.zeros(games, np.int64)  # rows of games that go on
        self.moves = tree.zeros(tree.widen(game_rows(board), (games, board.longest + 1)))  # of games that go on
        self.finished: deque[Batch] = deque()  # rows of games that no slot has yet
        self.version, self.held = -1, held
        self.metrics, self.number = SearchMetrics(self.search, ctx.counters), 0  # number: of games that have ended

    def slots(self, pull: Callable[[], int]) -> Iterator[int | None]:
        """Play for ever. None: no slot is full yet. pull: takes newer weights if they are due; their version."""
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
        """One evaluation, and a move in each game whose search is done."""
        search, counters = self.search, self.ctx.counters
        with counters.timed("env"):
            self.metrics.begin()
            planes = search.round()
            self.metrics.gathered(len(planes))
        if len(planes):
            with counters.timed("infer"):
                answers = search.evaluator.evaluate(planes)
            counters.served(len(planes))
            with counters.timed("env"):
                search.answer(*answers)
        with counters.timed("env"):
            self.metrics.answered()
            done = search.finished()
            if len(done.games):
                self._move(done)

    def _move(self, done: Finished) -> None:
        """A move in each of these games, or the end of it where who is to move resigns."""
        resigns = self.resignation.decide(done.games, done.plies, done.value, done.best)
        for game in done.games[resigns].tolist():
            self.ctx.counters.tally("resigned", 1, 0)
            self._end(game, 1.0)
        self.search.restart(done.games[resigns])
        done = done.at(~resigns)
        if not len(done.games):
            return
        at, actions = (done.games, done.plies), self.search.choose(done)
        planes = np.zeros((len(done.games), *self.board.planes), np.float32)
        show(self.board.numbers, done.records, planes)
        obs = np.packbits(planes.reshape(len(planes), -1) > 0.5, axis=1) if self.board.binary else planes
        shares = self.search.targets(done)
        row = {"obs": obs, "mask": done.legal, "action": actions, "visits": shares, "version": self.version}
        for name, value in row.items():
            self.moves[name][at] = value
        self.games.length[done.games] += 1
        self.recorded[done.games] += done.full
        self.notes.add(done.games, actions, done)
        self.ctx.counters.add("steps", int(done.full.sum()))
        results = self.search.advance(done.games, actions)
        self.metrics.moved(done)
        ended = np.flatnonzero(results != GOES_ON)
        for game, result in zip(done.games[ended].tolist(), results[ended].tolist(), strict=True):
            self._end(game, float(WORTH[result]))
        if len(ended):
            self.search.restart(done.games[ended])

    def _end(self, game: int, worth: float) -> None:
        """worth: of the game's outcome for who moved last."""
        moves = int(self.games.length[game])
        rows = tree.map(lambda x: x[game, : moves + 1].copy(), self.moves)
        rows["obs"][moves], rows["mask"][moves], rows["visits"][moves] = 0, False, 0.0
        rows["action"][moves], rows["version"][moves] = 0, self.version
        rows["reward"][0] = 0.0
        rows["reward"][1:] = np.where(np.arange(moves) % 2 == (moves - 1) % 2, 1.0, -1.0) * worth
        rows["first"][0], rows["terminated"][moves] = True, True
        rows["game"][:] = (self.ctx.incarnation << 32) + self.number
        self.notes.ended(self.ctx, game, float(rows["reward"][1]), self.number, self.version)
        self.number += 1
        self.metrics.ended(game, rows)
        self.ctx.counters.episode(float(rows["reward"][1]), moves, self.first_lane + game)
        self.resignation.ended(game, moves, float(rows["reward"][1]))
        if self.recorded[game]:
            self.finished.append(rows if self.recorded[game] == moves else recorded_rows(rows))
        self.resignation.begin(np.array([game]))
        self._tally_resignation()
        self.games.length[game] = self.recorded[game] = 0

    def _tally_resignation(self) -> None:
        tally, (wrong, high) = self.ctx.counters.tally, self.resignation.rate
        tally("resigned", 0, 1)
        for name, value in (("resign_value", self.resignation.v), ("resign_wrong", wrong), ("resign_wrong_high", high)):
            tally(name, value, 1)

    def _fill(self, slot: int) -> None:
        """Write the games that fit, the oldest first."""
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
        """All that goes on: searches as they stand, rows of unfinished games and of those that no slot has yet."""
        lengths = np.array([_length(game) for game in self.finished], np.int64)
        packed = {k: np.concatenate([g[k] for g in self.finished]) for k in self.moves} if self.finished else {}
        state = {"search": self.search.state(), "moves": tree.map(np.copy, self.moves), "games": dict(vars(self.games))}
        numbers = {"incarnation": self.ctx.incarnation, "version": self.version, "number": self.number}
        own: Batch = {k: np.array(v) for k, v in {**numbers, "recorded": self.recorded}.items()}
        own |= {"lengths": lengths, "seen": tree.map(np.copy, self.metrics.seen)}
        own |= {"resignation": self.resignation.save(), "notes": self.notes.save()}
        if isinstance(self.evaluator, NetworkEvaluator):
            chosen = self.evaluator
            own["computed"] = np.array([BACKENDS.index(chosen.backend), PRECISIONS.index(chosen.precision)])
        if self.held is not None and (held := self.held.save()):
            own["held"] = held
        return {**state, **own, **({"finished": packed} if packed else {})}

    def load(self, saved: Batch) -> None:
        self.search.load(saved["search"])
        self.version, self.number = int(saved["version"]), int(saved["number"])
        self.recorded[:] = saved["recorded"]
        self.resignation.load(saved["resignation"])
        tree.write(self.moves, ..., saved["moves"])
        tree.write(self.metrics.seen, ..., saved["seen"])
        for k, v in saved["games"].items():
            getattr(self.games, k)[:] = v
        self.notes.load(saved["notes"])
        if self.held is not None and "held" in saved:
            self.held.load(saved["held"])
        ends = np.cumsum(saved["lengths"])
        for begin, end in zip(ends - saved["lengths"], ends, strict=True):
            self.finished.append({k: np.array(v[begin:end]) for k, v in saved["finished"].items()})


def recorded_rows(rows: Batch) -> Batch:
    """Of a game's rows those of full searches, which have visits, and that of its end."""
    full = rows["visits"].any(1)
    found = tree.map(lambda x: x[np.append(full[:-1], True)], rows)
    found["reward"][1:], found["first"][0] = rows["reward"][1:][full[:-1]], True
    return found


def _length(game: Batch) -> int:
    return len(game["first"])


@compiled
def show(game: np.ndarray, records: np.ndarray, planes: np.ndarray) -> None:
    """What movers see of positions."""
    for i in range(len(records)):
        write_planes(game, records[i], planes[i])
