"""What FTW's page takes for granted: rewards of events, ranges of hyperparameters, and the network.

Numbers: Jaderberg et al. 2019, supplement, as ../systems fact sheets have them.
"""

from __future__ import annotations

from typing import Any

from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.learning.losses.auxiliary import KL
from polyplay.nets import NetworkFactory
from polyplay.nets.event_rewards import PREFIX
from polyplay.population.copies import CopyRule
from polyplay.population.priors import Prior, parse_prior

VARY = (
    "learning_rate=log:1e-5:5e-3",
    "entropy_cost=log:5e-4:1e-2",
    "kl_posterior_cost=log:1e-3:1.0",
    "kl_prior_cost=log:1e-4:0.1",
    "gradient_scale=log:0.1:1.0",
    "period=uniform:5:19",
    "reward=log:0.1:1.0",
)
POINTS = (  # in kind of those of Quake III
    "captured=1.0",
    "teammate_captured=0.8",
    "opponent_captured=-1.0",
    "picked_up=0.2",
    "returned=0.2",
    "tagged_carrier=0.4",
    "tagged_other=0.2",
    "was_tagged_carrying=-0.2",
    "was_tagged=-0.1",
)
BAD = ("opponent_", "was_")  # events whose weights are drawn below 0, where --points has none of them
CHANCE = 0.05  # that a copied value is perturbed


def network(c: Any, envs: Envs) -> NetworkFactory:
    """The network: heads of a hidden layer behind the core."""
    given = {"core": c.core, "core_size": c.core_size, "width": c.core_size, "previous": c.core != "none"}
    return NetworkFactory(c.network, envs.spec, {**given, "rewards": envs.spec.events if c.rewards == "events" else ()})


def terms(c: Any) -> dict[str, float]:
    """What the loss has beside V-trace's, with its cost."""
    return {name: getattr(c, f"{name}_cost") for name in KL} if c.core == "temporal" else {}


def first_values(c: Any, envs: Envs) -> dict[str, float]:
    """Hyperparameters as configured."""
    own = {name: float(getattr(c, name)) for name in ("learning_rate", "entropy_cost")}
    if c.core == "temporal":
        own |= {k: float(getattr(c, k)) for k in ("kl_posterior_cost", "kl_prior_cost", "gradient_scale", "period")}
    return own | {PREFIX + event: points for event, points in _points(c, envs).items() if c.rewards == "events"}


def _points(c: Any, envs: Envs) -> dict[str, float]:
    """The weight of every event. Raises UserError: the game lacks one, or has none."""
    known, found = envs.spec.events, {}
    if not known:
        raise UserError(f"--env: {envs.title} given, which counts no events: take one that does, or --rewards game")
    for text in c.points:
        event, equals, weight = text.partition("=")
        if event not in known or not equals:
            raise UserError(f"--points: {text} given, allowed: EVENT=WEIGHT, with an event of {', '.join(known)}")
        found[event] = float(_number(weight))
    return {event: found.get(event, 0.0) for event in known}


def copy_rule(c: Any, envs: Envs) -> CopyRule:
    """How agents copy each other. Raises UserError."""
    values, priors = first_values(c, envs), dict[str, Prior]()
    for prior in (parse_prior(text, _number) for text in c.vary):
        for name, value in values.items():
            if name == prior.name:
                priors[name] = prior
            elif prior.name == "reward" and name.startswith(PREFIX):
                bad = value < 0 if value else name.removeprefix(PREFIX).startswith(BAD)
                ends = (-prior.high, -prior.low) if bad else (prior.low, prior.high)
                priors[name] = Prior(name, prior.kind, *ends)
    drawn = ("period",) if "period" in priors else ()
    return CopyRule(c.copies if c.evolve and c.agents > 1 else 0, values, priors=priors, chance=CHANCE, drawn=drawn)


def _number(word: str) -> float:
    """Raises UserError."""
    try:
        return int(word) if word.isdigit() else float(word)
    except ValueError:
        raise UserError(f"'{word}' given, allowed: a number") from None
