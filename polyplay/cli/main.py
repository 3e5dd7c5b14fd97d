"""The `polyplay` command: call the function of a verb (subcommand), and turn exceptions into an exit status.

Exit status: 0 if the command succeeded, 1 if the run failed, 2 for a mistake on the command line, 129 after SIGHUP, 130
after Ctrl-C, and 143 after SIGTERM.
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
from polyplay.cli.arguments import complain
from polyplay.core import processes
from polyplay.core.errors import Diverged, EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.files import refusal_text
from polyplay.runs.flags import Help

ABOUT = """usage: polyplay VERB …

Polyplay trains agents by deep reinforcement learning, on all cores."""
VERBS = {  # verb → (arguments, description)
    "train": ("SYSTEM", "train an agent"),
    "evaluate": ("RUN", "play full games: the score, a film, a check of a score"),
    "plot": ("RUN …", "plot learning curves of one or several runs"),
    "systems": ("[SYSTEM]", "list the systems; show or draw one; write your own"),
    "check": ("ENV", "test an environment, or repeat a run in one thread"),
    "resume": ("RUN", "continue a run, also with other options"),
    "runs": ("[RUN …]", "list runs, rank populations, compare with papers"),
    "watch": ("RUN …", "serve a live page with curves and controls"),
    "play": ("RUN", "play a board game against an agent; list its games"),
    "tournament": ("RUN …", "rate agents by round-robin matches"),
    "export": ("RUN", "export an agent to ONNX"),
    "surgery": ("RUN", "enlarge a run's network or game"),
    "bench": ("[SYSTEM …]", "measure the speed of this machine and each system"),
    "doctor": ("", "print versions, limits and self-tests for bug reports"),
}
FIRST = (  # commands for the first day
    ("train ppo --env CartPole-v1", "train an agent; its run goes to runs/"),
    ("evaluate RUN --video", "its score, and a film"),
    ("plot RUN RUN", "learning curves in a chart"),
    ("systems", "all systems, and what each is for"),
    ("check module:make_env", "test your own environment"),
)
FILES = {  # verbs whose function, command_VERB, is in another verb's file
    **dict.fromkeys(("resume", "surgery"), "train"),
    **dict.fromkeys(("runs", "check"), "systems"),
    "export": "evaluate",
}
MOVED = {  # earlier verbs, and words of other libraries → the command here
    "diagram": "systems SYSTEM --diagram",
    "new": "systems --new NAME",
    "scores": "runs RUN … --scores",
    "population": "runs RUN",
    "verify": "evaluate RUN --verify",
    "starts": "evaluate RUN --save-starts FILE",
    "reproduce": "check RUN",
    "games": "play RUN --games",
    **dict.fromkeys(("learn", "fit", "run"), "train SYSTEM --env ENV"),
    **dict.fromkeys(("eval", "test", "score"), "evaluate RUN"),
    **dict.fromkeys(("enjoy", "record", "video", "film"), "evaluate RUN --video"),
    **dict.fromkeys(("list", "algos", "algorithms", "agents"), "systems"),
    **dict.fromkeys(("continue", "load"), "resume RUN"),
    **dict.fromkeys(("tune", "optimize"), "train pbt --env ENV"),
    "render": "evaluate RUN --render",
    "benchmark": "bench",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default that of this program, and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return dispatch(words)
        except Help as e:
            e.show()
            return 0
    except UserError as e:
        return _complain(f"error: {' '.join(str(e).split())}", 2, e)
    except KeyboardInterrupt as e:
        number = e.number if isinstance(e, processes.Stopped) else signal.SIGINT
        return _complain(f"ended by {processes.name(number)}", 128 + number, e)
    except BrokenPipeError:  # as in `polyplay systems | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (EnvFailure, WorkerLost, NotFinite, Diverged) as e:
        return _complain(f"failed: {e}", 1, e)
    except OSError as e:  # such as a full disk or a directory of another user
        return _complain(f"failed: {f'{e.filename}: ' if e.filename else ''}{refusal_text(e)}", 1, e)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0


def _complain(text: str, status: int, e: BaseException) -> int:
    with contextlib.suppress(OSError):
        complain(text, e)
    return status


def dispatch(words: list[str]) -> int:
    """Call the function of the verb, and return the exit status. Raises UserError, Help, and exceptions of runs."""
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb in ("--version", "-V", "version"):
        print(f"polyplay {__version__}")
        return 0
    if verb == "--completion":
        from polyplay.cli.completion import completion

        print(completion(rest))
        return 0
    if verb in MOVED:
        raise UserError(f"unknown verb {verb}; use polyplay {MOVED[verb]}")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(VERBS)}"
        raise UserError(f"unknown verb {verb}; {hint}")
    file = importlib.import_module(f"polyplay.cli.{FILES.get(verb, verb)}")
    command = getattr(file, f"command_{verb}" if verb in FILES else "command")
    own = verb in ("train", "resume")  # these verbs handle signals themselves
    with contextlib.nullcontext() if own else processes.handled(processes.stop):
        return command(rest) or 0


def usage() -> str:
    """Return the text that `polyplay --help` prints. The text fits on one screen of 80 columns."""
    first = [f"  polyplay {f'{words}':<30}{what}" for words, what in FIRST]
    named = {words.partition(" ")[0] for words, _ in FIRST}
    others = [f"  {f'{verb} {takes}':<18}{what}" for verb, (takes, what) in VERBS.items() if verb not in named]
    rest = ["`polyplay VERB --help` explains a verb, `polyplay train ppo --help` a system."]
    rest += ["Shell completion: polyplay --completion bash. Pages: docs/start/first_run.md, …"]
    return "\n".join([ABOUT, "", *first, "", "other verbs:", *others, "", *rest])


if __name__ == "__main__":
    sys.exit(main())
