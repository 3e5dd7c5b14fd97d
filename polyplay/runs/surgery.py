"""A run whose network or game grows.

A run whose network or game grows: another run that goes on where it was (OpenAI et al. 2019, Dota 2, Appendix B).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from polyplay import systems
from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import FOLDER, read_self, self_files, write_self
from polyplay.core.errors import UserError
from polyplay.core.files import Row, write_json
from polyplay.core.machine import now
from polyplay.core.tree import Field
from polyplay.envs import pool
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.envs.spaces import Conditional, describe_actions, describe_fields
from polyplay.population.league import blocks_of_teams
from polyplay.population.league_log import LOG, SUMMARY, has_league
from polyplay.population.ratings import REFERENCES
from polyplay.runs import directory as run_directory
from polyplay.runs import flags
from polyplay.runs.directory import is_locked
from polyplay.runs.flags import flag
from polyplay.runs.load import crew_of, find_checkpoint, load_run, wire_system
from polyplay.runs.options import Page, RunOptions, Settings, to_json

if TYPE_CHECKING:
    from polyplay.nets.actor_critic import ActorCritic
    from polyplay.nets.surgery import NetworkGrowth
    from polyplay.workers.crew import Crew

# What may change when a run grows: options of its network and of its game, to larger ones of the same kind.


def change_options(
    page: Page, settings: Settings, options: RunOptions, system: str, changes: Mapping[str, Any]
) -> tuple[Settings, RunOptions]:
    """The options of the grown run. Raises UserError: the system has no such option, nothing changes, or a size
    shrinks.
    """
    types, both = flags.option_types(page.Config), {**vars(settings), **vars(options)}
    for name in changes:
        if name not in both:
            raise UserError(f"{flags.flag(name)}: {system} has no such option")
    if sizes := changes.get("hidden"):  # with the activation that the network has
        name, _, layers = str(both.get("network", "")).partition("(")
        words = [word for word in layers.rstrip(")").replace(" ", "").split(",") if word and not word.isdigit()]
        changes = {**changes, "network": f"{name}({','.join([*map(str, sizes), *words])})", "hidden": tuple(sizes)}
    if not any(both[name] != value for name, value in changes.items()):
        raise UserError("surgery: nothing changes: give another --core-size, --hidden, --network or --env")
    if "core_size" in changes:
        given, size = f"--core-size: {changes['core_size']} given", both.get("core_size", 0)
        if both.get("core") == "none":
            raise UserError(f"{given}, but RUN has no core: leave it out")
        if changes["core_size"] < size:
            raise UserError(f"{given}, but RUN has {size}, and networks only grow")
    own = {k: flags.check_value(flags.flag(k), v, types[k]) for k, v in changes.items() if k in types}
    others = {k: v for k, v in changes.items() if k not in types}
    return replace(settings, **own), replace(options, **others)


def check_games(old: Envs, new: Envs, league: bool) -> None:
    """Raises UserError: the new game is of another kind."""
    was, is_ = old.spec, new.spec
    flaws = {"observations": _seen_flaw(was, is_), "actions": _acted_flaw(was, is_)}
    for what, flaw in flaws.items():
        if flaw:
            raise UserError(f"--env: {new.title} given, whose {what} are of another kind than {old.title}'s: {flaw}")
    if (was.seats > 1) != (is_.seats > 1):
        raise UserError(f"--env: {new.title} given, which has {is_.seats} seats, but {old.title} has {was.seats}")
    teams = [blocks_of_teams(envs.spec.sides, envs.agents) for envs in (old, new)]
    if league and (teams[0] != teams[1] or was.bots != is_.bots):
        same = "teams" if teams[0] != teams[1] else "bots"
        raise UserError(f"--env: {new.title} given, but the matches of RUN's league were played with other {same}")


def _seen_flaw(was: EnvSpec, is_: EnvSpec) -> str:
    def kind(spec: EnvSpec, path: str, field: Field) -> tuple[object, ...]:
        return field.dtype, len(field.shape), type(spec.classes.get(path))

    before, after = ({path: kind(spec, path, x) for path, x in tree.leaves(spec.obs)} for spec in (was, is_))
    same = isinstance(was.obs, Field) == isinstance(is_.obs, Field) and _alike(before, after)
    return "" if same else f"{describe_fields(is_.obs)} instead of {describe_fields(was.obs)}"


def _acted_flaw(was: EnvSpec, is_: EnvSpec) -> str:
    before, after = ({path: type(x) for path, x in tree.leaves(spec.action)} for spec in (was, is_))
    same = type(was.action) is type(is_.action) and _alike(before, after)
    if same and isinstance(was.action, Conditional):
        same = was.action.first == cast("Conditional", is_.action).first
    return "" if same else f"{describe_actions(is_.action)} instead of {describe_actions(was.action)}"


def _alike(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Whether some leaves are in both, each of one kind."""
    both = before.keys() & after.keys()
    return bool(both) and all(before[path] == after[path] for path in both)


