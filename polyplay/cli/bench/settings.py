"""How `polyplay bench` runs each system: its settings for this number of cores, and the sizes of its wiring.

A page's preset `quick` is meant for a small machine; on top of it go the settings below, which were the fastest of
those tried on 2 cores (bench/results/speed.md, originals.md) and grow with the cores. A page without an entry is run
as `quick` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyplay import systems
from polyplay.common.files import Row
from polyplay.common.tree import Field, Spec
from polyplay.envs.pool import Envs
from polyplay.runs import options as config
from polyplay.runs.load import crew_of
from polyplay.runs.memory_estimate import kind_of
from polyplay.systems import _presets
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role

if TYPE_CHECKING:
    from polyplay.learning.spec import LearnerSpec

SETTINGS: dict[str, Callable[[int], dict[str, int]]] = {
    "a2c": lambda cores: {"lanes": 16 * cores, "replicas": cores},
    "accel": lambda cores: {"lanes": 32 * cores, "replicas": cores},
    "appo": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "a3c": lambda cores: {"workers": cores},
    "ga3c": lambda cores: {"agents": min(8 * cores, 128)},
    "impala": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "ppo": lambda cores: {"lanes": 8 * cores, "replicas": cores},
}
MEASURED = sorted(SETTINGS)  # systems that learn from what was just done
LITTLE = {"device": "cpu", "trace": False, "tensorboard": False, "checkpoint_every": 1e9, "steps": 1_000_000_000}


@dataclass(frozen=True)
class WiredSystem:
    """A system as it is going to be run, and the sizes of its wiring. `keywords` are plain values."""

    system: str
    keywords: Row
    changed: Row  # the settings that are not the preset's
    values: Row  # all settings
    kind: str  # of its pool, see memory_estimate.kind_of
    lanes: int  # of a pool that act at once (1 where each goes at its own pace)
    T: int  # rows of a trajectory that is learnt from,
    B: int  # and how many at once
    turn: int  # updates that follow one another without a step: PPO's, where the same worker acts and learns
    reuse: bool  # learning takes from acting what that computed
    workers: int  # that count their time
    envs: Envs
    system_of: systems.System
    spec: LearnerSpec

    @property
    def epochs(self) -> int:
        return self.spec.passes.epochs if self.spec.passes else 1


def keywords(system: str, env: str, network: str, precision: str, cores: int) -> Row:
    """What `polyplay.train(system, …)` gets. Raises UserError: no such environment."""
    page = systems.load(system)
    preset = {"preset": "quick"} if "quick" in page.PRESETS else {}
    there = "inputs" in page.Config.__dataclass_fields__
    raw = {"inputs": "raw"} if there and not pictures(Envs(env, 1).spec.obs) else {}  # a preset may be for pictures
    own = SETTINGS[system](cores) if system in SETTINGS else {}
    return {"env": env, **preset, **own, **raw, "network": network, "precision": precision, **LITTLE}


def pictures(obs: Spec) -> bool:
    """Whether observations are one image each, large enough for the Atari networks."""
    return isinstance(obs, Field) and len(obs.shape) == 3 and obs.dtype == "uint8" and min(obs.shape[1:]) >= 64


def wire(system: str, given: Row) -> WiredSystem:
    """Wire a system with these keywords (`keywords`, perhaps changed) and read its sizes. Raises UserError."""
    page = systems.load(system)
    settings, options, _ = config.resolve(page, **given)
    crew = crew_of(options)
    wired = page.build(settings, crew)
    settings = replace(settings, **wired.resolved)
    values = config.to_json(settings)
    preset = config.to_json(_presets.settings(page, options.preset))
    named = {k: v for k, v in given.items() if k in preset and k != "env"} | dict(wired.resolved)
    changed = {k: v for k, v in named.items() if preset[k] != v}
    acts, learner = next(r for r in crew.roles if r.envs or r.agents), _learner(crew)
    envs = acts.agents.envs if acts.agents else acts.envs
    assert envs is not None
    assert learner.spec is not None
    lanes = 1 if acts.agents else envs.lanes // envs.groups
    T, B = learner.source.shape if learner.source else (learner.T, learner.envs.lanes if learner.envs else 0)
    timed = sum(r.n for r in crew.roles if r.envs or r.agents or r.source)
    sizes = (lanes, T, B, updates_per_turn(crew), reuses(crew), timed)
    return WiredSystem(system, dict(given), changed, values, kind_of(envs), *sizes, envs, wired, learner.spec)


def updates_per_turn(crew: Crew) -> int:
    """Updates that follow one another while nobody acts; 1 where others act, or where they aren't always as many."""
    role = _learner(crew)
    passes = role.spec.passes if role.spec else None
    return passes.updates if passes and role.envs and not role.apart and not passes.target_kl else 1


def reuses(crew: Crew) -> bool:
    """Whether those who act learn too, in the same rows with the same weights, and may keep what they computed."""
    role = _learner(crew)
    return crew.reuse and role.envs is not None and bool(role.spec and role.spec.acted)


def _learner(crew: Crew) -> Role:
    """Of several roles that learn the first."""
    return next(r for r in crew.roles if r.spec is not None)
