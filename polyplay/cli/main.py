"""The command `polyplay`: reads words, calls `polyplay.runs.run`, answers an exit status.

0 done, 1 the run failed, 2 a mistake in what was typed, 130 Ctrl-C, 143 SIGTERM. Nothing heavy is imported
before a verb needs it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyplay.cli.options import EvaluateOptions, ExportOptions, ReproduceOptions, ResumeOptions
from polyplay.common.errors import Diverged, EnvFailure, NotFinite, UserError, WorkerLost

USAGE = """usage: polyplay VERB …

  train SYSTEM [--env ID] [--frames N | --steps N] [--seed S] [--run DIR] [--preset NAME] [--OPTION VALUE …]
                        train an agent; `polyplay train SYSTEM --help` lists the system's options
  resume RUN [--frames N …]
                        go on with a run from its newest checkpoint
  evaluate RUN [--protocol NAME] [--episodes N] [--seed S] [--epsilon E] [--video] [--checkpoint NAME]
                        play full games with a run's weights, and write their score down
  verify RUN [--evaluation FILE]
                        play a recorded evaluation again: does its score come out?
  scores [RUN …] [--place NAME] [--protocol NAME] [--json]
                        runs beside published scores, human-normalised; without a run all published ones
  plot RUN … --out FILE [--x TIME|FRAMES]
                        learning curves of runs as a picture
  starts RUN --out FILE [--number N]
                        start states from a run's own play, for --protocol human-starts
  export RUN --onnx FILE [--checkpoint NAME]
                        write a run's policy for onnxruntime and other programs
  reproduce RUN [--updates N]
                        do an asynchronous run again in one thread and compare every loss, to the bit
  check ENV [--steps N] [--step-timeout S] [--seed N] [--json]
                        whether an environment keeps to the rules, and how fast it is
  bench [SYSTEM …] [--env ID] [--network NAME …] [--without env network] [--json FILE] [--picture FILE] [--recap]
                        how fast this machine could be and each system is, where the rest goes, what to change
  doctor [--json]       what a bug report needs: versions, limits, what works here
  systems [--matrix]    the table of systems: six choices each, or which traits were tried together in them
  diagram SYSTEM [--OPTION VALUE …]
                        draw a system from its real wiring
  --version, --help

