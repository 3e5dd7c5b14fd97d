"""Common parts of the team systems FTW, Five and league: hyperparameters, rewards of events, networks, and checks.

FTW's numbers are from Jaderberg et al. 2019, supplement, as in the only public re-implementation.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from polyplay.core.errors import UserError
from polyplay.envs.pool import OWN_REWARD, Envs
from polyplay.learning.agents import discount_of
from polyplay.learning.unreal import TERMS, task_costs
from polyplay.nets.actor_critic import PREFIX
from polyplay.nets.factory import NetworkFactory
from polyplay.population.referee import LATEST
from polyplay.population.rules import Evolution, Prior, around, parse_prior
from polyplay.workers.crew import Crew

# reward: size of each event's weight. --ranges may add points: factor of the weights in --event-rewards
RANGES = (
    "learning_rate=log:1e-5:5e-3",
    "entropy_cost=log:5e-4:1e-2",
    "kl_posterior_cost=log:1e-3:1.0",
    "kl_prior_cost=log:1e-4:0.1",
    "gradient_scale=log:0.1:1.0",
    "period=uniform:5:19",
    "pixel_control_cost=log:0.01:0.1",
    "reward_prediction_cost=log:0.1:1.0",
    "reward=log:0.1:1.0",
)
BAD = ("opponent_", "was_")  # prefixes of events with drawn weights below 0, unless --event-rewards names the event
CHANCE = 0.05  # probability that a copied value is perturbed
CORE = ("kl_posterior_cost", "kl_prior_cost", "gradient_scale", "period")  # hyperparameters of a temporal core
TASKS = "pixel", "reward"  # FTW's auxiliary tasks


def ftw_network(c: Any, envs: Envs) -> NetworkFactory:
    """Return the factory of FTW's network: a core, followed by heads with one hidden layer each."""
    costs = task_costs(c.auxiliary, c.unroll, TASKS)
    given = {"core": c.core, "core_size": c.core_size, "width": c.core_size, "previous": c.core != "none"}
    given |= {"rewards": envs.spec.events if c.rewards == "events" else ()}
    given |= {"memory": c.memory if c.core == "temporal" else 0, "auxiliary": [x for x in TASKS if x in costs]}
    given |= {"actions": c.actions}
    return NetworkFactory(c.network, envs.spec, given)


def agent_values(c: Any, envs: Envs) -> tuple[dict[str, float], dict[str, Prior], Evolution]:
    """Return (hyperparameters of the agents, ranges of those that vary, rules by which agents copy each other).

    When an agent copies another agent, each value changes with probability CHANCE. Raises UserError if an option is
    wrong.
    """
    ranges = _ranges(c)
    size, factor = ranges.pop("reward"), ranges.pop("points", None)
    values = {name: _middle(prior) for name, prior in ranges.items()}
    priors = {name: prior for name, prior in ranges.items() if prior.low < prior.high}
    for event, points in (_points(c, envs) if c.rewards == "events" else {}).items():
        name, bad = PREFIX + event, points < 0 if points else event.startswith(BAD)
        values[name] = points
        if factor is None or points:
            low, high = (x * abs(points) if factor else x for x in ((factor or size).low, (factor or size).high))
            priors[name] = Prior(name, "log", *((-high, -low) if bad else (low, high)))
    every = c.exploit_every if c.evolve and c.agents > 1 else 0
    changed = {name: replace(prior, chance=CHANCE, drawn=name == "period") for name, prior in priors.items()}
    return values, priors, Evolution(every, priors=around(values, CHANCE) | changed)


def _ranges(c: Any) -> dict[str, Prior]:
    """Return {name: range} of the hyperparameters. A fixed value is a range with equal ends. Raises UserError."""
    found = {prior.name: prior for prior in map(_prior, RANGES)}
    for text in c.ranges:
        name, equals, word = text.partition("=")
        if name not in (*found, "points") or not equals:
            known = ", ".join((*found, "points"))
            raise UserError(f"--ranges: {text} given, allowed: NAME=RANGE or NAME=VALUE, NAME one of {known}")
        fixed = ":" not in word
        found[name] = Prior(name, "uniform", _number(word), _number(word)) if fixed else _prior(text)
    if found["period"].low < 1 or found["period"].high > c.unroll:
        given = f"{found['period'].low} to {found['period'].high}"
        raise UserError(f"--ranges: period from {given} given, allowed: from 1 to the {c.unroll} steps of --unroll")
    unused: tuple[str, ...] = () if c.core == "temporal" else CORE
    unused += tuple(f"{TERMS[task][0]}_cost" for task in TASKS if task not in task_costs(c.auxiliary, c.unroll, TASKS))
    return {name: prior for name, prior in found.items() if name not in unused}


def _prior(text: str) -> Prior:
    try:
        return parse_prior(text, _number)
    except UserError as e:
        raise UserError(str(e).replace("--vary", "--ranges")) from None


