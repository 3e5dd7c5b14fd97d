"""What the fork server of the workers imports before it forks: torch and the loops, once for all.

It must outlive a SIGTERM that is sent to the whole process group (timeout, systemd, Slurm), and a Ctrl-C: the main
process decides.
"""

from __future__ import annotations

import signal

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

import polyplay.buffers.replay.buffer  # noqa: E402
import polyplay.learning  # noqa: E402, F401
