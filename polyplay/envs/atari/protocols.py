"""How scores are measured, by name: what starts a game, what ends it, how many are played. docs/guides/evaluation.md.

A protocol fixes how games start and end; the picture, the actions and the frames that one lasts stay those that the
agent was trained with. Returns are always undiscounted, unclipped and of whole games. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.atari import starts as start_states
from polyplay.envs.atari.native import rom
from polyplay.envs.pool import closest_names

Options = dict[str, int | float | str]


@dataclass(frozen=True)
class Protocol:
    name: str
    episodes: int  # the source's own number
    what: str
    baselines: tuple[str, ...] = ()  # sets of random and human scores that its scores may be normalised with
    options: Options = field(default_factory=dict)  # of Atari
    board: bool = False  # of board games: evaluation/boards plays it


_PLAIN: Options = {"start": "noops", "life_start": "", "fire_reset": False, "life_loss": "ignore", "pipeline": "auto"}
_PLAIN |= {"sticky": 0.0, "noop_min": 0, "noop_max": 31, "max_frames": 108_000}
_SHORT: Options = {**_PLAIN, "max_frames": 18_000}
_FILE = "start states of a file, 108,000 frames with those before the start; only what follows counts"
_STICKY = "sticky actions of 0.25, no no-ops, 108,000 frames"

ALL = (
    Protocol("run", 30, "as the run's own games start and end"),
    # Mnih et al. 2015; Nair et al. 2015; van Hasselt et al. 2016 (100 games)
    Protocol("null-op", 30, "0 to 30 no-ops, 18,000 frames (5 minutes)", ("nature", "noop57"), _SHORT),
    # Wang et al. 2016; Schaul et al. 2016 and most that came after
    Protocol("null-op-30min", 100, "0 to 30 no-ops, 108,000 frames (30 minutes)", ("noop57", "nature"), _PLAIN),
    # google-deepmind/dqn_zoo; OpenAI baselines' NoopResetEnv
    Protocol("null-op-1-30", 100, "1 to 30 no-ops, 108,000 frames", ("noop57", "nature"), {**_PLAIN, "noop_min": 1}),
    # Nair et al. 2015; van Hasselt et al. 2016
    Protocol("human-starts", 100, _FILE, ("human-starts",), {**_PLAIN, "noop_max": 0}),
    # Machado et al. 2018; google/dopamine (the number of games is ours)
    Protocol("sticky", 100, _STICKY, ("noop57",), {**_PLAIN, "sticky": 0.25, "noop_max": 0}),
    # ours: of board games
    Protocol("versus", 100, "a match from random openings, with both colours", board=True),
)
PROTOCOLS = {p.name: p for p in ALL}


def protocol(name: str) -> Protocol:
    """Raises UserError: there is none of that name."""
    if name not in PROTOCOLS:
        raise UserError(f"--protocol: {name!r} given{closest_names(name, PROTOCOLS)}; allowed: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def game(envs: Envs) -> str | None:
    """The ROM's name of an Atari run: "ms_pacman"."""
    return rom(envs.title) if envs.title.startswith("ALE/") else None


def is_board(envs: Envs) -> bool:
    """Whether this is a board game by name, whose rules are known."""
    return envs.title.startswith("game:")


def _check(how: Protocol, envs: Envs) -> None:
    """Raises UserError: the protocol is not for these environments."""
    here = [p.name for p in ALL if p.name == "run" or (is_board(envs) if p.board else game(envs))]
    if how.name not in here:
        kind = "board games (game:NAME)" if how.board else "Atari games"
        raise UserError(
            f"--protocol: {how.name} is for {kind}, this run plays {envs.title}; allowed here: {', '.join(here)}"
        )


def apply(how: Protocol, envs: Envs, starts: str | None = None) -> tuple[Envs, start_states.Starts | None]:
    """The run's environments as the protocol plays them, and the start states. Raises UserError."""
    if starts is not None and how.name != "human-starts":
        raise UserError(f"--starts {starts} is for --protocol human-starts, {how.name} given")
    _check(how, envs)
    if how.name == "run" or how.board:
        return envs, None
    options, title = {**envs.options, **how.options}, str(game(envs))
    if how.name != "human-starts":
        return replace(envs, options=options), None
    if starts is None:
        raise UserError(
            f"--protocol human-starts needs --starts FILE, start states of {title} as docs/guides/evaluation.md says; "
            "the papers' own were never released, `polyplay starts RUN` makes labelled substitutes from a run's play"
        )
    found = start_states.load_starts(starts, title)
    late = [i for i, s in enumerate(found.starts) if s.frames >= options["max_frames"]]
    if late:
        most = options["max_frames"]
        raise UserError(f"--starts: {starts}, start {late[0]}: more than {most - 1} frames were played before it")
    return replace(envs, options={**options, "starts": starts}), found


def label(how: Protocol, starts: start_states.Starts | None) -> str:
    """The protocol as every table names it: start states that are no human's are called so."""
    return how.name if starts is None or starts.kind == "human" else f"{how.name} ({starts.kind})"
