"""Polyplay: large-scale deep-RL systems, each a short file that connects shared components.

import polyplay
run = polyplay.train("impala", env="ALE/Pong-v5", frames=10_000_000)
print(run.directory, run.evaluate(episodes=30)["episodic_return_mean"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyplay._signatures import Callback, Run, check, evaluate, export, load, resume, train

__version__ = "0.1.0"
STARTING = ("check", "evaluate", "resume", "train")  # functions that start processes
__all__ = ["Callback", "Run", "__version__", "check", "evaluate", "export", "load", "resume", "train"]


def __getattr__(name: str) -> object:
    """Import a public name, such as `train`, when it is first used. This keeps `import polyplay` fast."""
    if name not in __all__:
        raise AttributeError(f"module 'polyplay' has no attribute {name!r}")
    from polyplay.core import user_modules

    if name in STARTING and user_modules.refused():  # refuse before loading polyplay.api, which takes seconds
        return lambda *args, **kwargs: user_modules.refuse(f"polyplay.{name}")
    from polyplay import api

    return getattr(api, name)
