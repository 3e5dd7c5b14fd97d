"""A system's page that wires nothing: what configuration, command line and reports need of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.core.errors import Count
from polyplay.systems import Page, System


@dataclass(frozen=True)
class Config:
    """A page's configuration with every kind of field."""

    env: str = "ALE/Pong-v5"  # environment
    frames: Count = 200_000_000  # how long it trains
    lanes: int = 16  # environments in one batch
    learning_rate: float = 6e-4  # step size
    entropy_cost: float = 0.01  # a comment is help too
    network: Literal["nature", "impala", "mlp"] = "nature"  # the net
    sizes: tuple[int, ...] = (64, 64)  # widths
    crop: tuple[int, float] = (1, 0.5)  # a pair
    lstm: bool = False  # recurrent core
    clip: float | None = 40.0  # bound of the gradient's norm


def page() -> Page:
    presets = {"paper": Config, "quick": lambda: replace(Config(), lanes=32, learning_rate=1e-3)}
    row = {"envs": "one pool", "policy runs": "nowhere", "source": "nobody 2026"}
    return Page(Config, lambda c, crew: System(None, None), presets, row, name="fake")
