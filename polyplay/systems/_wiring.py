"""Common parts of systems: classes of options, and functions that make environments, networks and replay buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import RolloutQueue, slots_per_batch
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.envs import Envs, rules, spaces
from polyplay.envs.atari import atari_preset, current_id, id_options, is_game
from polyplay.envs.make import whole_matches
from polyplay.envs.pool import WRAPPERS, need, task_words
from polyplay.games.boards import Game
from polyplay.learning import LearnerSpec
from polyplay.learning.critic_losses import DISCRETE
from polyplay.learning.unreal import task_costs
from polyplay.nets import NetworkFactory
from polyplay.search import SearchOptions
from polyplay.search.self_play import game_rows
from polyplay.systems import read_settings
from polyplay.workers import sizing
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import fewest_actors


@dataclass(frozen=True)
class AgentOptions:
    """Options that most systems have, with defaults that a system may change."""

    env: str = "ALE/Pong-v5"
    # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal["raw", "center", "normalize"] = "raw"
    # how observations are scaled; center: subtract the mean image, normalize: scale numbers


@dataclass(frozen=True)
class PolicyOptions(AgentOptions):
    """Options of systems whose networks have a policy and a value."""

    core: Literal["none", "lstm", "gru", "temporal"] = "none"  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal["scale", "clip"] = "scale"  # how real actions meet their bounds: scale −1 … 1 to them, or clip


@dataclass(frozen=True)
class ValueOptions(PolicyOptions):
    """Options of systems whose losses allow normalized values (PopArt), or one value for each task."""

    value: Literal["plain", "popart", "heads"] = "plain"
    # outputs of the value head; heads: one per task of --env, popart: one per task, normalized by running statistics


def atari_options(c: Any, life_loss: str = "auto", pipeline: str = "", **made: Any) -> dict[str, Any]:
    """Return the options of the Atari preset `c.atari`, combined with those that the environment's id implies. Return
    {} if the environment is not an Atari game.

    `c.atari`: NAME, NAME:PIPELINE or auto:PIPELINE, where auto is the system's default preset.
    `pipeline`: the only pipeline (way to step games) that the system allows, or "" for any.
    `made`: keyword arguments for Envs.
    Raises UserError if the preset is unknown, or does not fit the pipeline or the environment.
    """
    name, colon, how = c.atari.partition(":")
    presets = read_settings("pages.toml").get(type(c).__module__.rpartition(".")[2], {}).get("presets", {})
    usual = {type(c).atari, *(preset.get("atari") for preset in presets.values())}
    if not plays_atari(c, **made):
        if c.atari not in usual:
            raise UserError(f"--atari: {c.atari} given, but --env {c.env} is not an Atari game (ALE/…)")
        return {}
    options = atari_preset(type(c).atari if name == "auto" else name)
    own = shared_id_options(c.env)
    others = {} if name in {"auto", *usual} else {k: options[k] for k, v in own.items() if options.get(k, v) != v}
    if flaw := ", ".join(f"{k}={own[k]} and not {value}" for k, value in others.items()):
        names = ",".join(current_id(name) for name, _ in task_words(c.env)) or current_id(c.env)
        cure = f"write --env {names}, which leaves that to --atari, or leave --atari out"
        raise UserError(f"--atari: {c.atari} given, but --env {c.env} means {flaw}; {cure}")
    options |= own
    if colon and how not in ("native", "plain"):
        raise UserError(f"--atari: {c.atari} given; after the colon allowed: native, plain")
    if colon and how != (pipeline or how):
        raise UserError(f"--atari: {c.atari} given, but here each environment is a separate process: use :{pipeline}")
    how = how or pipeline
    options |= {"full_actions": True} if task_words(c.env) else {}  # so that an action is the same button in every game
    cut = {} if life_loss == "auto" else {"life_loss": life_loss}
    return {**options, **cut, **({"pipeline": how} if how else {})}


def shared_id_options(env: str) -> dict[str, object]:
    """Return the options that the ids of all tasks in `env` imply. Raises UserError if the ids imply different ones."""
    names = [name for name, _ in task_words(env)] or [env]
    found = [id_options(name) for name in names]
    if (odd := next((i for i, own in enumerate(found) if own != found[0]), None)) is not None:
        cure = f"write {current_id(names[0])} and {current_id(names[odd])}, which leave that to --atari"
        raise UserError(f"--env: {names[0]} given beside {names[odd]}, but they stand for different settings; {cure}")
    return found[0]


def plays_atari(c: Any, kwargs: Mapping[str, Any] | None = None, wrappers: tuple[str, ...] = (), **_: Any) -> bool:
    """Tell whether the environment `c.env` is an Atari game. kwargs, wrappers: as for Envs."""
    return is_game(c.env, {**(kwargs or {}), WRAPPERS: wrappers})


def worker_envs(
    c: Any, crew: Crew, *, lanes: int = 0, workers: int = 1, inline_single: bool = False, **options: Any
) -> Envs:
    """Return the parallel environments (lanes) of one worker. Atari games get the options of the preset `c.atari`.

    `lanes`: number of environments. 0 means c.lanes.
    `workers`: number of threads or processes that step the environments.
    `inline_single`: let the worker itself step a single Atari game, because a separate process would be slower.
    `options`: options of atari_options and of Envs.
    """
    atari = {name: options.pop(name) for name in ("life_loss", "pipeline") if name in options}
    lanes = lanes or c.lanes
    alone = inline_single and lanes == 1 and plays_atari(c, **crew.env_defaults)
    given = {**crew.env_defaults, **({"inline": True} if alone else {}), **options}
    return Envs(c.env, lanes, options=atari_options(c, **atari, **crew.env_defaults), workers=workers, **given)


def actor_envs(c: Any, crew: Crew) -> Envs:
    """Return the environments of one actor (acting worker), stepped by more threads if actors compute on a GPU."""
    workers = crew.placement.env_threads(c.actors or fewest_actors(c.learners))
    return worker_envs(c, crew, workers=workers, helps=True, alone=workers == 1)


def enough_actors(c: Any, crew: Crew, envs: Envs, spec: LearnerSpec) -> int:
    """Return the number of actors that keep the learners busy, which is measured. If --lag limits the actors, or if
    nothing can be measured, return the least possible number.
    """
    least = fewest_actors(c.learners)
    rollouts_per_batch(c, least)  # reports errors before anything is measured
    return least if c.lag >= 0 else sizing.choose_actors(crew, envs, spec, c.unroll, c.batch, c.learners)


def rollouts_per_batch(c: Any, actors: int) -> int:
    """Return how many rollouts one learner takes into a batch. Each rollout has c.lanes trajectories. Raises UserError
    if --slots (number of rollouts in memory) or --lag does not allow this number.
    """
    return slots_per_batch(c.batch, c.lanes, actors=actors, slots=c.slots, learners=c.learners, lag=c.lag)


def agent_envs(c: Any, crew: Crew, room: int) -> Envs:
    """Return the environments of GA3C's agents, which are separate processes. A game of several players has one lane
    (parallel environment) for each player. room: largest number of agents in the run.
    """
    most = min(c.predict_batch, room)
    envs = worker_envs(c, crew, pipeline="plain", lanes=room, workers=room, active=c.agents, at_once=most)
    return whole_matches(envs)


def divide_among(c: Any, among: str, *wholes: str) -> Any:
    """Return the configuration of one worker, with an equal share of each option in `wholes`, such as lanes and batch.
    `among`: option with the number of workers, such as replicas. Raises UserError if a value is too small, or not a
    multiple of the number of workers.
    """
    n, shares = getattr(c, among), {name: getattr(c, name) for name in wholes}
    for name, whole in shares.items():
        if n < 1 or whole % n or whole // n < (name != "learning_starts"):
            words = f"{name} {whole} does not divide among --{among} {n}: make it a multiple of {n}"
            raise UserError(f"--{words}".replace("_", "-"))
    return replace(c, **{name: whole // n for name, whole in shares.items()})


def replica_envs(
    c: Any,
    crew: Crew,
    minibatches: int = 0,
    batch: int = 0,
    most: int = 0,
    workers: int = 0,
    life_loss: str = "auto",
    several: bool = False,
) -> tuple[Envs, int]:
    """Return the environments of each replica (copy of the training loop), and the number of replicas.

    The c.lanes parallel environments (lanes) are divided among c.replicas replicas. If c.replicas is 0, the number of
    replicas is the largest one up to `most` that divides lanes and batch. On a CPU without image observations, the
    number is then 1: small networks update faster than replicas average gradients. All groups (lanes that step
    together) have equally many lanes, and whole matches. Raises UserError if lanes cannot be divided, or if a minibatch
    could be empty.

    `minibatches`: number of minibatches per rollout of a replica. With a recurrent core, it must divide the lanes.
    `batch`: number of transitions to divide among replicas, or 0.
    `most`: largest number of replicas. 0 means one per core, or one per GPU.
    `workers`: number of threads or processes that step a replica's environments. 0 means the replica's share of cores.
    `several`: allow several replicas on a CPU without images, too, because replicas are asynchronous.
    """
    whole = worker_envs(c, crew, life_loss=life_loss)
    alone = crew.placement.on_cpu and not (several or whole.spec.image_leaves)
    most, parts = 1 if alone else most or crew.placement.parts, minibatches if minibatches and c.core != "none" else 1
    n = _vectors(c, whole) if whole.spec.width else _replicas(c, whole, parts, batch, most)
    inline = bool(whole.inline) if workers else whole.inline  # not automatic: a given number of workers is started
    workers = workers or max(1, cores() // n)
    envs = whole.share(lanes=whole.lanes // n, groups=c.groups, workers=workers, inline=inline, helps=True)
    if minibatches and c.core == "none":
        _check_minibatches(c, envs)
    return envs, n


def _replicas(c: Any, whole: Envs, minibatches: int, batch: int, most: int) -> int:
    least = c.groups * math.lcm(minibatches, whole.spec.seats)
    fits = (n for n in range(1, most + 1) if not (c.lanes % (n * least) or batch % n))
    n = c.replicas or max(fits, default=1)
    if c.lanes % (n * least):
        given = f"--replicas {n} x --groups {c.groups}{f' x --minibatches {minibatches}' if minibatches > 1 else ''}"
        given += f" in matches of {whole.spec.seats} seats" if whole.spec.seats > 1 else ""
        raise UserError(f"--lanes {c.lanes} does not divide among {given}; make it a multiple of {n * least}")
    return n


def _vectors(c: Any, whole: Envs) -> int:
    """Return the number of replicas for a vector environment. Each replica has one vector environment per group of
    lanes. Raises UserError if --lanes or --replicas do not allow this.
    """
    n, rest = divmod(c.lanes, c.groups * whole.spec.width)
    if rest or c.replicas not in (0, n):
        asked = f"--lanes {c.lanes}, --groups {c.groups}, --replicas {c.replicas} given"
        flaw = f"{whole.title} makes {whole.spec.width} environments for each group of a replica"
        cure = f"allowed: --replicas {n}" if n and not rest else f"make --lanes a multiple of {whole.spec.width}"
        raise UserError(f"{asked}, but {flaw}; {cure}, or give the function a parameter num_envs")
    return n


def _check_minibatches(c: Any, envs: Envs) -> None:
    # fewest transitions: every second row is the first of a game, and one player of each match is left
    sure = envs.lanes // envs.spec.seats * (c.unroll // 2)
    if c.minibatches > sure:
        given = f"--minibatches {c.minibatches} of a replica's rollout of --unroll {c.unroll}"
        raise UserError(f"{given}, which has {sure} transitions at least: lower it, or raise --lanes or --unroll")


def actor_critic(c: Any, envs: Envs, *, init: str, auxiliary: str = "none", **options: Any) -> NetworkFactory:
    """Return the factory of a network with a policy and a value, by the options `c`.

    `auxiliary`: UNREAL's tasks that need heads, as text for `task_costs`.
    """
    returns = c.gamma if c.reward == "scale" else None
    given = {"core": c.core, "init": init, "inputs": c.inputs, "returns": returns, "actions": c.actions}
    given |= {"value": c.value} if isinstance(c, ValueOptions) else {}
    tasks = {} if auxiliary == "none" else {"auxiliary": task_costs(auxiliary, c.unroll)}
    return NetworkFactory(c.network, envs.spec, {**given, **tasks, **options})


def dpg_envs(c: Any, crew: Crew) -> Envs:
    """Return the environments of one actor of Ape-X DPG. Raises UserError if actions are not bounded real numbers."""
    envs = Envs(c.env, c.lanes, workers=1, **crew.env_defaults)
    check_actions(c, envs, "bounded real", rules.deterministic_flaw(envs.spec.action))
    return envs


def critics_envs(c: Any, crew: Crew, discrete: bool = False) -> Envs:
    """Return the environments of SAC and TD3. Raises UserError if actions are not bounded real numbers.

    `discrete`: whether discrete actions, and actions with discrete parts, are allowed, too.
    """
    envs = Envs(c.env, c.lanes, workers=1, **crew.env_defaults)
    flaw = rules.critics_flaw(envs.spec.action) if discrete else rules.deterministic_flaw(envs.spec.action)
    most = f" (at most {rules.MOST_COMBINATIONS} combinations of parts)"
    check_actions(c, envs, "bounded real" + " or discrete" * discrete + most * ("combinations" in flaw), flaw)
    return envs


def critics_network(c: Any, envs: Envs, **options: Any) -> NetworkFactory:
    """Return the factory of a network with an actor and critics. Raises UserError if the options allow no update."""
    need(c.tau > 0.0, "--tau: 0 given, allowed: above 0, at most 1")
    need(c.learning_starts <= c.capacity, f"--learning-starts: {c.learning_starts} given, allowed: up to --capacity")
    need(c.batch <= c.capacity, f"--batch: {c.batch} given, allowed: up to the {c.capacity} transitions of --capacity")
    return NetworkFactory(c.network, envs.spec, {"exact": envs.lanes > 1, **options}, "critics")


def check_critics(c: Any) -> None:
    """Raise UserError if SAC's options --subset, --dropout or --beta1 are out of range."""
    need(c.subset <= c.critics, f"--subset: {c.subset} given, allowed: at most the {c.critics} of --critics")
    for option, x in (("--dropout", c.dropout), ("--beta1", c.beta1)):
        need(x < 1.0, f"{option}: {x:g} given, allowed: from 0, below 1")


