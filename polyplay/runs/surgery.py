"""Surgery: continue a trained run with a larger network or another game (OpenAI et al. 2019, Dota 2, Appendix B)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyplay import systems
from polyplay.buffers.league import blocks_of_teams
from polyplay.core import checkpoint, platform, tree
from polyplay.core.errors import UserError
from polyplay.core.files import Row, write_json
from polyplay.core.machine import now
from polyplay.envs import pool
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.envs.spaces import Conditional, describe_actions, describe_fields
from polyplay.population import league_log, ratings
from polyplay.runs import directory as run_directory
from polyplay.runs import flags, load
from polyplay.runs.directory import is_locked
from polyplay.runs.flags import flag
from polyplay.runs.options import Page, RunOptions, Settings, listed, to_json

if TYPE_CHECKING:
    from polyplay.nets.actor_critic import ActorCritic
    from polyplay.workers.crew import Crew

# Allowed changes of a run: a larger network, or another game of the same kind.


def change_options(
    page: Page, settings: Settings, options: RunOptions, system: str, changes: Mapping[str, Any]
) -> tuple[Settings, RunOptions]:
    """Return the settings and options with `changes` applied. Raises UserError if a change is not allowed."""
    changes = dict(listed(changes))
    types, both = flags.option_types(page.Config), {**vars(settings), **vars(options)}
    for name in changes:
        if name not in both:
            raise UserError(f"{flag(name)}: {system} has no such option")
    if sizes := changes.get("hidden"):  # the network keeps its activation function
        name, _, layers = str(both.get("network", "")).partition("(")
        words = [word for word in layers.rstrip(")").replace(" ", "").split(",") if word and not word.isdigit()]
        changes = {**changes, "network": f"{name}({','.join([*map(str, sizes), *words])})", "hidden": tuple(sizes)}
    if "core_size" in changes:
        given, size = f"--core-size: {changes['core_size']} given", both.get("core_size", 0)
        if both.get("core") == "none":
            raise UserError(f"{given}, but RUN has no core: leave it out")
        if changes["core_size"] < size:
            raise UserError(f"{given}, but RUN has {size}, and networks only grow: give a larger size")
    own = {k: flags.check_value(flag(k), v, types[k]) for k, v in changes.items() if k in types}
    others = {k: v for k, v in changes.items() if k not in types}
    return replace(settings, **own), replace(options, **others)


def check_games(old: Envs, new: Envs, league: bool) -> None:
    """Check that the new game is of the same kind as the old one. Raises UserError if observations or actions are of
    another kind, or if only one of the games has several players. In a league, teams and bots must be the same, too.
    """
    was, is_ = old.spec, new.spec
    for what, (before, described), (after, given) in zip(KINDS, _kinds(was), _kinds(is_), strict=True):
        both = before.keys() & after.keys()
        if not both or any(before[leaf] != after[leaf] for leaf in both):
            flaw = f"{given} instead of {described}"
            raise UserError(f"--env: {new.title} given, whose {what} are of another kind than {old.title}'s: {flaw}")
    if (was.seats > 1) != (is_.seats > 1):
        raise UserError(f"--env: {new.title} given, which has {is_.seats} seats, but {old.title} has {was.seats}")
    teams = [blocks_of_teams(envs.spec.sides, envs.agents) for envs in (old, new)]
    if league and (teams[0] != teams[1] or was.bots != is_.bots):
        same = "teams" if teams[0] != teams[1] else "bots"
        raise UserError(f"--env: {new.title} given, but the matches of RUN's league were played with other {same}")


KINDS = ("observations", "actions")


def _kinds(spec: EnvSpec) -> Iterator[tuple[dict[Any, Any], str]]:
    """Yield (properties that a new game must share, description), first for observations, then for actions."""
    shown: dict[Any, Any] = {p: (x.dtype, len(x.shape), type(spec.classes.get(p))) for p, x in tree.leaves(spec.obs)}
    yield shown, describe_fields(spec.obs)
    whole = type(spec.action), spec.action.first if isinstance(spec.action, Conditional) else ""
    yield {(*whole, p): type(x) for p, x in tree.leaves(spec.action)}, describe_actions(spec.action)


REPORT = "surgery.json"
LINES = ("metrics", "episodes", "evaluations", "decisions", "lineage", "ratings")  # logs copied from the old run
SEED = 15_485_863  # added to the run's seed for new weights, so that they do not repeat the initial weights


@dataclass(frozen=True)
class _Side:
    """A run before or after it grows (gets a larger network or another game)."""

    settings: Settings
    options: RunOptions
    system: systems.System
    policy: ActorCritic
    rest: float  # initial value of the optimizer's mean of squared gradients

    @property
    def game(self) -> tuple[object, ...]:
        """Name, options and spec (observations and actions) of the game."""
        envs = self.system.envs
        return envs.name, envs.options, envs.spec


def grow_run(directory: Path, out: Path, changes: Mapping[str, Any], settle: int = 0, trust: bool = False) -> Row:
    """Grow a run: apply `changes` to its options, and write it to `out`, where `polyplay resume` continues it. Return a
    report. settle: agent steps to train first, at learning rate 0. If UserError is raised, nothing is written.
    """
    page, settings, options, config = load.load_run(directory, trust)
    if is_locked(directory):
        raise UserError(f"RUN: {directory} is being written: end that run first")
    if out.exists():
        raise UserError(f"--out: {out} already exists: choose another directory")
    found, counters = load.find_checkpoint(directory, lambda text: print(f"polyplay: {text}"))
    if found is None or not counters["updates"]:
        raise UserError(f"RUN: {directory} has made no updates yet: start a new run")
    after = change_options(page, settings, options, config["system"], changes)
    old, new = _side(page, settings, options, config["system"]), _side(page, *after, config["system"])
    check_games(old.system.envs, new.system.envs, league_log.has_league(directory))
    run = _GrownRun(directory, found, old, new)
    if not run.growth.changed and old.game == new.game:
        cure = "give another --core-size, --hidden, --network or --env; `polyplay resume` alone changes --lanes"
        raise UserError(f"surgery: nothing changes, neither a size of the network nor the game: {cure}")
    learnt = sum(float(run.saved.json(f"agents/{a}/learner")["learnt"]) for a in run.agents)
    lost = ["games under way, recurrent states and rollouts in flight: all lanes begin new episodes"]
    lost += ["experience of optimizers: their buffers are refilled"] * any(found.glob("learners/*/experience*"))
    others = len(checkpoint.everything(directory)) - 1
    report: Row = {
        "from": str(directory.absolute()),
        "checkpoint": found.name,
        "at": now(),
        "changes": {flag(name): value for name, value in changes.items()},
        "parameters_before": sum(p.numel() for p in old.policy.parameters()),
        "parameters_after": sum(p.numel() for p in new.policy.parameters()),
        "agents": len(run.agents),
        "past_agents": len(checkpoint.self_files(directory)),
        "freeze_until": learnt + settle if settle else 0.0,
        "tensors": {name: {"was": was, "is": is_} for name, (was, is_) in run.growth.changed.items()},
        "taken_away": run.growth.missing,
        "not_carried": lost + [f"{others} older checkpoints"] * (others > 0),
    }
    contents: run_directory.RunDescription = {
        "system": config["system"],
        "config": to_json(new.settings),
        "options": to_json(replace(new.options, run=str(out))),
        "sources": {**config["sources"], **dict.fromkeys(changes, "surgery")},
        "environment": new.system.envs.spec.describe,
    }
    about = {k: report[k] for k in ("from", "checkpoint", "at", "changes")}
    more = {"resumed": config["resumed"], "surgery": [*config.get("surgery", []), about]}
    made = out.with_name(f".{out.name}.surgery-{os.getpid()}")
    try:  # write everything or nothing
        made.mkdir(parents=True)
        run.write(made, counters, report["freeze_until"])
        write_json(made / REPORT, report)
        run_directory.write_config(made, contents)
        write_json(made / "config.json", run_directory.read_config(made) | more)
        platform.replace(made, out)
    except OSError as e:
        raise UserError(f"--out: {out} could not be written: {e.strerror or e}; name another directory") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return report


def _side(page: Any, settings: Settings, options: RunOptions, name: str) -> _Side:
    """Build a run's system and network. Raises UserError for networks other than ActorCritic and for replay buffers."""
    from polyplay.nets.actor_critic import ActorCritic
    from polyplay.weights.optimizers import FLAVORS

    crew: Crew = load.crew_of(replace(options, device="cpu", hosts=None, place=None, ship=None))
    wired = load.wire_system(page, settings, crew)
    policy = wired.policy()
    replays = any(role.replay is not None for role in crew.roles)
    if replays or not isinstance(policy, ActorCritic):
        why = "its replay has states of the old size" if replays else "its network is of another kind"
        raise UserError(f"RUN: a run of {name}, which cannot grow: {why}; ppo, impala, league and their like can")
    optimizers = {role.spec.update.optim.title for role in crew.roles if role.spec is not None}
    rest = max((FLAVORS[name]["g0"] for name in optimizers if name in FLAVORS), default=0.0)
    return _Side(replace(settings, **wired.resolved), options, wired, policy, rest)