REPORT = "surgery.json"
LINES = ("metrics", "episodes", "evaluations", "decisions", "lineage", "ratings")  # of the old run, which goes on
SEED = 15_485_863  # of new weights: no run begins with these


@dataclass(frozen=True)
class _Side:
    """A run before or after."""

    settings: Settings
    options: RunOptions
    system: systems.System
    policy: ActorCritic
    rest: float  # what the optimiser's mean square begins with

    @property
    def game(self) -> tuple[object, ...]:
        """All that says which game it is."""
        envs = self.system.envs
        return envs.name, envs.options, envs.spec


def grow_run(directory: Path, out: Path, changes: Mapping[str, Any], settle: int = 0, trust: bool = False) -> Row:
    """Write `out`, a run that `polyplay resume` goes on with: the one in `directory` with `changes` of its options. The
    learning rate is 0 until so many more agent steps were learnt from. Gives the report that is in it. Raises
    UserError: nothing was written.
    """
    page, settings, options, config = load_run(directory, trust)
    if is_locked(directory):
        raise UserError(f"RUN: {directory} is being written: end that run first")
    if out.exists():
        raise UserError(f"--out: {out} is there already: name another directory")
    found, counters = find_checkpoint(directory, lambda text: print(f"polyplay: {text}"))
    if found is None or not counters["updates"]:
        raise UserError(f"RUN: {directory} has learnt nothing yet: begin a new one instead")
    after = change_options(page, settings, options, config["system"], changes)
    old, new = _side(page, settings, options, config["system"]), _side(page, *after, config["system"])
    check_games(old.system.envs, new.system.envs, has_league(directory))
    grown = _GrownRun(directory, found, old, new, changes)
    report = grown.report(settle)
    try:
        grown.write(out, config, counters, report)
    except OSError as e:
        raise UserError(f"--out: {out} could not be written: {e.strerror or e}; name another directory") from None
    return report


def _side(page: Any, settings: Settings, options: RunOptions, name: str) -> _Side:
    """Raises UserError: the system has no policy and value alone."""
    from polyplay.nets.actor_critic import ActorCritic
    from polyplay.weights.optimizers import FLAVOURS

    crew: Crew = crew_of(replace(options, device="cpu", hosts=None, place=None, ship=None))
    wired = wire_system(page, settings, crew)
    policy = wired.policy()
    replays = any(role.held_replay is not None or role.drawn_replay is not None for role in crew.roles)
    if replays or not isinstance(policy, ActorCritic):
        why = "its replay has states of the old size" if replays else "its network is of another kind"
        raise UserError(f"RUN: a run of {name}, which cannot grow: {why}; ppo, impala, league and their like can")
    optimizers = {role.spec.update.optim.name for role in crew.roles if role.spec is not None}
    rest = max((FLAVOURS[name].g0 for name in optimizers if name in FLAVOURS), default=0.0)
    return _Side(replace(settings, **wired.resolved), options, wired, policy, rest)


