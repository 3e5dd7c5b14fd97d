"""Verify a recorded evaluation, and record start states for evaluations.

`polyplay evaluate RUN --verify` repeats a recorded evaluation and compares the scores.

On the same machine with the same versions, every return must be the same. On another machine or with other versions,
the bootstrap interval of the difference of the means must contain 0. If a file is missing or changed, the verification
fails and names the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyplay.core import checkpoint, machine
from polyplay.core.errors import Count, Finding, Fraction, Seed, UserError
from polyplay.core.files import Row, is_number, read_object
from polyplay.core.numbers import aggregates_agree
from polyplay.envs import atari
from polyplay.envs.pool import Envs, lane_seeds
from polyplay.evaluation import evaluate
from polyplay.evaluation.agent import open_run
from polyplay.runs import directory as run_files
from polyplay.runs import flags, load
from polyplay.workers import process

NEEDED = (
    "protocol", "seed", "episodes", "epsilon", "actions", "lanes", "checkpoint", "checkpoint_sha256", "config_hash",
    "returns", "episodic_return_mean", "versions", "machine", "starts",
)  # fmt: skip
# options of `polyplay evaluate` that a record contains:
OPTIONS = ("protocol", "checkpoint", "seed", "episodes", "epsilon", "simulations", "against", "opening_plies", "task")
OTHER = "against_checkpoint_sha256"  # entry of a record, if the opponent was a run
RULES = ("record", "mean", "config", "checkpoint", "starts", "returns")


class VerificationFailed(Exception):
    """Exception: a recorded evaluation cannot be reproduced."""


def verify(
    directory: Path, evaluation: str | None = None, starts: str | None = None, trust: bool = False
) -> list[Finding]:
    """Check a recorded evaluation, rule by rule, and return a finding for each rule. The rules after a failed rule are
    not checked. Their finding is "unseen". `evaluation`: name of the evaluation's file (None: the newest).
    """
    there = sorted(directory.glob("evaluation-*.json"), key=lambda file: file.stat().st_mtime)
    path = directory / Path(evaluation).name if evaluation else there[-1] if there else None
    if path is None:
        raise UserError(f"RUN: {directory} has no evaluation to verify; `polyplay evaluate {directory}` makes one")
    if path not in there:
        have = ", ".join(sorted(file.name for file in there)) or "none"
        raise UserError(f"--evaluation: {path.name} is not in {directory}; allowed: {have}")
    found, checks = [], _check_rules(directory, path, starts, trust)
    for rule in RULES:
        try:
            found.append(Finding(rule, "ok", next(checks)))
        except VerificationFailed as e:
            found.append(Finding(rule, "failed", f"{path.name}: {e}"))
            break
    return found + [Finding(rule, "unseen", f"{found[-1].name} failed") for rule in RULES[len(found) :]]


def _check_rules(directory: Path, path: Path, starts: str | None, trust: bool) -> Iterator[str]:
    """Check the rules in the order of RULES, and yield a text for each. Raises VerificationFailed if a rule fails."""
    record = _read(path)
    yield f"{path.name}, of {record.get('finished', 'an unknown time')}"
    mean = float(np.mean(record["returns"]))
    _same("the mean", record["episodic_return_mean"], mean, "that of its returns is")
    _same("episodes", record["episodes"], len(record["returns"]), "the number of returns is")
    yield f"{mean:,.2f} over {record['episodes']} games"
    page, settings, run_options, config = load.load_run(directory, trust)
    run_files.check_program(path, record, trust)
    _same("config_hash", record["config_hash"], run_files.config_hash(config), "that of config.json is")
    yield f"config.json has the hash {record['config_hash']}"
    found = checkpoint.checkpoints_dir(directory) / record["checkpoint"]
    flaw = checkpoint.flaw(found) if found.is_dir() else "it no longer exists"
    if flaw is not None:
        raise VerificationFailed(f"checkpoint {found.name}: {flaw}")
    now = load.weights_digest(found, record.get("agent", 0))
    _same("checkpoint_sha256", record["checkpoint_sha256"], now, f"that of checkpoint {found.name} is")
    yield f"{found.name} is complete, and its weights are those of the evaluation"
    file = None
    if record["starts"] is not None:
        file = starts or str(record["starts"]["path"])
        try:
            digest = atari.load_starts(file).digest
        except UserError as e:
            raise VerificationFailed(str(e)) from None
        _same("the digest of the start states", record["starts"]["digest"], digest, f"that of {file} is")
    yield f"{file} is the file that was used" if file else "no start states were used"
    options = evaluate.EvaluateOptions(
        **{name: record[name] for name in OPTIONS if name in record},
        starts=file,
        agent=str(record["agent"]) if "agent" in record else None,
        greedy=record["actions"] == "greedy",
        device="cpu" if record.get("device", "cpu") == "cpu" else "auto",
        trust=trust,
    )
    wired = page.build(settings, load.crew_of(replace(run_options, device="cpu")))
    played = evaluate.choose_task(wired.envs, options.task)
    envs, _ = atari.apply(atari.protocol(options.protocol), played, file)
    if record.get("pipeline"):  # the evaluation was filmed
        envs = replace(envs, options={**envs.options, "pipeline": record["pipeline"]})
    yield _compare(record, evaluate.play_and_score(wired, envs, found, options))


def _same(what: str, recorded: object, actual: object, where: str) -> None:
    if recorded != actual:
        raise VerificationFailed(f"{what} is {recorded} in the record, but {where} {actual}")


def _read(path: Path) -> Row:
    try:
        record = read_object(path)
    except (OSError, ValueError) as e:
        raise VerificationFailed(f"cannot be read: {e}") from None
    if missing := [k for k in NEEDED if k not in record]:
        raise VerificationFailed(f"lacks {', '.join(missing)}; evaluate again with this version")
    returns = record["returns"]
    if not isinstance(returns, list) or not returns or not all(map(is_number, returns)):
        raise VerificationFailed(f"has {'no returns' if returns == [] else 'returns that are not numbers'}")
    hints, starts = flags.option_types(evaluate.EvaluateOptions), record["starts"]
    if not (starts is None or (isinstance(starts, dict) and {"path", "digest"} <= starts.keys())):
        raise VerificationFailed(f"starts is {starts}, allowed: null, or path and digest")
    if not isinstance(record.get("agent", 0), int):
        raise VerificationFailed(f"agent: '{record['agent']}' given, allowed: a whole number")
    try:
        return record | {name: flags.check_value(name, record[name], hints[name]) for name in OPTIONS if name in record}
    except UserError as e:
        raise VerificationFailed(str(e)) from None


def _compare(record: Row, now: Row) -> str:
    stamp = machine.stamp()
    changed = [k for k in ("versions", "commit", "machine") if record.get(k) != stamp[k]]
    changed += ["device"] if record.get("device", "cpu") != now["device"] else []
    changed += ["a Go program's moves"] if str(record.get("against")).startswith("gtp:") else []
    if record.get(OTHER) != now.get(OTHER):
        raise VerificationFailed(f"{record['against']} has other weights than when recorded")
    before, after = record["returns"], now["returns"]
    mean = f"{float(np.mean(after)):,.2f} now, {float(np.mean(before)):,.2f} recorded"
    if before == after:
        return f"all {len(before)} returns are the same"
    if not changed:
        first = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        raise VerificationFailed(
            f"game {first} returned {after[first]:g} now, {before[first]:g} recorded, by the same build; {mean}"
        )
    interval, differ = "95 % bootstrap interval", f"{', '.join(changed)} differ"
    if not aggregates_agree(before, after):
        raise VerificationFailed(f"{mean}: they differ by more than their {interval} ({differ})")
    return f"{mean}: no difference within its {interval}; {differ}"


# `evaluate RUN --save-starts FILE`: records start states for the human-starts protocol, labeled as an agent's play.
#
# The papers took 100 states per game from a professional's play, and never released these states. States made here
# cannot replace them in comparisons with published scores: these states show how an agent plays from states that it did
# not choose. Each state is from a different game of the run's policy, at a uniformly drawn frame of the first `frames`.


AT_ONCE = 16  # games played at once
SEED = 30_000_001  # added to the seed: games differ from those of training and evaluation
# options of whole games from the usual start, in which only the policy is random:
WHOLE = {**atari.PROTOCOLS["human-starts"].options, "start": "", "stack_reset": "zero"}


@dataclass(frozen=True)
class StartsOptions:
    """Records start states from a run's own games, for `polyplay evaluate --protocol human-starts --starts FILE`."""

    save_starts: str | None = None  # write start states for --protocol human-starts to this file
    number: Count = 100  # number of start states
    frames: Count = 18_000  # first frames of a game, from which states are drawn uniformly
    epsilon: Fraction = 0.05  # probability of a uniform random action at every step
    seed: Seed = 0  # seed of environments, actions and the choice of states
    checkpoint: str | None = None  # checkpoint to load: best, or the number its name begins with (none: the newest)
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def record_starts(directory: Path, options: StartsOptions) -> bytes:
    """Record start states from a run's games. Return the file's bytes. Raises UserError if the game is not of Atari."""
    from polyplay.acting import play

    wired, found, config = open_run(directory, options.checkpoint, options.trust)
    title = atari.game(wired.envs)
    if title is None:
        raise UserError(f"RUN: start states need an Atari game, but this run plays {wired.envs.title}")
    process.tune(1)
    how, policy = play.PlayOptions(1, options.seed, epsilon=options.epsilon), play.load_policy(wired, found)
    envs = replace(wired.envs, options={**wired.envs.options, **WHOLE, "max_frames": options.frames}, max_restarts=0)
    rows, players = list[Row](), [(play.policy_player(policy, how), slice(None))]
    for first in range(0, options.number, AT_ONCE):
        played: list[list[int]] = [[] for _ in range(min(AT_ONCE, options.number - first))]
        over = np.zeros(len(played), bool)
        with closing(play.play_rows(envs, len(played), options.seed + SEED, players, first)) as games:
            while not over.all():
                step, action, _ = next(games)
                over |= step["over"]
                for i in np.flatnonzero(~over).tolist():
                    played[i].append(int(action[i]))
        rows += _starts_of_games(envs, played, options, first)
    agent = f"play of an agent of {config['system']}, no human's: checkpoint {found.name}"
    agent += f", config {run_files.config_hash(config)}"
    source = f"{agent}, epsilon {options.epsilon:g}, seed {options.seed}, the first {options.frames} frames"
    return atari.written(title, "substitute", source, rows)


def _starts_of_games(envs: Envs, played: list[list[int]], options: StartsOptions, first: int) -> list[Row]:
    """Return a start state for each game. played: actions of each game. first: number of the first of these games."""
    game, made, rows = atari.rom(envs.title), atari.read_options(envs.title, envs.options), list[Row]()
    names = atari.actions_of(game, made.full_actions)
    for i, u in enumerate(np.random.default_rng((options.seed, first)).random(len(played))):
        steps = min(len(played[i]), options.frames // made.frameskip)
        buttons = [names[a] for a in played[i][: int(u * steps)] for _ in range(made.frameskip)]
        env_seed = int(lane_seeds(options.seed + SEED, first + i, 1)[0])
        rows.append({"actions": atari.spelled(buttons), "seed": env_seed, "ram": _ram(game, env_seed, buttons)})
    return rows


def _ram(game: str, seed: int, buttons: list[str]) -> str:
    """Return the SHA-256 hash of the emulator's RAM after these buttons were pressed for one frame each."""
    import ale_py

    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(str(ale_py.roms.get_rom_path(game)))
    ale.reset_game()
    for button in buttons:
        ale.act(ale_py.Action.__members__[button].value)
    return hashlib.sha256(ale.getRAM().tobytes()).hexdigest()
