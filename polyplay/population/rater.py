"""The rater: plays the learner's weights against references beside training, and rates them by TrueSkill.

    learn ── Params ──► rater: matches of a version every so many updates ──► ratings.jsonl
                          └── before the first: matches of every two references ──► references.json

A line is written before anything is made of it, and says all that its rating needs. So a rater that is lost, or a run
that goes on, has every rating again, and plays what is left of a version if that is still the newest.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from polyplay.acting.play import PlayOptions
from polyplay.acting.team_match import TeamPlayer, both_side_steps, policy_player, random_player, scripted_player
from polyplay.common import checkpoint
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.errors import UserError
from polyplay.common.files import JsonLines, Row, read_lines, refusal_text, write_json
from polyplay.envs.bots import load_bot
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.nets.factory import build_network
from polyplay.nets.policy import PolicyFactory
from polyplay.population.rated_versions import (
    RATINGS,
    RULES,
    RatedVersion,
    first_skill,
    next_reference,
    rate_against,
    read_rated,
    take_line,
)
from polyplay.population.ratings import TrueSkill
from polyplay.population.references import MATCHES, RANDOM, REFERENCES, SEED, ReferenceTable
from polyplay.weights.agent_params import AgentParams
from polyplay.weights.flat import FlatParams
from polyplay.weights.params import Params

METRIC = "trueskill"  # of a version that was rated
BATCH = 16  # matches of a line at most, half of them on each side
REST = 0.1  # seconds between two looks at the learner's update


def rater(
    ctx: WorkerContext,
    *,
    games: Envs,
    policy: PolicyFactory,
    params: Params | AgentParams,
    references: Sequence[str],
    every: int,
    matches: int,
    skill: TrueSkill = RULES,
) -> Iterator[None]:
    """Rate the first weights, then the newest ones once `every` updates were made since those that were rated last, by
    so many matches; of several agents, the first one's. references: scripted bots; random play is one beside them.
    """
    names = check_references(games.spec, references, matches)
    place = contextlib.nullcontext(ctx.directory) if ctx.directory else tempfile.TemporaryDirectory()  # of a dry run
    with place as directory:
        own = params.each[0] if isinstance(params, AgentParams) else params
        rating = Rater(ctx, Path(directory), games, policy, own, skill)
        with contextlib.closing(rating.file):
            known = yield from rating.meet(names)
            while True:
                while not rating.is_due(every, matches):
                    time.sleep(min(ctx.patience, REST))
                    yield
                yield from rating.rate(known, matches)


def check_references(spec: EnvSpec, references: Sequence[str], matches: int) -> tuple[str, ...]:
    """Their names, `random` first. Raises UserError: no such bot, no two teams, or matches that don't divide."""
    if unknown := sorted({*references} - {*spec.bots, RANDOM}):
        given = f"references: {', '.join(unknown)} given"
        raise UserError(f"{given}; allowed: {', '.join([RANDOM, *spec.bots])}")
    if len(set(spec.sides)) != 2 or len(set(spec.kinds)) > 1:
        raise UserError(f"--env: seats of teams {list(spec.sides)} given; ratings need two teams of the same kind")
    if matches < 2 or matches % 2:
        raise UserError(f"matches of a rating: {matches} given, half on each side; allowed: even numbers from 2 on")
    return (RANDOM, *dict.fromkeys(name for name in references if name != RANDOM))


def rated_games(envs: Envs) -> Envs:
    """The games that versions are rated in: matches begin as they always do, not randomised."""
    if not isinstance(envs.name, str):
        return envs
    return replace(envs, name="+".join(word for word in envs.name.split("+") if not word.startswith("randomise=")))