class _GrownRun:
    """What is written, computed from a checkpoint."""

    def __init__(self, directory: Path, found: Path, old: _Side, new: _Side, changes: Mapping[str, Any]):
        from polyplay.nets.surgery import NetworkGrowth

        self.directory, self.found, self.old, self.new, self.changes = directory, found, old, new, changes
        self.growth: NetworkGrowth = NetworkGrowth(old.policy, new.policy)
        if not self.growth.changed and old.game == new.game:
            what = "neither a size of the network nor the game; `polyplay resume` alone changes --lanes"
            raise UserError(f"surgery: nothing changes: {what}")
        self.saved = checkpoint.OpenCheckpoint(found)
        self.agents = checkpoint.agents_of(found)

    def policy(self, arrays: Mapping[str, np.ndarray], agent: int) -> dict[str, np.ndarray]:
        """An agent's weights, or those of a past agent."""
        from polyplay.nets.factory import build_network

        fresh = build_network(self.new.system.policy, self.new.options.seed + SEED * (1 + agent))
        return self.growth.grow(arrays, {k: v.numpy() for k, v in fresh.state_dict().items()})

    def report(self, settle: int) -> Row:
        """What is done."""
        sizes = [sum(p.numel() for p in side.policy.parameters()) for side in (self.old, self.new)]
        learnt = sum(float(self.saved.json(f"agents/{a}/learner")["learnt"]) for a in self.agents)
        changed = {name: {"was": shapes[0], "is": shapes[1]} for name, shapes in self.growth.changed.items()}
        return {
            "from": str(self.directory.absolute()),
            "checkpoint": self.found.name,
            "at": now(),
            "changes": {flag(name): value for name, value in self.changes.items()},
            "parameters_before": sizes[0],
            "parameters_after": sizes[1],
            "agents": len(self.agents),
            "past_agents": len(self_files(self.directory)),
            "freeze_until": learnt + settle if settle else 0.0,
            "tensors": changed,
            "taken_away": self.growth.missing,
            "not_carried": self._not_carried(),
        }

    def _not_carried(self) -> list[str]:
        found = ["games under way, recurrent states and rollouts in flight: all lanes begin new episodes"]
        found += ["experience of optimisers: their buffers fill anew"] * any(self.found.glob("learners/*/experience*"))
        others = len(checkpoint.everything(self.directory)) - 1
        return found + ([f"{others} older checkpoints"] if others else [])

    # ------------------------------------------------------------------------------------------------ written

    def write(self, out: Path, config: Row, counters: Row, report: Row) -> None:
        """All of it or nothing. Raises OSError."""
        made = out.with_name(f".{out.name}.surgery-{os.getpid()}")
        try:
            made.mkdir(parents=True)
            self._write_lines(made)
            self._write_checkpoint(made, counters, report["freeze_until"])
            for path in self_files(self.directory):
                agent = int(path.stem.partition("-")[0])
                to = made / FOLDER / path.name
                to.parent.mkdir(exist_ok=True)
                write_self(to, self.policy(read_self(path), agent))
            write_json(made / pool.FILE, pool.spec_to_json(self.new.system.envs.spec))
            write_json(made / REPORT, report)
            self._write_config(made, out, config, report)
            os.rename(made, out)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _write_lines(self, made: Path) -> None:
        for path in sorted(self.directory.glob("*.jsonl")):
            if path.stem in (*LINES, "matches") or path.stem.partition("-")[0] == "updates":
                shutil.copy(path, made / path.name)
        if (self.directory / SUMMARY).exists() and (made / LOG).exists():
            shutil.copy(self.directory / SUMMARY, made / SUMMARY)
        if (self.directory / REFERENCES).exists():
            shutil.copy(self.directory / REFERENCES, made / REFERENCES)

    def _write_checkpoint(self, made: Path, counters: Row, freeze_until: float) -> None:
        version = checkpoint.update_of(self.found)
        part = checkpoint.CheckpointPart(made, version)
        for agent in self.agents:
            name = f"agents/{agent}"
            part.arrays(f"{name}/policy", self.policy(self.saved.arrays(f"{name}/policy"), agent))
            statistics = self.saved.arrays(f"{name}/optimizer")
            part.arrays(f"{name}/optimizer", {k: self._grown(k, v) for k, v in statistics.items()})
            learner = self.saved.json(f"{name}/learner")
            part.json(f"{name}/learner", {**learner, **({"freeze_until": freeze_until} if freeze_until else {})})
        per_step = self.new.system.envs.spec.frames_per_step
        checkpoint.complete(made, version, {**counters, "frames": counters["steps"] * per_step})

    def _grown(self, name: str, statistics: np.ndarray) -> np.ndarray:
        rest = self.new.rest if name == "square" else 0.0
        return self.growth.grow_statistics(statistics, rest) if statistics.ndim else statistics

    def _write_config(self, made: Path, out: Path, config: Row, report: Row) -> None:
        new = self.new
        run_directory.write_config(
            made,
            {
                "system": config["system"],
                "config": to_json(new.settings),
                "options": to_json(replace(new.options, run=str(out))),
                "sources": {**config["sources"], **dict.fromkeys(self.changes, "surgery")},
                "environment": new.system.envs.spec.describe,
            },
        )
        contents = run_directory.read_config(made)
        about = {k: report[k] for k in ("from", "checkpoint", "at", "changes")}
        contents |= {"resumed": config["resumed"], "surgery": [*config.get("surgery", []), about]}
        write_json(made / "config.json", contents)
