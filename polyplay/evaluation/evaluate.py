"""Scores of a run's checkpoints: measured by a protocol, written down so that they can be compared and checked again.

Every evaluation is a file of its own in the run's directory, `evaluation-….json`; `scores.json` gathers them in three
places that are never mixed: "final" (the run's last weights), "best" (its best snapshot) and "training" (the returns of
its last 100 games while it learnt); evaluations of other checkpoints are in "snapshots".
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polyplay.common import checkpoint, machine
from polyplay.common.bounds import Count, Fraction, Seed, Simulations, Whole
from polyplay.common.errors import UserError
from polyplay.common.files import Row, read_object, write_json
from polyplay.common.statistics import mean_interval
from polyplay.envs import Envs
from polyplay.envs.atari import protocols
from polyplay.envs.atari.starts import Starts
from polyplay.evaluation.board_options import check_board_options, describe_label
from polyplay.evaluation.film import Film, without_a_screen
from polyplay.evaluation.progress import GamesWatch, on_screen
from polyplay.evaluation.scores.of_runs import FILE, read_scores, training_score
from polyplay.evaluation.window import Window
from polyplay.runs.directory import READ_ONLY, config_hash, is_read_only
from polyplay.runs.load import check_spaces, choose_agent, choose_checkpoint, crew_of, load_run, weights_digest
from polyplay.runs.options import Settings
from polyplay.runs.trust import program_signature
from polyplay.systems import System
from polyplay.workers import process

if TYPE_CHECKING:
    from polyplay.nets import Policy

SCHEMA = 1
LONGEST_SLUG = 120  # letters of a protocol in the name of a file
IN_SCORES = (  # of an evaluation, in scores.json
    "protocol", "label", "agent", "against", "simulations", "chosen_by", "checkpoint", "checkpoint_sha256", "frames",
    "seed",
    "episodes", "epsilon", "actions", "episodic_return_mean", "episodic_return_std", "interval", "config_hash",
    "versions", "commit", "machine", "finished",
)  # fmt: skip


@dataclass(frozen=True)
class EvaluateOptions:
    """Plays full games, measures undiscounted and unclipped returns, and writes them to the run's directory."""

    protocol: Literal["run", "null-op", "null-op-30min", "null-op-1-30", "human-starts", "sticky", "versus"] = "run"
    """how games start and end. run: as in training. null-op: 0-30 no-ops and at most 18,000 frames. null-op-30min: the
    same with 108,000 frames. null-op-1-30: that with 1-30 no-ops. human-starts: from the start states of a file.
    sticky: sticky actions of 0.25. versus: a match with --against"""
    episodes: Count | None = None
    """how many full games (none: the protocol's number: 30 or 100)"""
    seed: Seed = 0
    """seed of environments and actions"""
    epsilon: Fraction | None = None
    """probability of a uniform random action (none: the system's own value, mostly 0)"""
    starts: str | None = None
    """file of start states, for --protocol human-starts"""
    simulations: Simulations | None = None
    """simulations of the search for each move, also of a run in --against; 0: the network alone (none: the run's own
    number)"""
    against: str | None = None
    """the opponent of --protocol versus: random, mcts:N, in connect four perfect, in Go a program (gtp:COMMAND), or the
    directory of a run or of a checkpoint"""
    opening_plies: Whole | None = None
    """random moves before a game of --protocol versus (none: 2)"""
    video: bool = False
    """write a video of the first game to the run's directory; if that fails, a line says why and the games are scored
    all the same"""
    render: bool = False
    """show the games in a window, at normal speed"""
    checkpoint: str | None = None
    """checkpoint to load: best, or the number its name begins with (none: the newest)"""
    agent: str | None = None
    """agent of a league: best (by its Elo), or its number (none: the first)"""
    greedy: bool = False
    """take the most probable action instead of a sampled one"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the network computes (auto: on CUDA if there is a GPU)"""
    max_steps: Count | None = None
    """stop after this many agent steps, summed over all parallel games; the score has the games that have ended
    (none: play all games)"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def evaluate(
    directory: Path,
    options: EvaluateOptions | None = None,
    settings: Settings | None = None,
    watch: GamesWatch | None = None,
) -> Row:
    """Play full games with a checkpoint's weights, and write the evaluation beside them, unless it was ended early:
    `ended` says by what; or the directory is read-only: then a line says so, and a video is in the present folder.
    settings: the run's Config, where config.json cannot hold it (an environment that is a
    function). watch: shows how far it is, and takes signals.
    """
    options = options or EvaluateOptions()
    protocol = protocols.protocol(options.protocol)
    check_board_options(options)
    page, saved, run_options, config = load_run(directory, trust=options.trust or settings is not None)
    found = choose_checkpoint(directory, options.checkpoint)
    wired = page.build(settings or saved, crew_of(replace(run_options, device="cpu")))
    check_spaces(directory, wired.envs)
    envs, starts = protocols.apply(protocol, wired.envs, options.starts)
    label = describe_label(protocols.label(protocol, starts), options)
    name = file_name(options, found.name, label)
    read_only = is_read_only(directory)
    video = (Path() if read_only else directory) / f"{name}.mp4" if options.video else None
    played = play_and_score(wired, envs, found, options, video, watch)
    place = "best" if options.checkpoint == "best" else "final" if found.name == final(directory) else "snapshots"
    result = {**_origin(place, wired, found, config, starts, played.get("agent", 0)), **played, "label": label}
    result |= {"environment": dict(envs.spec.describe)}
    if "ended" not in result and read_only:
        print(f"polyplay: nothing is written to {directory}, which is read-only ({READ_ONLY})", file=sys.stderr)
    elif "ended" not in result:
        result |= {"signature": signed} if (signed := program_signature(result)) else {}
        write_json(directory / f"{name}.json", result)
        update_scores(directory, name, result)
    return result


def play_and_score(
    wired: System,
    envs: Envs,
    found: Path,
    options: EvaluateOptions,
    video: Path | None = None,
    watch: GamesWatch | None = None,
) -> Row:
    """The games, and what a repetition has to know of how they were played. Raises UserError: none was over."""
    from polyplay.acting import play

    policy, where, told = _load(wired, found, options)
    if protocols.protocol(options.protocol).board:
        from polyplay.evaluation.boards import play_board_protocol

        return {**told, **play_board_protocol(wired, policy, found, options, where, watch)}
    episodes = options.episodes or protocols.protocol(options.protocol).episodes
    epsilon = float(wired.test_epsilon if options.epsilon is None else options.epsilon)
    before, mine = time.monotonic(), watch or GamesWatch()
    mine.max_steps = options.max_steps
    screen = on_screen(mine, episodes) if watch else nullcontext(mine.step)
    film = Film(video) if video else None
    with ExitStack() as stack:
        step = stack.enter_context(screen)
        viewers = [stack.enter_context(closing(viewer)) for viewer in _viewers(wired, options, film)]
        stack.enter_context(nullcontext() if options.render else without_a_screen())
        for viewer in viewers:
            envs = viewer.shown(envs)
        games = play.play_games(envs, policy, episodes, options.seed, options.greedy, viewers, epsilon, step)
    if not games:
        raise UserError(f"{mine.ended}: no game was over by then, so there is no score")
    result = play.summarize_games(games, envs.spec.frames_per_step, time.monotonic() - before)
    return {
        "protocol": options.protocol,
        "seed": options.seed,
        "lanes": play.lanes_of(envs, episodes),
        **told,
        "epsilon": epsilon,
        "actions": "greedy" if options.greedy else "sampled",
        **result,
        "interval": mean_interval(result["returns"]),
        **({"ended": mine.ended, "asked": episodes} if len(games) < episodes else {}),
        **({"video": None if film.fault else str(film.path)} if film else {}),
    }


def _load(wired: System, found: Path, options: EvaluateOptions) -> tuple[Policy, str, Row]:
    """Who plays, on which device, and what a record says of both. Raises UserError."""
    import torch

    from polyplay.acting import play
    from polyplay.nets import device

    process.tune(1)  # the environments' threads have the other cores; two that wait for each other gain nothing
    torch.manual_seed(options.seed)
    where = device.choose_devices(options.device)[0]
    if wired.player is None and options.simulations is not None:
        given = f"--simulations {options.simulations} given"
        raise UserError(f"{given}, but the policy of this run does not search: leave it out")
    whose = choose_agent(found.parents[1], found, options.agent)
    policy = play.load_player(wired, found, where, options.simulations, whose)
    told: Row = {"device": where if where == "cpu" else device.device_name(where)}
    told |= {} if options.agent is None else {"agent": whose}
    return policy, where, told | ({"simulations": getattr(policy, "simulations", None)} if wired.player else {})


def _viewers(wired: System, options: EvaluateOptions, film: Film | None) -> Iterator[Film | Window]:
    """What is shown every step."""
    if film:
        yield film
    if options.render:
        yield Window(f"polyplay {wired.envs.title}")


def file_name(options: EvaluateOptions, found: str, label: str) -> str:
    """Without its ending: what differs from `polyplay evaluate RUN` stands in it."""
    slug = re.sub(r"[^\w.]+", "-", label).strip("-")
    if len(slug) > LONGEST_SLUG:  # a command
        slug = f"{slug[:LONGEST_SLUG]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    parts = ["evaluation", found] + ([] if slug == "run" else [slug])
    parts += [] if options.agent is None else [f"agent-{options.agent}"]
    parts += [] if options.epsilon is None else [f"eps{options.epsilon:g}"]
    return "-".join([*parts, f"seed{options.seed}", *(["greedy"] if options.greedy else [])])


def final(directory: Path) -> str | None:
    """The checkpoint that a run ended with; None: it goes on, or failed."""
    try:
        summary = read_object(directory / "summary.json")
    except (OSError, ValueError):
        return None
    return summary.get("checkpoint") if summary.get("exit_code") == 0 else None


def _origin(place: str, wired: System, found: Path, config: Row, starts: Starts | None, agent: int) -> Row:
    """Whose score it is, and with what it was measured."""
    stamp, counters = machine.stamp(), checkpoint.manifest(found)["counters"]
    chosen = {checkpoint.BEST: "evaluation", checkpoint.CHAMPION: "match"}
    by = next((by for prefix, by in chosen.items() if found.name.startswith(prefix)), "training return")
    files = None if starts is None else {k: getattr(starts, k) for k in ("path", "digest", "kind", "source")}
    return {
        "schema": SCHEMA,
        "place": place,
        "chosen_by": by if place == "best" else None,
        "system": config["system"],
        "env": config["config"]["env"],
        "game": protocols.game(wired.envs),
        "trained_seed": config["seed"],
        "checkpoint": found.name,
        "checkpoint_sha256": weights_digest(found, agent),
        "frames_trained": counters.get("frames"),
        "config_hash": config_hash(config),
        "starts": files,
        **{k: stamp[k] for k in ("versions", "commit", "machine")},
        "finished": stamp["started"],
    }


def update_scores(directory: Path, name: str, result: Row) -> None:
    """Put an evaluation into scores.json, and the training returns of now."""
    scores = read_scores(directory)
    last = final(directory)
    for old in [k for k, v in scores["final"].items() if v.get("checkpoint") != last]:  # the run went on since
        scores["snapshots"][old] = scores["final"].pop(old)
    entry = {k: result[k] for k in IN_SCORES if k in result}
    entry |= {"starts": result["starts"]} if result["starts"] else {}
    scores[result["place"]][name] = {**entry, "frames": result["frames_trained"]}
    scores["training"] = training_score(directory)
    write_json(directory / FILE, scores)
