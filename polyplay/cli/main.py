"""The `polyplay` command: imports the verb's file, calls it, and turns exceptions into an exit status.

0 success, 1 the run failed, 2 a mistake on the command line, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. Nothing heavy is
imported before a verb needs it.
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
from polyplay.cli.arguments import EXAMPLES, complain
from polyplay.core import processes
from polyplay.core.errors import Diverged, EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.files import refusal_text

VERBS = {  # verb → (arguments, description)
    "train": ("SYSTEM", "train an agent"),
    "resume": ("RUN", "continue a run from its newest checkpoint"),
    "surgery": ("RUN --out RUN2", "enlarge a run's network or game"),
    "evaluate": ("RUN", "play full games with a run's weights"),
    "play": ("RUN", "play a board game against a run's agent"),
    "games": ("RUN", "list the games of a board game's run, or export them"),
    "plot": ("RUN … --out FILE", "plot learning curves to an image file"),
    "runs": ("[DIR …]", "list runs, newest first"),
    "watch": ("RUN …", "serve a live page with curves and controls"),
    "systems": ("", "list the systems and what each is good for"),
    "diagram": ("SYSTEM", "draw the workers and buffers of a system"),
    "scores": ("[RUN …]", "compare runs with published Atari scores"),
    "tournament": ("RUN …", "rate agents by round-robin matches"),
    "verify": ("RUN", "repeat a saved evaluation and compare the score"),
    "starts": ("RUN --out FILE", "save start states for --protocol human-starts"),
    "export": ("RUN --onnx FILE", "export a run's policy to ONNX"),
    "reproduce": ("RUN", "repeat a run in one thread and compare its losses"),
    "check": ("ENV", "test an environment and measure its speed"),
    "population": ("RUN", "rank the members of a population"),
    "bench": ("[SYSTEM …]", "measure the speed of this machine and each system"),
    "new": ("system NAME", "write a template of a system to a file"),
    "doctor": ("", "print versions, limits and self-tests for bug reports"),
}
FILES = {  # verbs whose function, command_VERB, is in another verb's file
    **dict.fromkeys(("resume", "reproduce", "surgery"), "train"),
    **dict.fromkeys(("verify", "starts", "scores", "export"), "evaluate"),
    **dict.fromkeys(("diagram", "runs", "check", "new"), "systems"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as e:
        return _complain(f"error: {' '.join(str(e).split())}", 2, e)
    except KeyboardInterrupt as e:
        number = e.number if isinstance(e, processes.Stopped) else signal.SIGINT
        return _complain(f"ended by {processes.name(number)}", 128 + number, e)
    except BrokenPipeError:  # `polyplay systems | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (EnvFailure, WorkerLost, NotFinite, Diverged) as e:
        return _complain(f"failed: {e}", 1, e)
    except OSError as e:  # such as a full disk or a foreign directory
        return _complain(f"failed: {f'{e.filename}: ' if e.filename else ''}{refusal_text(e)}", 1, e)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0


def _complain(text: str, status: int, e: BaseException) -> int:
    with contextlib.suppress(OSError):
        complain(text, e)
    return status


def _dispatch(words: list[str]) -> int:
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb in ("--version", "-V", "version"):
        print(f"polyplay {__version__}")
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(VERBS)}"
        raise UserError(f"unknown verb {verb}; {hint}")
    file = importlib.import_module(f"polyplay.cli.{FILES.get(verb, verb)}")
    command = getattr(file, f"command_{verb}" if verb in FILES else "command")
    own = verb in ("train", "resume")  # they handle signals themselves
    with contextlib.nullcontext() if own else processes.handled(processes.stop):
        return command(rest) or 0


def usage() -> str:
    """Return the text of `polyplay --help`, at most 80 columns wide."""
    lines = [f"  {f'{verb} {takes}':<24}{what}" for verb, (takes, what) in VERBS.items()]
    examples = [f"  polyplay train {example}" for example in EXAMPLES]
    rest = ["", "`polyplay VERB --help` lists a verb's options; --version prints the version.", "", "examples:"]
    return "\n".join(["usage: polyplay VERB …", "", *lines, *rest, *examples])


if __name__ == "__main__":
    sys.exit(main())
