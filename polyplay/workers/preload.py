"""Imports of the workers' fork server before it forks: torch and the loops, once for all workers."""

from __future__ import annotations

import polyplay.buffers.replay_buffer
import polyplay.learning  # noqa: F401