for example: polyplay train a2c --env ALE/Pong-v5 --preset quick
"""
COMING = ("play",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as e:
        return _complain(f"error: {' '.join(str(e).split())}", 2)
    except (EnvFailure, WorkerLost, NotFinite, Diverged) as e:
        return _complain(f"failed: {e}", 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `polyplay systems | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:  # a full disk, a directory that is not ours
        return _complain(f"failed: {e}", 1)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0


def _complain(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"polyplay: {text}", file=sys.stderr, flush=True)
    return status


def _dispatch(words: list[str]) -> int:
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if verb in ("--version", "-V", "version"):
        print(f"polyplay {_version()}")
        return 0
    if verb in COMING:
        raise UserError(f"{verb} comes in a later version; this one has {', '.join(VERBS)}")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, [*VERBS, *COMING], 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(VERBS)}"
        raise UserError(f"unknown verb {verb}; {hint}")
    return VERBS[verb](rest)


def _version() -> str:
    from polyplay import __version__

    return __version__


def _page(words: list[str], verb: str) -> tuple[str, Any, list[str]]:
    """(system, its page, the rest of the words)"""
    from polyplay import systems

    if words and words[0] in ("-h", "--help"):
        known = systems.names()
        print(f"usage: polyplay {verb} SYSTEM [--OPTION VALUE …]\n\nsystems: {', '.join(known)}")
        print(f"`polyplay {verb} {known[0]} --help` lists one's options; `polyplay systems` compares all")
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        given = f"'{words[0]}' given" if words else "nothing given"
        raise UserError(f"{verb} takes a system first, {given}; allowed: {', '.join(systems.names())}")
    return words[0], systems.load(words[0]), words[1:]


def _train(words: list[str]) -> int:
    from polyplay.runs import options as config

    system, page, rest = _page(words, "train")
    settings, options, sources = config.parse(page, rest)
    from polyplay.runs import run

    return run.train(system, settings, options, sources).exit_code


def _resume(words: list[str]) -> int:
    directory, options, given = _of_run(words, ResumeOptions, "resume")
    from polyplay.runs import run

    return run.resume(directory, {k: getattr(options, k) for k in given}).exit_code


def _evaluate(words: list[str]) -> int:
    directory, options, _ = _of_run(words, EvaluateOptions, "evaluate")
    from polyplay.evaluation import evaluate

    more = {k: getattr(options, k) for k in ("video", "greedy", "protocol", "starts", "epsilon", "device")}
    print_result(evaluate.evaluate(directory, options.episodes, options.seed, which=options.checkpoint, **more))
    return 0


def _verify(words: list[str]) -> int:
    from polyplay.cli import verify

    return verify.command(words)


def _scores(words: list[str]) -> int:
    from polyplay.evaluation.scores import command

    return command.command(words)


def _plot(words: list[str]) -> int:
    from polyplay.cli import plot

    return plot.main(words)


def _starts(words: list[str]) -> int:
    from polyplay.cli import starts

    return starts.command(words)


def _reproduce(words: list[str]) -> int:
    directory, options, _ = _of_run(words, ReproduceOptions, "reproduce")
    from polyplay.runs import reproduce

    print_result(reproduce.reproduce(directory, options.updates))
    return 0


def _export(words: list[str]) -> int:
    directory, options, _ = _of_run(words, ExportOptions, "export")
    if options.onnx is None:
        raise UserError(f"export takes the file to write: polyplay export {directory} --onnx FILE")
    from polyplay.cli import export

    print_result(export.export(directory, Path(options.onnx), options.checkpoint))
    return 0


def _of_run(words: list[str], cls: type, verb: str) -> tuple[Path, Any, set[str]]:
    """The run's directory, the options, and which were given; checked before anything heavy is loaded."""
    from polyplay.runs import directory as record
    from polyplay.runs import flags

    if flags.wants_help(words):
        flags.show_help({verb: cls()}, f"polyplay {verb} RUN", "RUN is the directory of a run.")
    if not words or words[0].startswith("-"):
        raise UserError(f"{verb} takes the directory of a run first: polyplay {verb} runs/… [--OPTION VALUE …]")
    options: Any
    options, given = flags.read_flags(cls, words[1:], f"polyplay {verb} RUN")
    record.read_config(Path(words[0]))
    return Path(words[0]), options, given


def print_result(result: dict[str, Any]) -> None:
    """An evaluation, a line each: what fits in one."""
    short = {k: v for k, v in result.items() if not isinstance(v, (list, dict))}
    for key, value in short.items():
        text = "none" if value is None else str(value)
        if isinstance(value, float):
            text = f"{value:g}" if 0.0 < abs(value) < 0.01 else f"{value:,.2f}"
        print(f"{key:<{max(map(len, short))}}  {text}")


def _systems(words: list[str]) -> int:
    from rich import box
    from rich.table import Table

    from polyplay import systems
    from polyplay.cli import matrix
    from polyplay.runs.reports.terminal import default_console

    if words == ["--matrix"]:
        default_console().print(matrix.table())
        return 0
    if words:
        raise UserError(f"unexpected '{words[0]}': systems takes nothing but --matrix")
    rows = {name: systems.load(name).ROW for name in systems.names()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("system", style="bold", no_wrap=True)
    for heading in next(iter(rows.values()), {}):
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, *row.values())
    default_console().print(table)
    return 0


def _diagram(words: list[str]) -> int:
    from polyplay.runs import options as config

    system, page, rest = _page(words, "diagram")
    settings, options, _ = config.parse(page, rest, "diagram")
    from polyplay.runs import run

    print(run.diagram(system, settings, options))
    return 0


def _check(words: list[str]) -> int:
    from polyplay.cli import check

    return check.command(words)


def _doctor(words: list[str]) -> int:
    from polyplay.cli import doctor

    return doctor.command(words)


def _bench(words: list[str]) -> int:
    from polyplay.cli.bench import command

    return command.command(words)


VERBS = {
    "train": _train,
    "resume": _resume,
    "evaluate": _evaluate,
    "verify": _verify,
    "scores": _scores,
    "plot": _plot,
    "starts": _starts,
    "export": _export,
    "reproduce": _reproduce,
    "check": _check,
    "bench": _bench,
    "doctor": _doctor,
    "systems": _systems,
    "diagram": _diagram,
}

if __name__ == "__main__":
    sys.exit(main())
