"""What the environments' fork server imports before it forks. It outlives a SIGTERM sent to the whole process group."""

from __future__ import annotations

import contextlib
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)

import polyplay.envs.pools.forkserver  # noqa: E402
import polyplay.envs.pools.worker  # noqa: E402

with contextlib.suppress(ImportError):
    import ale_py  # noqa: F401

    import polyplay.envs.atari.emulator  # noqa: F401