class _GrownRun:
    """Writes the files of a grown run that derive from a checkpoint of the old run."""

    def __init__(self, directory: Path, found: Path, old: _Side, new: _Side):
        from polyplay.nets.surgery import NetworkGrowth

        self.directory, self.found, self.new = directory, found, new
        self.growth = NetworkGrowth(old.policy, new.policy)
        self.saved, self.agents = checkpoint.OpenCheckpoint(found), checkpoint.agents_of(found)

    def write(self, made: Path, counters: Row, freeze_until: float) -> None:
        """Write the grown checkpoint, the grown past agents and copies of the logs to `made`. Raises OSError."""
        spec, version = self.new.system.envs.spec, checkpoint.update_of(self.found)
        for path in sorted(self.directory.glob("*.jsonl")):
            if path.stem in (*LINES, "matches") or path.stem.partition("-")[0] == "updates":
                shutil.copy(path, made / path.name)
        for path in (self.directory / name for name in (league_log.SUMMARY, ratings.REFERENCES)):
            if path.exists() and (path.name == ratings.REFERENCES or (made / league_log.LOG).exists()):
                shutil.copy(path, made / path.name)
        part = checkpoint.CheckpointPart(made, version)
        for agent in self.agents:
            name = f"agents/{agent}"
            part.arrays(f"{name}/policy", self._policy(self.saved.arrays(f"{name}/policy"), agent))
            statistics = self.saved.arrays(f"{name}/optimizer")
            part.arrays(f"{name}/optimizer", {k: self._statistics(k, v) for k, v in statistics.items()})
            learner = self.saved.json(f"{name}/learner")
            part.json(f"{name}/learner", {**learner, **({"freeze_until": freeze_until} if freeze_until else {})})
        checkpoint.complete(made, version, {**counters, "frames": counters["steps"] * spec.frames_per_step})
        for path in checkpoint.self_files(self.directory):
            (made / checkpoint.FOLDER).mkdir(exist_ok=True)
            past = self._policy(checkpoint.read_self(path), int(path.stem.partition("-")[0]))
            checkpoint.write_self(made / checkpoint.FOLDER / path.name, past)
        write_json(made / pool.FILE, pool.spec_to_json(spec))

    def _policy(self, arrays: Mapping[str, np.ndarray], agent: int) -> dict[str, np.ndarray]:
        """Return the grown weights of a present or past agent."""
        from polyplay.nets.factory import build_network

        fresh = build_network(self.new.system.policy, self.new.options.seed + SEED * (1 + agent))
        return self.growth.grow(arrays, {k: v.numpy() for k, v in fresh.state_dict().items()})

    def _statistics(self, name: str, found: np.ndarray) -> np.ndarray:
        rest = self.new.rest if name == "square" else 0.0
        return self.growth.grow_statistics(found, rest) if found.ndim else found
