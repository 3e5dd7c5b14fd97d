"""`polyplay new`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.arguments import parse_words
from polyplay.common.errors import UserError

SCRIPT = '''\
"""Train an agent, play full games with it, draw its learning curve."""

import polyplay

STEPS = 150_000

if __name__ == "__main__":
    run = polyplay.train("ppo", env="CartPole-v1", steps=STEPS)
    print(run.directory, run.evaluate(episodes=20)["episodic_return_mean"])
    run.plot("curve.png")  # needs matplotlib: pip install 'polyplay[plots]'
'''


@dataclass(frozen=True)
class NewOptions:
    """Writes a short example script."""


def command(words: list[str]) -> None:
    """Writes the file, and prints how to run it."""
    first, _, _ = parse_words(NewOptions, words, "polyplay new FILE.py", "FILE.py: the file to write.")
    if not first or not first[0].endswith(".py"):
        given = f"'{first[0]}' given" if first else "nothing given"
        raise UserError(f"new takes the file to write, {given}: polyplay new FILE.py")
    path = Path(first[0])
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(SCRIPT)
    except FileExistsError:
        raise UserError(f"FILE: {path} is there already and stays as it is: name another") from None
    except OSError as e:
        raise UserError(f"FILE: {path} cannot be written: {e.strerror}") from None
    print(f"{path}: run it with `python {shlex.quote(str(path))}`")