def entropy_target(c: Any, envs: Envs) -> float:
    """Return the target entropy of SAC's policy in nats: c.entropy if set, otherwise a sum over the parts of an action.

    Each number of a Box adds −1 (Haarnoja et al. 2018b). Each Discrete(n) adds 0.89 ln n, with the factor 0.89 of
    CleanRL (Christodoulou 2019: 0.98). Raises UserError if no policy reaches this entropy: the temperature would grow
    forever.
    """
    parts = [leaf for _, leaf in tree.leaves(envs.spec.action)]
    real = sum(math.prod(x.shape) for x in parts if isinstance(x, spaces.Box))
    discrete = sum(math.log(x.n) for x in parts if isinstance(x, spaces.Discrete))
    most = real * math.log(2.0) + discrete  # entropy of uniform actions
    found = DISCRETE * discrete - real if c.entropy is None else c.entropy
    what = f"below {most:.3g}, the entropy of uniform actions of {envs.title}"
    need(c.temperature > 0.0 or found < most or not most, f"--entropy: {found:g} given, allowed: {what}")
    return found


def check_actions(c: Any, envs: Envs, needs: str, flaw: str) -> None:
    """Raise UserError if `flaw` says why the actions do not fit. needs: kind of actions that the system takes."""
    if flaw:
        name, action = type(c).__module__.rpartition(".")[2], envs.spec.action
        others = ["ppo", "impala", "a2c"]
        others += [] if rules.values_flaw(action) else ["dqn"]
        others += [] if rules.critics_flaw(action) else ["sac", "apex_sac"]
        others += [] if rules.deterministic_flaw(action) else ["td3", "apex_dpg"]
        text = f"--env: {envs.title} given, but {name} needs {needs} actions"
        raise UserError(f"{text}, this has {spaces.describe_actions(action)}; {', '.join(others)} take these")


