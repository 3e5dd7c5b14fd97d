"""Environments behind one protocol: many lanes, `recv()` and `send()`."""

from __future__ import annotations

from polyplay.envs.pool import Envs, EnvSpec, Pool
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
