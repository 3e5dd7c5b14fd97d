"""Options by what they are about, as `--help` lists them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

DURATION, POPULATION, ALGORITHM, RUN = "duration", "population", "algorithm", "run"
GROUPS: dict[str, tuple[str, ...]] = {  # what none names belongs to the algorithm, or to the run
    DURATION: ("frames", "steps", "minutes", "until_return", "budget"),
    POPULATION: ("over", "population", "every", "vary", "exploit", "explore", "score", "at_once"),
    "environment": (
        *("env", "lanes", "atari", "env_kwargs", "wrapper", "life_loss", "inputs", "actions", "reward", "reward_scale"),
        *("env_workers", "groups", "step_timeout", "max_restarts"),
    ),
    "network": ("network", "hidden", "activation", "core", "core_size", "width", "head", "dueling", "init"),
    ALGORITHM: (),
    "optimizer": (
        *("learning_rate", "anneal", "change", "optimizer", "optimizer_eps", "alpha", "max_grad_norm", "reduction"),
    ),
    "exploration": ("entropy_cost", "epsilon", "epsilon_over", "sigma", "noise"),
    "replay": (
        *("ratio", "capacity", "start", "trim", "priority", "weighting", "prefetch", "memories"),
        *("sequence", "burn_in"),
    ),
    "worker": (
        *("actors", "learners", "replicas", "workers", "agents", "predictors", "trainers", "shards", "slots", "lag"),
        *("sync", "pull", "schedule", "predict_batch", "min_batch", "queue", "stale", "outlier", "correction"),
        *("serial", "on", "cores", "device", "actors_on", "precision"),
    ),
    RUN: (),
    "evaluation": ("eval_every", "eval_episodes", "eval_protocol", "eval_epsilon"),
}


def grouped(page: Iterable[str], run: Iterable[str]) -> dict[str, list[str]]:
    """Group → the options of a page and of every run in it, in the order above; no group is empty."""
    page, run = list(page), list(run)
    home = {name: group for group, names in GROUPS.items() for name in names}
    rest = {**dict.fromkeys(page, ALGORITHM), **dict.fromkeys(run, RUN)}
    order = [name for names in GROUPS.values() for name in names]
    names = sorted([*page, *run], key=lambda name: order.index(name) if name in home else len(order))
    found = {group: [name for name in names if home.get(name, rest[name]) == group] for group in GROUPS}
    return {group: members for group, members in found.items() if members}