class Rater:
    """Its state is that of the lines in ratings.jsonl."""

    def __init__(
        self, ctx: WorkerContext, directory: Path, games: Envs, policy: PolicyFactory, params: Params, rules: TrueSkill
    ):
        self.ctx, self.directory, self.games, self.params, self.rules = ctx, directory, games, params, rules
        self.net = build_network(policy, ctx.seed, ctx.precision)
        self.vector = FlatParams(self.net)
        self.file = JsonLines(directory / RATINGS)
        self.rated = read_rated(directory, rules)
        self.version, self.warned = -1, False
        self.steps_before = 0 if ctx.resume is None else checkpoint.steps_of(ctx.resume)
        reports = [row["wall_seconds"] for row in read_lines(directory / "metrics.jsonl", "wall_seconds")]
        self.begun = time.monotonic() - (reports[-1] if reports else 0.0)

    def meet(self, names: Sequence[str]) -> Generator[None, None, dict[str, float]]:
        """Play the matches between references that references.json lacks; then their μ."""
        table = ReferenceTable(self.games.title, tuple(names), self.rules)
        table.load(self.directory)
        for number, pair in table.missing():
            one, other = (self._reference(name, SEED + i) for i, name in enumerate(pair))
            points = yield from both_side_steps(self.games, one, other, MATCHES, SEED + number)
            table.pairs[pair] = points.tolist()
            yield from self._write(REFERENCES, partial(write_json, self.directory / REFERENCES, table.save()))
        return {name: mu for name, (mu, _) in table.skills().items()}

    def is_due(self, every: int, matches: int) -> bool:
        """Whether the newest weights are to be rated, or matches of theirs are left: then they are taken."""

        def wanted(version: int) -> bool:
            last = self.rated[-1] if self.rated else None
            if last is None or version >= last.version + every:
                return True
            return version == last.version and last.matches < matches

        if self.params.round < 0 or not wanted(self.params.version):
            return False
        self.version = self.params.pull(self.vector, self.version)
        return wanted(self.version)

    def rate(self, references: dict[str, float], matches: int) -> Iterator[None]:
        """Play the matches that the weights of now lack, batch by batch."""
        steps = self.steps_before + int(self.ctx.all_counters.column("steps").sum())
        wall = round(time.monotonic() - self.begun, 3)
        now = RatedVersion(self.version, steps, wall, first_skill(self.rated, self.rules))
        if self.rated and self.rated[-1].version == self.version:
            now = self.rated[-1]
        while now.matches < matches:
            name = next_reference(now.skill[0], now.points, references)
            line = yield from self._play(now, name, references[name], min(BATCH, matches - now.matches))
            yield from self._write(RATINGS, partial(self.file.write, line))
            take_line(self.rated, line, self.rules)
            now = self.rated[-1]
            yield
        self.ctx.counters.tally(METRIC, now.skill[0], 1)

    def _play(self, now: RatedVersion, name: str, reference: float, matches: int) -> Generator[None, None, Row]:
        """Matches against a reference; their line."""
        seed = seed_of(self.ctx.seed, 1 + now.version) + now.matches  # of versions and batches others
        player = policy_player(self.net, PlayOptions(matches, seed))
        points = yield from both_side_steps(self.games, player, self._reference(name, seed), matches, seed)
        mu, sigma = rate_against(now.skill, reference, points.tolist(), self.rules)
        about: Row = {"version": now.version, "steps": now.steps, "wall_seconds": now.wall_seconds}
        about |= {"reference": name, "reference_mu": reference, "points": points.tolist()}
        return {**about, "mu": mu, "sigma": sigma}

    def _reference(self, name: str, seed: int) -> TeamPlayer:
        if name == RANDOM:
            return random_player(seed)
        return scripted_player(load_bot(self.games.spec, name))

    def _write(self, name: str, write: Callable[[], None]) -> Iterator[None]:
        """Until it can be written, nothing is played."""
        while True:
            try:
                write()
                self.warned = False
                return
            except OSError as e:
                if not self.warned:
                    later = "versions are rated once it can be written again"
                    self.ctx.say("warning", f"{name}: {refusal_text(e)}; {later}")
                self.warned = True
                time.sleep(self.ctx.patience)
            yield