def q_network(c: Any, envs: Envs, **options: Any) -> NetworkFactory:
    """Return the factory of a network of action values, by the options `c`. Raises UserError if actions of this kind
    cannot have values.
    """
    check_actions(c, envs, "discrete", rules.values_flaw(envs.spec.action))
    given = {"inputs": c.inputs, "exact": envs.lanes > 1}  # with one lane, last bits may depend on the batch
    return NetworkFactory(c.network, envs.spec, {**given, **options}, "values")


def game_queue(board: Game, players: int) -> RolloutQueue:
    """Return the queue for finished games of self-play. A slot (memory of one rollout) has room for several games."""
    rows, T = game_rows(board), 4 * (board.longest + 1)
    return RolloutQueue(rows, state={}, T=T, lanes=1, slots=4 * players, producers=players)


def position_replay(board: Game, **options: Any) -> Replay:
    """Return a replay buffer of positions with the outcomes z of their games. options: of Replay."""
    return Replay({k: v for k, v in game_rows(board).items() if k != "agent"}, gamma=0.0, **options)


def search_options(c: Any) -> SearchOptions:
    """Return the options of AlphaGo Zero's tree search. Raises UserError if an option is not allowed."""
    names = "simulations", "exploration", "c", "fast_simulations", "leaves", "fpu", "root", "gumbel_actions"
    try:
        given: dict[str, Any] = {name: getattr(c, name) for name in (*names, "noise", "noise_alpha")}
        turns = ((0, 1.0), (c.temperature_plies, 0.0))
        return SearchOptions(**given, temperature=turns, symmetries=c.symmetries == "all", reuse=c.keep_tree)
    except UserError as e:
        name, colon, why = str(e).removeprefix("search ").partition(":")
        raise UserError(f"--{name.replace('_', '-')}{colon}{why}") from None
