"""The judge: plays the learner's weights against the best so far, and publishes them if they win.

    learn ── Params ──► judge: a match every so many updates ── Params of the best ──► self_play
                          └──► checkpoints/champion-UPDATE, matches.jsonl, games.jsonl

A match is not saved: where a judge is lost, or a run goes on, the match begins again. What it draws depends on the
candidate's update alone, and in one thread a match is one turn: so a resumed run is exact there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from polyplay.acting.game_records import GameNotes
from polyplay.acting.match import MatchStarts, draw_openings, match
from polyplay.acting.search import SearchOptions
from polyplay.acting.search.evaluators import NetworkEvaluator
from polyplay.acting.search.positions import PositionSearch
from polyplay.common import checkpoint
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.files import Row, refusal_text
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.pool import Envs
from polyplay.nets.device import enter_device
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population.gate import Gate
from polyplay.weights.params import Params

REST = 0.1  # seconds between two looks at the learner's update


def judge(
    ctx: WorkerContext,
    *,
    envs: Envs,
    board: Game,
    policy: BoardNetworkFactory,
    options: SearchOptions,
    gate: Gate,
    params: Params,
    best: Params,
) -> Iterator[None]:
    """Play a match whenever one is due. What comes due while one is played is left out."""
    while not params.wait(0, ctx.index, best.patience):
        yield
    matches = Matches(ctx, envs.lanes, board, policy, options, gate)
    version = matches.restore(params, best)
    replaced = ctx.incarnation % 1000  # the match that was lost begins again
    due = max(params.version, version + 1) if replaced else gate.due_after(max(version, params.version - 1))
    while True:
        while matches.games_played < matches.reign_ends:
            due = gate.due_after(params.version)
            time.sleep(min(ctx.patience, REST))
            yield
        while params.version < due:
            time.sleep(min(ctx.patience, REST))
            yield
        row = matches.play(params, best)
        ctx.say("match", json.dumps(row))
        due = gate.due_after(max(row["candidate"], params.version - 1))
        yield


class Matches:
    """The champion, the candidate, and their matches."""

    def __init__(
        self,
        ctx: WorkerContext,
        games: int,
        board: Game,
        policy: BoardNetworkFactory,
        options: SearchOptions,
        gate: Gate,
    ):
        self.ctx, self.board, self.gate, self.games = ctx, board, gate, games
        device, batch = enter_device(ctx.device), games * options.leaves
        self.champion, self.candidate = (
            NetworkEvaluator(policy, batch, precision=ctx.precision, device=device) for _ in range(2)
        )
        if ctx.precision == "auto":
            ways = " and ".join(dict.fromkeys(x.precision for x in (self.champion, self.candidate)))
            ctx.say("note", f"the gate's matches: torch in {ways} computes the networks")
        saved = {} if ctx.resume is None else checkpoint.manifest(ctx.resume)["counters"]
        self.games_before = sum(saved.get("games", {}).values()) or int(saved.get("episodes", 0))
        self.reign_ends = gate.reign  # games of all players when other weights may follow
        self.search = options.quiet
        self.opening = replace(options.quiet, root="puct", simulations=0, temperature=((0, 1.0),))

    @property
    def games_played(self) -> int:
        """By all players since the run began."""
        return self.games_before + int(self.ctx.all_counters.column("episodes").sum())

    def restore(self, params: Params, best: Params) -> int:
        """Publish the champion that there is: the saved one, what the judge before this one published, or the learner's
        weights; its version.
        """
        saved = checkpoint.champions(self.ctx.directory) if self.ctx.directory is not None else []
        if saved:
            arrays = checkpoint.open_checkpoint(saved[-1]).arrays(checkpoint.policy_name(0))
            checkpoint.load_into(self.champion.network, arrays)
            counters = checkpoint.manifest(saved[-1])["counters"]
            self.champion.take(int(counters["updates"]))
            self.reign_ends = self.gate.reign + int(counters.get("games_before", 0))
        else:
            source = best if best.round >= 0 else params
            self.champion.take(source.pull(self.champion.vector))
            self._save({"updates": self.champion.version})
        best.publish(self.champion.vector, self.champion.version, max(best.round, 0))
        return self.champion.version

    def play(self, params: Params, best: Params) -> Row:
        """Play the learner's weights of now against the best; publish them if they pass. The match's row."""
        version = params.pull(self.candidate.vector)
        self.candidate.take(version)
        points, distinct = self._match()
        passed = self.gate.verdict(float(points.sum()), len(points)) is True
        row: Row = {"candidate": version, "champion": self.champion.version, "passed": passed, "games": len(points)}
        row |= {name: int((points == x).sum()) for name, x in (("wins", 1), ("draws", 0.5), ("losses", 0))}
        row |= {"points": float(points.sum()), "openings": distinct}
        if passed:
            self.champion, self.candidate = self.candidate, self.champion
            before = self.games_played
            self.reign_ends = before + self.gate.reign
            self._save({"updates": version, "games_before": before, **row})
            best.publish(self.champion.vector, version, best.round + 1)
        return row

    def _match(self) -> tuple[np.ndarray, int]:
        """The candidate's points in the games that were needed, and how many openings differed."""
        starts, notes = self._openings()
        firsts = starts.begins == (notes.length % 2 == 0)  # games in which the candidate moved first
        ended = list[float]()

        def watch(found: dict[int, float], moves: int) -> bool:
            ended.extend(found.values())
            return self.gate.verdict(sum(ended), len(ended)) is None

        players = self._player(self.candidate, notes), self._player(self.champion, notes)
        points = match(self.board, *players, starts, watch=watch, at_once=self.games)
        self._tell(points, firsts, notes)
        return np.array(ended), len(np.unique(starts.records, axis=0))

    def _openings(self) -> tuple[MatchStarts, GameNotes]:
        """Each twice, and the moves that led there."""
        seed = seed_of(self.ctx.seed, self.candidate.version + 1)
        draw = PositionSearch(self.board, self.opening, self.champion, self.games, seed)
        records, moves = draw_openings(
            self.board, self.gate.games // 2, self.gate.plies, lambda records: draw.choose(records, self.ctx.turn)
        )
        notes = GameNotes(self.board, self.gate.games)
        for game, opening in enumerate(np.repeat(moves, 2, 0)):
            notes.begin(game, opening[opening >= 0])
        return MatchStarts(np.repeat(records, 2, 0), np.arange(self.gate.games) % 2 == 0), notes

    def _player(self, evaluator: NetworkEvaluator, notes: GameNotes) -> Opponent:
        search = PositionSearch(self.board, self.search, evaluator, self.games)

        def choose(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
            done = search.run(records[at], self.ctx.turn)
            moves = search.search.choose(done)
            notes.add(at, moves, done)
            return moves

        return choose

    def _tell(self, points: np.ndarray, firsts: np.ndarray, notes: GameNotes) -> None:
        """Tell the main process of the games that ended. firsts, bool [n]: the candidate moved first."""
        for game in np.flatnonzero(~np.isnan(points)).tolist():
            sides = (self.candidate.version, self.champion.version)
            black, white = sides if firsts[game] else sides[::-1]
            outcome = (2 * points[game] - 1) * (1 if firsts[game] else -1)
            about = {"name": f"gate-{self.candidate.version}-{game}", "kind": "gate", "black": black, "white": white}
            self.ctx.say("game", json.dumps(about | notes.row(game, outcome)))

    def _save(self, counters: Row) -> None:
        """The champion's weights, whole or not at all."""
        if self.ctx.directory is None:
            return
        arrays = {k: v.cpu().numpy() for k, v in self.champion.network.state_dict().items()}
        try:
            checkpoint.save_champion(self.ctx.directory, checkpoint.policy_name(0), arrays, counters)
        except OSError as e:
            self.ctx.say("warning", f"champion {self.champion.version} was not saved: {refusal_text(e)}")
