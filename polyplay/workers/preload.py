"""What the fork server of the workers imports before it forks: torch, once for all, and the part of it that every
optimiser drags in when it is made (1.5 s and 70 MB of each learner).

It must outlive a SIGTERM that is sent to the whole process group (timeout, systemd, Slurm): the main process decides.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)

import torch._dynamo  # noqa: E402, F401

import polyplay.acting.worker  # noqa: E402, F401
