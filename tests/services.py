"""The benchmarks' simulated service, for tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from service import SMALL, Noise, Service, best, known, play

__all__ = ["SMALL", "Noise", "Service", "best", "known", "play"]
