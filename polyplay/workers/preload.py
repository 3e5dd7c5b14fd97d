"""Modules (torch, compiled loops) that the workers' fork server imports once, before it forks the workers."""

from __future__ import annotations

import polyplay.buffers.replay_buffer
import polyplay.learning  # noqa: F401
