"""Trains or resumes a population in a process of its own, which sends itself a signal at a tick of some member.

    python -m tests.population.harmed RUN TICK SIGNAL [OPTION=JSON …]     TICK 0: no signal

A run that is there is resumed, with new steps if they are given; options are those of polyplay.train.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import polyplay
from polyplay.core.errors import UserError, WorkerLost
from polyplay.runs import session


def main(run: str, tick: int, number: int, options: dict[str, object]) -> int:
    real, ticks = session.Session._tick, [0]

    def count(self: session.Session) -> None:
        ticks[0] += 1
        real(self)
        if ticks[0] == tick:
            os.kill(os.getpid(), number)

    session.Session._tick = count  # type: ignore[method-assign]
    session.TICK = 0.02
    try:
        if (Path(run) / "config.json").exists():
            return polyplay.resume(run, **{k: v for k, v in options.items() if k == "steps"}).exit_code
        return polyplay.train("pbt", run=run, **options).exit_code  # type: ignore[arg-type]
    except (OSError, UserError, WorkerLost) as e:  # as the command line does
        print(f"polyplay: failed: {e}")
        return 1


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[4:])
    polyplay_options = {name: json.loads(text) for name, text in given.items()}
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), polyplay_options))
