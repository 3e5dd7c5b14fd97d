"""What may be varied in a population, tried by building a member for each: network, optimizer and replay stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polyplay.buffers.replay.files import layout
from polyplay.common.errors import UserError
from polyplay.population.priors import Prior
from polyplay.runs import flags
from polyplay.runs.load import compute_threads
from polyplay.runs.options import LIMITS, RunOptions
from polyplay.systems._population import wire_member
from polyplay.workers.crew import Crew

FIXED = {"env": "members must play the same game", "budget": "--steps says how long every member trains"}
FIXED |= dict.fromkeys(LIMITS, "it says how long every member trains")
FIXED |= dict.fromkeys(("hidden", "activation"), "the network must stay the same: members copy its weights")
FIXED |= dict.fromkeys(("env_kwargs", "wrapper"), FIXED["env"])
FIXED["seed"] = "every member has its own, which follows from --seed"


def check_varied(words: Iterable[str]) -> None:
    """Raises UserError: an option of runs, which all members have alike."""
    for word in words:
        name = word.partition("=")[0].replace("-", "_")
        if name in flags.option_types(RunOptions):
            why = FIXED.get(name, "members differ in options of their system alone")
            raise UserError(f"--vary: {name} given, which can't be varied, since {why}: leave it out")


def anew_of(settings: Any, crew: Crew, priors: dict[str, Prior], types: flags.OptionTypes) -> frozenset[str]:
    """The varied options with which lanes cannot go on: another number of them, or rollouts of another length. Raises
    UserError: a value that its option does not take, or that changes what a member must keep.
    """
    anew = set[str]()
    for name, prior in priors.items():
        if name in FIXED:
            raise UserError(f"--vary: {name} given, but {FIXED[name]}: leave it out")
        values = prior.choices or (prior.low, prior.high)
        checked = [flags.check_value(f"--vary {name}", value, types[name]) for value in values]
        first, *others = (_built(settings, crew, {name: value}) for value in checked)
        for value, other in zip(values[1:], others, strict=True):
            _refuse(f"--vary: {name}={value} given, but it", first, other)
            if first["lanes"] != other["lanes"]:
                anew.add(name)
    return frozenset(anew)


def _built(settings: Any, crew: Crew, values: dict[str, Any]) -> dict[str, Any]:
    """What a member with these values has."""
    other, wired = wire_member(settings, crew, values)
    if wired.player is not None:
        raise UserError(f"--over: {settings.over} given, whose games with itself give no score: choose another system")
    spec = next(role.spec for role in other.roles if role.learner and role.spec)
    with compute_threads(1):
        network = {name: tuple(tensor.shape) for name, tensor in wired.policy().state_dict().items()}
    replays = [layout(role.held_replay) for role in other.roles if role.held_replay]
    lanes = [(r.name, r.n, r.envs and (r.envs.lanes, r.envs.groups), r.T, _rollout(r.out)) for r in other.roles]
    optimizer = (spec.update.optim.name, spec.update.optim.statistics)
    return {"network": network, "optimizer": optimizer, "replay": replays, "lanes": lanes}


def _rollout(out: object) -> tuple[Any, ...]:
    return tuple(getattr(out, name, None) for name in ("T", "lanes", "slots"))


def _refuse(what: str, own: dict[str, Any], other: dict[str, Any]) -> None:
    """Raises UserError: the members could not copy each other."""
    mine, theirs = own["network"], other["network"]
    for tensor in [*mine, *theirs]:
        if mine.get(tensor) != theirs.get(tensor):
            shapes = f"{mine.get(tensor, 'absent')} becomes {theirs.get(tensor, 'absent')}"
            raise UserError(f"{what} changes the network, whose weights members copy: {tensor} {shapes}; leave it out")
    if own["optimizer"] != other["optimizer"]:
        names = f"{own['optimizer'][0]} becomes {other['optimizer'][0]}"
        raise UserError(f"{what} changes the optimizer, whose state members copy: {names}; leave it out")
    if own["replay"] != other["replay"]:
        raise UserError(f"{what} changes the replay, which a member keeps: leave it out")
