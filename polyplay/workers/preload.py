"""What the fork server of the workers imports before it forks: torch and the loops, once for all."""

from __future__ import annotations

import polyplay.buffers.replay_buffer
import polyplay.learning  # noqa: F401