def _middle(prior: Prior) -> float:
    if prior.kind == "log":
        return math.sqrt(prior.low * prior.high)
    return float(round((prior.low + prior.high) / 2) if prior.whole else (prior.low + prior.high) / 2)


def _points(c: Any, envs: Envs) -> dict[str, float]:
    """Return the reward of every event. Raises UserError if the game has no events, or lacks one of --event-rewards."""
    known, found = envs.spec.events, dict[str, float]()
    if not known:
        raise UserError(f"--env: {envs.title} given, which counts no events: use one that does, or --rewards game")
    for text in c.event_rewards:
        event, equals, weight = text.partition("=")
        if event not in known or not equals:
            allowed = f"EVENT=WEIGHT, with an event of {', '.join(known)}"
            raise UserError(f"--event-rewards: {text} given, allowed: {allowed}")
        found[event] = float(_number(weight))
    if not c.evolve and not any(found.values()):
        raise UserError(f"--rewards: events given, but all weights are 0: set those of {', '.join(known)}, or use game")
    return {event: found.get(event, 0.0) for event in known}


def _number(word: str) -> float:
    try:
        return int(word) if word.isdigit() else float(word)
    except ValueError:
        raise UserError(f"'{word}' given, allowed: a number") from None


# Parts of OpenAI Five: the network, and checks of windows. `table_envs` serves all three systems.


TEAMS = 2  # teams in an actor's matches; each plays a group of the actor's lanes


def table_envs(c: Any, crew: Crew, players: int, actors: int) -> Envs:
    """Return the environments of one actor (acting worker). Each of the `players` plays one group of lanes."""
    workers = crew.placement.env_threads(actors)
    return Envs(c.env, c.lanes, players, workers=workers, agents=players, **crew.env_defaults)


BOUND = 5.0  # bound of normalized observations


def five_network(c: Any, envs: Envs) -> NetworkFactory:
    """Return the factory of Five's network, which reads sets of units and has an LSTM. Raises UserError if the game
    does not have two teams, or if --team-spirit shares rewards that the game does not give.
    """
    spec = envs.spec
    if len(set(spec.sides)) != TEAMS:
        raise UserError(f"--env: {envs.title} given, which has {len(set(spec.sides))} teams; allowed: two")
    shares = OWN_REWARD in spec.events
    if c.team_spirit and not shares:
        spirit = f"--team-spirit {c.team_spirit:g} given"
        raise UserError(f"{spirit}, but {envs.title} does not give heroes and teams separate rewards; allowed: 0")
    size, rewards = discount_of(c.horizon, c.step_time), spec.events if shares else ()
    given: dict[str, Any] = {"core": "lstm", "core_size": c.core_size, "init": "torch", "inputs": c.inputs}
    given["actions"] = c.actions
    return NetworkFactory(c.network, spec, {**given, "bound": BOUND, "returns": size, "rewards": rewards})


def check_windows(c: Any) -> None:
    """Check the options for windows, the equal pieces of rollouts from which Five learns. Raises UserError if windows
    do not divide a rollout, if a batch is larger than the buffer, or if actors would wait for new weights forever.
    """
    if c.unroll % c.window:
        raise UserError(f"--window {c.window} given, allowed: a divisor of --unroll {c.unroll}")
    if c.batch > c.capacity:
        raise UserError(f"--batch {c.batch} given, allowed: at most the {c.capacity} windows of --capacity")
    lanes = c.lanes if c.opponents == LATEST else c.lanes // TEAMS  # a past agent's lanes are not learned from
    came = c.actors * lanes * (c.unroll // c.window)  # windows per round
    made = int(c.sample_reuse * came / c.batch)
    if c.lag >= 0 and (not c.sample_reuse or c.publish > made):
        given = f"--lag {c.lag} with --publish {c.publish} and --sample-reuse {c.sample_reuse:g}"
        raise UserError(f"{given}: a round makes {made} updates, so acting would wait for weights that never come")


def rollouts_per_batch(c: Any, envs: Envs) -> int:
    """Return the number of rollouts in one batch. Raises UserError if the options do not allow playing or learning."""
    if envs.spec.seats < 2:
        raise UserError(f"--env: {envs.title} given, but a league needs an environment with several players")
    if c.learners > c.agents:
        raise UserError(f"--learners {c.learners} given; allowed: at most one for each of --agents {c.agents}")
    own = c.lanes // c.players
    rollouts, rest = divmod(c.batch, own)
    if rest or not rollouts or (c.lag >= 0 and rollouts > 1):
        most = " and with a --lag no more" if c.lag >= 0 else ", or a multiple"
        raise UserError(f"--batch {c.batch} given; allowed: {own}, the lanes of a player in --lanes {c.lanes}{most}")
    return rollouts
