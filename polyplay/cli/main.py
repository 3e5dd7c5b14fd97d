"""The command `polyplay`: finds the verb's file, and turns what it raises into an exit status.

0 done, 1 the run failed, 2 a mistake in what was typed, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. Nothing heavy is imported
before a verb needs it.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from polyplay import __version__
from polyplay.common import signals
from polyplay.common.errors import Diverged, EnvFailure, NotFinite, UserError, WorkerLost

VERBS = {  # by verb, whose file is cli/VERB: what it takes, and what it does
    "train": (
        "SYSTEM [--env ID] [--frames N | --steps N] [--seed S | --seeds 0..4] [--run DIR] [--preset NAME] "
        "[--config FILE] [--quiet] [--OPTION VALUE …]",
        "train an agent; `polyplay train SYSTEM --help` lists the system's options",
    ),
    "resume": ("RUN [--frames N …]", "go on with a run from its newest checkpoint"),
    "evaluate": (
        "RUN [--protocol NAME] [--episodes N] [--seed S] [--epsilon E] [--max-steps N] [--video] [--checkpoint NAME]",
        "play full games with a run's weights, and write their score down",
    ),
    "verify": ("RUN [--evaluation FILE]", "play a recorded evaluation again: does its score come out?"),
    "scores": (
        "[RUN …] [--place NAME] [--protocol NAME] [--json]",
        "runs beside published scores, human-normalised; without a run all published ones",
    ),
    "runs": ("[DIR …] [--json]", "the runs in directories (none: runs/), newest first"),
    "plot": ("RUN … --out FILE [--title TEXT] [--games N]", "learning curves of runs as a picture"),
    "new": ("FILE.py", "write a short script to start from: train, evaluate, plot"),
    "watch": ("RUN … [--port N]", "a live page over runs, on this machine only: numbers, curves, stop, checkpoint"),
    "starts": ("RUN --out FILE [--number N]", "start states from a run's own play, for --protocol human-starts"),
    "export": ("RUN --onnx FILE [--checkpoint NAME]", "write a run's policy for onnxruntime and other programs"),
    "reproduce": ("RUN [--updates N]", "do an asynchronous run again in one thread and compare every loss, to the bit"),
    "check": (
        "ENV [--steps N] [--step-timeout S] [--seed N] [--json]",
        "whether an environment keeps to the rules, and how fast it is",
    ),
    "bench": (
        "[SYSTEM …] [--env ID] [--network NAME …] [--without env network] [--json FILE] [--read FILE]",
        "how fast this machine could be and each system is, where the rest goes, what to change",
    ),
    "doctor": ("[--json]", "what a bug report needs: versions, limits, what works here"),
    "systems": ("", "the table of systems: six choices each"),
    "diagram": ("SYSTEM [--OPTION VALUE …]", "draw a system from its real wiring"),
}
COMING = ("play",)
RUNNING = ("train", "resume")  # verbs that see to signals themselves
INDENT = 24  # columns before what a verb does


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as e:
        return _complain("\n".join([f"error: {' '.join(str(e).split())}", *_notes(e)]), 2)
    except KeyboardInterrupt as e:
        number = e.number if isinstance(e, signals.Stopped) else signal.SIGINT
        return _complain(f"ended by {signals.name(number)}", 128 + number)
    except BrokenPipeError:  # `polyplay systems | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (EnvFailure, WorkerLost, NotFinite, Diverged, OSError) as e:  # OSError: a full disk, another's directory
        return _complain("\n".join([f"failed: {e}", *_notes(e)]), 1)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0


def _notes(e: Exception) -> list[str]:
    """The last of them names the command that goes on with a run that failed."""
    return getattr(e, "__notes__", [])


def _complain(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"polyplay: {text}", file=sys.stderr, flush=True)
    return status


def _dispatch(words: list[str]) -> int:
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb in ("--version", "-V", "version"):
        print(f"polyplay {__version__}")
        return 0
    if verb in COMING:
        raise UserError(f"{verb} comes in a later version; this one has {', '.join(VERBS)}")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, [*VERBS, *COMING], 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(VERBS)}"
        raise UserError(f"unknown verb {verb}; {hint}")
    command = importlib.import_module(f"polyplay.cli.{verb}").command
    with contextlib.nullcontext() if verb in RUNNING else signals.handled(signals.stop):
        return command(rest) or 0


def usage() -> str:
    """What `polyplay --help` prints."""
    lines = ["usage: polyplay VERB …", ""]
    for verb, (arguments, what) in VERBS.items():
        call = f"  {verb} {arguments}".rstrip()
        lines += [f"{call:<{INDENT}}{what}"] if len(call) < INDENT else [call, " " * INDENT + what]
    example = "for example: polyplay train a2c --env ALE/Pong-v5 --preset quick"
    return "\n".join([*lines, "  --version, --help", "", example])


if __name__ == "__main__":
    sys.exit(main())
