"""Judge and rater: two kinds of workers that play matches with the learner's weights during training.

The judge plays the learner's weights against the champion, the best weights so far. If the learner's weights win, they
become the champion, and the judge publishes them.

    learn ── Params ──► judge: a match every N updates ── Params of the best ──► self_play
                          └──► checkpoints/champion-UPDATE, matches.jsonl, games.jsonl

An unfinished match is not saved. After a restart, it is played from the beginning. The random draws of a match depend
only on the number of updates that the learner's weights have. In a run in one thread, no other worker acts during a
match, so a resumed run repeats the match exactly.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, count
from pathlib import Path

import numpy as np

from polyplay.acting import play
from polyplay.acting.play import MatchStarts
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import JsonLines, Row, read_lines, refusal_text, write_json
from polyplay.core.worker import WorkerContext, seed_of
from polyplay.envs.lane import load_bot
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.games.board_pool import Opponent
from polyplay.games.boards import Game
from polyplay.nets.device import enter_device
from polyplay.nets.factory import build_network
from polyplay.nets.policy import PolicyFactory
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population import ratings
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.search import Search
from polyplay.search.self_play import GameNotes
from polyplay.search.tree import SearchOptions
from polyplay.weights.params import AgentParams, FlatParams, Params

# Silver et al. 2017, Methods, "Evaluator": a candidate replaces the best player if it wins more than 55 % of 400 games.


@dataclass(frozen=True)
class Gate:
    """Rules of a match between new weights (the candidate) and the best weights so far. A draw counts half a point."""

    share: float  # a candidate needs more than this share of the points
    games: int  # games per match, half of them with each color
    every: int  # updates between matches
    plies: int  # opening plies of a game, drawn from the best network's policy
    reign: int = 0  # games that the best weights must play before the next match

    def __post_init__(self) -> None:
        if not 0.5 <= self.share < 1:
            raise UserError(f"--gate {self.share:g}: must be 0 for no matches, or from 0.5 to below 1")
        if self.games % 2:
            raise UserError(f"--gate-games {self.games}: must be an even number, half of the games with each color")

    def verdict(self, points: float, played: int) -> bool | None:
        """Tell whether the candidate passes after `played` games with `points` points. None: more games must decide."""
        needed = self.share * self.games + 1e-9  # 1e-9 against rounding: points are multiples of ½
        if points > needed:
            return True
        return None if points + self.games - played > needed else False

    def due_after(self, version: int) -> int:
        """Return the first update after update `version` at which a match is due."""
        return (version // self.every + 1) * self.every


REST = 0.1  # seconds between two checks of the learner's update


def judge(
    ctx: WorkerContext,
    *,
    envs: Envs,
    board: Game,
    policy: BoardNetworkFactory,
    options: SearchOptions,
    gate: Gate,
    params: Params,
    publish: Params,
) -> Iterator[None]:
    """Play a match whenever one is due. A match that becomes due during another match is skipped."""
    while not params.wait(0, ctx.index, publish.patience):
        yield
    matches = Matches(ctx, envs.lanes, board, policy, options, gate)
    version = matches.restore(params, publish)
    replaced = ctx.incarnation % 1000  # not 0 after the loss of a judge: begin its match again
    due = max(params.version, version + 1) if replaced else gate.due_after(max(version, params.version - 1))
    while True:
        while (reigns := matches.games_played < matches.reign_ends) or params.version < due:
            due = gate.due_after(params.version) if reigns else due
            time.sleep(min(ctx.patience, REST))
            yield
        row = matches.play(params, publish)
        ctx.log("match", json.dumps(row))
        due = gate.due_after(max(row["candidate"], params.version - 1))
        yield


class Matches:
    """Matches of candidates (the learner's newest weights) against the champion (the best weights so far)."""

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
        saved = {} if ctx.resume is None else checkpoint.manifest(ctx.resume)["counters"]
        self.games_before = sum(saved.get("games", {}).values()) or int(saved.get("episodes", 0))
        self.reign_ends = gate.reign  # games of all players after which the champion may be replaced
        self.search = options.quiet
        self.opening = replace(options.quiet, root="puct", simulations=0, temperature=((0, 1.0),))

    @property
    def games_played(self) -> int:
        """Number of games that all workers have played since the run started."""
        return self.games_before + int(self.ctx.all_counters.column("episodes").sum())

    def restore(self, params: Params, best: Params) -> int:
        """Publish the champion and return its version. If no champion was saved, take the weights that an earlier judge
        published, or else the learner's weights.
        """
        if self.ctx.directory is not None and (saved := checkpoint.champions(self.ctx.directory)):
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
        """Play the learner's weights against the champion, and publish winning weights. Return the match's log line."""
        version = params.pull(self.candidate.vector)
        self.candidate.take(version)
        points, distinct = self._match()
        passed = self.gate.verdict(float(points.sum()), len(points)) is True
        row: Row = {"candidate": version, "champion": self.champion.version, "passed": passed, "games": len(points)}
        row |= {name: int((points == x).sum()) for name, x in (("wins", 1), ("draws", 0.5), ("losses", 0))}
        row |= {"points": float(points.sum()), "openings": distinct}
        if passed:
            self.champion, self.candidate, before = self.candidate, self.champion, self.games_played
            self.reign_ends = before + self.gate.reign
            self._save({"updates": version, "games_before": before, **row})
            best.publish(self.champion.vector, version, best.round + 1)
        return row

    def _match(self) -> tuple[np.ndarray, int]:
        """Play games until `gate` decides. Return the candidate's points per game, and how many openings differ."""
        starts, notes = self._openings()
        firsts = starts.begins == (notes.length % 2 == 0)  # whether the candidate moved first, per game
        ended = list[float]()

        def watch(found: dict[int, float], moves: int) -> bool:
            ended.extend(found.values())
            return self.gate.verdict(sum(ended), len(ended)) is None

        players = self._player(self.candidate, notes), self._player(self.champion, notes)
        points = play.match(self.board, *players, starts, watch=watch, at_once=self.games)
        self._tell(points, firsts, notes)
        return np.array(ended), len(np.unique(starts.records, axis=0))

    def _openings(self) -> tuple[MatchStarts, GameNotes]:
        """Draw openings, each for two games. Return them, and GameNotes that contain their moves."""
        seed = seed_of(self.ctx.seed, self.candidate.version + 1)
        draw = Search(self.board, self.games, self.opening, self.champion, seed)
        records, moves = play.draw_openings(
            self.board, self.gate.games // 2, self.gate.plies, lambda records: draw.choose_moves(records, self.ctx.turn)
        )
        notes = GameNotes(self.board, self.gate.games)
        for game, opening in enumerate(np.repeat(moves, 2, 0)):
            notes.begin(game, opening[opening >= 0])
        return MatchStarts(np.repeat(records, 2, 0), np.arange(self.gate.games) % 2 == 0), notes

    def _player(self, evaluator: NetworkEvaluator, notes: GameNotes) -> Opponent:
        search = Search(self.board, self.games, self.search, evaluator)

        def choose(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
            done = search.run(records[at], self.ctx.turn)
            moves = search.choose(done)
            notes.add(at, moves, done)
            return moves

        return choose

    def _tell(self, points: np.ndarray, firsts: np.ndarray, notes: GameNotes) -> None:
        """Log finished games for the main process. firsts: bool [n], whether the candidate moved first."""
        for game in np.flatnonzero(~np.isnan(points)).tolist():
            sides = (self.candidate.version, self.champion.version)
            black, white = sides if firsts[game] else sides[::-1]
            outcome = (2 * points[game] - 1) * (1 if firsts[game] else -1)
            about = {"name": f"gate-{self.candidate.version}-{game}", "kind": "gate", "black": black, "white": white}
            self.ctx.log("game", json.dumps(about | notes.row(game, outcome)))

    def _save(self, counters: Row) -> None:
        """Save the champion's weights, completely or not at all."""
        if self.ctx.directory is None:
            return
        try:
            checkpoint.save_weights(self.ctx.directory, checkpoint.CHAMPION, self.champion.network, counters)
        except OSError as e:
            self.ctx.log("warning", f"champion {self.champion.version} was not saved: {refusal_text(e)}")


# The rater plays the learner's weights against references during training, and rates them by TrueSkill.
#
#     learn ── Params ──► rater: matches of a version every N updates ──► ratings.jsonl
#                           └── before the first: round-robin matches of references ──► references.json
#
# A line is written before it is applied, and holds all inputs of its rating. So a restarted rater, or a resumed run,
# restores every rating from the lines. The rater plays the remaining matches of a version that is still the newest.


RATING_METRIC = "trueskill"  # metric: the rating of the last rated version
BATCH = 16  # most matches in a line of ratings.jsonl, half of them on each side


def rater(
    ctx: WorkerContext,
    *,
    games: Envs,
    policy: PolicyFactory,
    params: Params | AgentParams,
    references: Sequence[str],
    every: int,
    matches: int,
) -> Iterator[None]:
    """Rate the learner's weights by matches against references (opponents of fixed skill).

    The first weights are rated, and then the newest weights after every `every` updates. In a run with several agents,
    only the first one is rated. references: names of scripted bots; random play is always added. matches: number of
    matches per rating.
    """
    names = check_references(games.spec, references, matches)
    place = contextlib.nullcontext(ctx.directory) if ctx.directory else tempfile.TemporaryDirectory()  # in a dry run
    with place as directory:
        own = params.each[0] if isinstance(params, AgentParams) else params
        rating = Rater(ctx, Path(directory), games, policy, own)
        with contextlib.closing(rating.file):
            known = yield from rating.meet(names)
            while True:
                while not rating.is_due(every, matches):
                    time.sleep(min(ctx.patience, REST))
                    yield
                yield from rating.rate(known, matches)


def check_references(spec: EnvSpec, references: Sequence[str], matches: int) -> tuple[str, ...]:
    """Return the names of the references, `random` first. Raises UserError if a bot is unknown, if the environment does
    not have two teams of the same kind, or if `matches` is odd or below 2.
    """
    if unknown := sorted({*references} - {*spec.bots, ratings.RANDOM}):
        given = f"references: unknown bots: {', '.join(unknown)}"
        raise UserError(f"{given}; allowed: {', '.join([ratings.RANDOM, *spec.bots])}")
    if len(set(spec.sides)) != 2 or len(set(spec.kinds)) > 1:
        raise UserError(f"--env: its seats have teams {list(spec.sides)}; ratings need two teams of the same kind")
    if matches < 2 or matches % 2:
        raise UserError(f"matches of a rating: must be even and at least 2, half on each side; got {matches}")
    return (ratings.RANDOM, *dict.fromkeys(name for name in references if name != ratings.RANDOM))


def rated_games(envs: Envs) -> Envs:
    """Return `envs` without randomized starts, for the games of a rating."""
    if not isinstance(envs.name, str):
        return envs
    return replace(envs, name="+".join(word for word in envs.name.split("+") if not word.startswith("randomize=")))


class Rater:
    """Rates versions of the learner's weights. The lines of ratings.jsonl hold the rater's whole state."""

    def __init__(self, ctx: WorkerContext, directory: Path, games: Envs, policy: PolicyFactory, params: Params):
        self.ctx, self.directory, self.games, self.params = ctx, directory, games, params
        self.net = build_network(policy, ctx.seed, ctx.precision)
        self.vector = FlatParams(self.net)
        self.file = JsonLines(directory / ratings.RATINGS)
        self.rated = ratings.read_rated(directory)
        self.version = -1
        self.steps_before = 0 if ctx.resume is None else checkpoint.steps_of(ctx.resume)
        reports = [row["wall_seconds"] for row in read_lines(directory / "metrics.jsonl", "wall_seconds")]
        self.begun = time.monotonic() - (reports[-1] if reports else 0.0)

    def meet(self, names: Sequence[str]) -> Generator[None, None, dict[str, float]]:
        """Return the TrueSkill mean μ of each reference, read from references.json or found by round-robin matches."""
        settings = ratings.reference_settings(self.games.title, names)
        if known := ratings.read_references(self.directory, settings):
            return known
        pairs = dict[tuple[str, str], list[float]]()
        for number, pair in enumerate(combinations(names, 2)):
            one, other = (self._reference(name, ratings.SEED + i) for i, name in enumerate(pair))
            points = yield from play.both_side_steps(self.games, one, other, ratings.MATCHES, ratings.SEED + number)
            pairs[pair] = points.tolist()
        skills = ratings.reference_skills(names, pairs)
        rated = [{"name": name, "mu": mu, "sigma": sigma} for name, (mu, sigma) in skills.items()]
        played = [{"pair": list(pair), "points": points} for pair, points in pairs.items()]
        made = {**settings, "references": rated, "played": played}
        yield from self._write(ratings.REFERENCES, partial(write_json, self.directory / ratings.REFERENCES, made))
        return {name: mu for name, (mu, _) in skills.items()}

    def is_due(self, every: int, matches: int) -> bool:
        """Tell whether the newest weights need matches. If they do, load them."""

        def wanted(version: int) -> bool:
            if not self.rated or version >= self.rated[-1].version + every:
                return True
            return version == self.rated[-1].version and self.rated[-1].matches < matches

        if self.params.round < 0 or not wanted(self.params.version):
            return False
        self.version = self.params.pull(self.vector, self.version)
        return wanted(self.version)

    def rate(self, references: dict[str, float], matches: int) -> Iterator[None]:
        """Play the matches that the loaded weights still need. Write a line for each batch of matches."""
        steps = self.steps_before + int(self.ctx.all_counters.column("steps").sum())
        wall = round(time.monotonic() - self.begun, 3)
        now = ratings.RatedVersion(self.version, steps, wall, ratings.first_skill(self.rated))
        if self.rated and self.rated[-1].version == self.version:
            now = self.rated[-1]
        while now.matches < matches:
            name = ratings.next_reference(now.skill[0], now.points, references)
            line = yield from self._play(now, name, references[name], min(BATCH, matches - now.matches))
            yield from self._write(ratings.RATINGS, partial(self.file.write, line))
            ratings.take_line(self.rated, line)
            now = self.rated[-1]
            yield
        self.ctx.counters.tally(RATING_METRIC, now.skill[0], 1)

    def _play(self, now: ratings.RatedVersion, name: str, reference: float, matches: int) -> Generator[None, None, Row]:
        """Play matches against the reference `name`. Return the line of ratings.jsonl for these matches."""
        seed = seed_of(self.ctx.seed, 1 + now.version) + now.matches  # different for each version and batch of matches
        player = play.policy_player(self.net, play.PlayOptions(matches, seed))
        points = yield from play.both_side_steps(self.games, player, self._reference(name, seed), matches, seed)
        mu, sigma = ratings.rate_against(now.skill, reference, points.tolist())
        about: Row = {"version": now.version, "steps": now.steps, "wall_seconds": now.wall_seconds}
        about |= {"reference": name, "reference_mu": reference, "points": points.tolist()}
        return {**about, "mu": mu, "sigma": sigma}

    def _reference(self, name: str, seed: int) -> play.TeamPlayer:
        if name == ratings.RANDOM:
            return play.random_player(seed)
        return play.scripted_player(load_bot(self.games.spec, name))

    def _write(self, name: str, write: Callable[[], None]) -> Iterator[None]:
        """Call `write` until it succeeds."""
        for tried in count():
            try:
                return write()
            except OSError as e:
                if not tried:
                    later = "versions are rated once it can be written again"
                    self.ctx.log("warning", f"{name}: {refusal_text(e)}; {later}")
            time.sleep(self.ctx.patience)
            yield
