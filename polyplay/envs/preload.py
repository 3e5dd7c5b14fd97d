"""Modules that the fork server of environment processes imports before it forks."""

from __future__ import annotations

import contextlib

import polyplay.envs.process_pool

with contextlib.suppress(ImportError):
    import ale_py  # noqa: F401

    import polyplay.envs.atari_emulator  # noqa: F401
