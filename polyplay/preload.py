"""What the fork server of the workers imports before it forks: torch, once for all.

It must outlive a SIGTERM that is sent to the whole process group (timeout, systemd, Slurm): the main process decides.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)

import polyplay.acting  # noqa: E402, F401
