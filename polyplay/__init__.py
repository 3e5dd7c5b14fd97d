"""Polyplay: every large-scale deep-RL system as one page of wiring over shared parts.

import polyplay
run = polyplay.train("impala", env="ALE/Pong-v5", frames=10_000_000)
print(run.directory, run.evaluate(episodes=30)["episodic_return_mean"])
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "check", "evaluate", "resume", "train"]


def train(system: str, **overrides: Any) -> Any:
    """Train `system` (see `polyplay systems`) and answer its Run; keywords are what the command line calls --FIELD."""
    from polyplay import systems
    from polyplay.runs import options as config
    from polyplay.runs import run

    page = systems.load(system)
    settings, options, sources = config.resolve(page, **overrides)
    return run.train(system, settings, options, sources)


def resume(directory: str, **overrides: Any) -> Any:
    """Go on with a run; keywords are run options that now hold (frames, minutes, …)."""
    from pathlib import Path

    from polyplay.runs import run

    return run.resume(Path(directory), overrides)


def evaluate(directory: str, episodes: int | None = None, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Play full games with the newest checkpoint of a run; returns are unclipped. more: which, protocol, epsilon,
    starts, greedy, video, as `polyplay evaluate` has them (which: its --checkpoint).
    """
    from pathlib import Path

    from polyplay.runs import run

    return run.evaluate(Path(directory), episodes, seed, **more)


def check(env: Any, **options: Any) -> Any:
    """Whether an environment (what `env=` of `train` takes) keeps to the rules: a Report, see `envs/check/report`."""
    from polyplay.envs.check import report

    return report.check(env, **options)
