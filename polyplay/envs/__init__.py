"""Environments behind one protocol: `recv()` gives rows of many parallel environments, `send()` takes actions."""

from __future__ import annotations

from polyplay.envs.pool import Envs, EnvSpec, Pool
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
