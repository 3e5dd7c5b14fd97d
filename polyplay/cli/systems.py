"""systems, runs, check: list systems and runs, and test environments."""

from __future__ import annotations

import importlib.util
import json
import keyword
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from polyplay.cli.arguments import (
    page_and_words,
    parse_words,
    print_findings,
    print_result,
    run_and_options,
    take_option,
)
from polyplay.core.errors import Count, Seconds, Seed, UserError, as_json
from polyplay.core.files import Row
from polyplay.core.machine import documentation
from polyplay.envs import check as env_check
from polyplay.envs.pool import task_words
from polyplay.runs import directory as run_files
from polyplay.runs import options as run_options
from polyplay.runs.terminal import default_console, ruled_table, short_count

HELP = """usage: polyplay systems [SYSTEM] [--diagram | --new NAME]

polyplay systems                    all systems, and what each is good for
polyplay systems ppo                one system: its choices, presets and source
polyplay systems impala --diagram   its workers and buffers; takes the options of
                                    train: --env, --actors, --hosts, …
polyplay systems --new NAME         write NAME.py, a system that trains as it is,
                                    with options, a loss and the wiring to change"""


def command(words: list[str]) -> None:
    """Run `polyplay systems`: print all systems, one system or its diagram, or write the template of a system."""
    from polyplay.runs import flags, options, run

    words, drawn = take_option(words, "diagram")
    words, new = take_option(words, "new")
    if flags.wants_help(words):
        print(HELP)
    elif new is not None:
        write_system(new + words)
    elif drawn is not None:
        page, rest = page_and_words(drawn + words, "systems")
        print(run.diagram(page, *options.parse(page, rest, "systems")))
    elif words:
        show_system(words)
    else:
        show_systems()


def show_systems() -> None:
    """Print a table of all systems, which says what each one is good for."""
    from polyplay import systems

    table = ruled_table("system", "idea", "good for")
    for name in systems.names():
        row = systems.load(name).row
        table.add_row(Text(name, style="bold"), row.get("idea", ""), row.get("good for", ""))
    default_console().print(table)
    print("A lane is one parallel environment; other libraries count them with num_envs.")
    print(f"Start with ppo: `polyplay systems ppo`. {documentation('docs/systems/index.md')} compares all.")


def show_system(words: Sequence[str]) -> None:
    """Print the facts about one system. Raises UserError if other words follow the system's name."""
    from polyplay.systems import _presets

    page, rest = page_and_words(words, "systems")
    if rest:
        raise UserError(f"unexpected '{rest[0]}' for polyplay systems {page.name}: it takes --diagram or --new NAME")
    facts = {**page.row, "presets": ", ".join(_presets.names(page))}
    table = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for head, text in {"system": page.name, **facts}.items():
        table.add_row(head, text)
    default_console().print(table)
    print(f"`polyplay train {page.name} --help` lists its options; --diagram draws it.")


# `polyplay runs`: a table of the runs in these directories.


HOME = Path("runs")
STYLES = {"running": "green", "stopped": "yellow", "failed": "bold red", "damaged": "bold red"}


@dataclass(frozen=True)
class RunsOptions:
    """List runs, newest first. For a population, rank its members; for a run of league, ftw or five, show ratings."""

    picture: str | None = None
    # image file (.png, .svg or .pdf) for a chart of a ranking: scores, copies and hyperparameters of a population over
    # agent steps, of a league over matches, or TrueSkill over agent steps (none: no chart). Needs polyplay[plots]
    json: bool = False  # print a JSON list instead of a table

    def __post_init__(self) -> None:
        if self.picture is not None:
            from polyplay.cli.plot import check_name

            check_name(self.picture, "--picture")


def command_runs(words: list[str]) -> None:
    """Run `polyplay runs`: print a table of runs, the ranking of one run, or scores beside published scores."""
    from polyplay.evaluation.scores import ScoresOptions

    about = "RUN: runs, or directories of runs (none: runs/)."
    given, options, _ = parse_words(RunsOptions, words, "polyplay runs [RUN …]", about, True, (ScoresOptions,))
    places = [Path(place) for place in given]
    if isinstance(options, ScoresOptions):
        from polyplay.cli.evaluate import show_scores

        show_scores(places, options)
        return
    if len(places) == 1 and (places[0] / "config.json").exists() and not options.json:
        from polyplay.cli.population import print_ranking

        if print_ranking(places[0], options.picture):
            return
    if options.picture is not None:
        allowed = "name one run of pbt, league, ftw or five; `polyplay plot` draws other runs"
        raise UserError(f"--picture {options.picture}: there is no ranking to draw: {allowed}")
    rows = run_files.list_runs(places or [HOME] * HOME.is_dir())
    if options.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        begin = "" if given else "/ yet: polyplay train ppo --env CartPole-v1 starts one"
        print(f"no runs in {', '.join(given) or HOME}{begin}")
    else:
        console = default_console()
        console.print(table_of(rows))
        for error in (row["error"] for row in rows if row.get("error")):
            console.print(Text(f"damaged: {error}", style="bold red"), soft_wrap=True)


def table_of(rows: Sequence[Row]) -> Table:
    """Return a table of runs. On a narrow terminal, long names are wrapped, but numbers are never wrapped."""
    names = [Column("run", overflow="fold"), Column("system", no_wrap=True), Column("env", overflow="fold")]
    marks = [Column("seed", justify="right", no_wrap=True), Column("state", no_wrap=True)]
    table = ruled_table(*names, *marks, numbers=("frames/steps", "min", "return", "best"))
    for row in rows:
        path = Path(row["run"])
        shown = f"{path.parent.name}/{path.name}" if path.name.startswith("seed-") else path.name
        words = [shown, *(_cell(row, name) for name in ("system", "env", "seed"))]
        counts = "/".join(dict.fromkeys(_cell(row, name, short_count) for name in ("frames", "steps")))
        minutes = _cell(row, "wall_seconds", lambda seconds: f"{seconds / 60:.1f}")
        returns = (_cell(row, name, "{:,.4g}".format) for name in ("return", "return_best"))
        state = Text(row["state"], style=STYLES.get(row["state"], ""))
        table.add_row(*map(Text, words), state, counts, minutes, *returns)
    return table


def _cell(row: Row, name: str, text: Callable[[Any], str] = str) -> str:
    return "–" if row.get(name) is None else text(row[name])


# `polyplay check`.


@dataclass(frozen=True)
class CheckOptions:
    """Play random actions, without training or writing files."""

    steps: Count | None = None  # steps per trial (none: 1,000 steps or 10 seconds, whichever ends first)
    step_timeout: Seconds = 60.0  # seconds that a step or a reset may take
    seed: Seed = 0  # seed of environment and actions
    env_kwargs: tuple[str, ...] = ()  # keyword arguments of the environment, as NAME=VALUE, as in train
    env_options: tuple[str, ...] = ()  # options of every reset, as NAME=VALUE or module:callable, as in train
    wrapper: tuple[str, ...] = ()
    # wrappers of a Gymnasium environment, each as module:callable; the first is innermost
    images: str = "auto"  # parts of observations that are images, as in train
    stack: Count | None = None  # stack this many frames of every image, as in train
    gray: bool = False  # show images in gray, as in train
    size: str | None = None  # resize images, as in train
    frame_skip: Count | None = None  # frames per action, as in train
    json: bool = False  # print JSON


def command_check(words: list[str]) -> int:
    """Run `polyplay check`: test an environment and print a result for each rule. If the first word is a run's
    directory, repeat that run and compare the results. Return the exit status.
    """
    if words and (Path(words[0]) / "config.json").exists():
        return _reproduce(words)
    about = "ENV is what train's --env takes. Given a run's directory instead, repeats the run from its delivery log."
    env, options, _ = parse_words(CheckOptions, words, "polyplay check ENV", about)
    if not env:
        raise UserError("check takes an environment or a run first: polyplay check CartPole-v1 [--OPTION VALUE …]")
    given = {name: value for name, value in vars(options).items() if name in run_options.HOW_MADE}
    made = run_options.how_made(run_options.RunOptions(**given))  # as in training
    trials: dict[str, Any] = {name: vars(options)[name] for name in ("steps", "step_timeout", "seed")}
    trials |= {{"kwargs": "options"}.get(k, k): v for k, v in made.items() if v and k != "task_input"}
    title = str(run_options.listed({"env": env[0]})["env"])
    tasks = [name for name, _ in task_words(title)] or [title]
    return max(_check(task, trials, options.json) for task in tasks)


@dataclass(frozen=True)
class ReproduceOptions:
    """Repeat an asynchronous run from its delivery log, in one thread, where a debugger works."""

    updates: Count | None = None  # stop after this many updates (none: all logged updates)
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def _reproduce(words: list[str]) -> int:
    directory, options, _ = run_and_options(ReproduceOptions, words, "check")
    from polyplay.runs import reproduce

    print_result(reproduce.reproduce(directory, options.updates, options.trust))
    return 0


def _check(env: str, trials: Mapping[str, Any], as_row: bool) -> int:
    """Test one environment, print the results, and return the exit status."""
    try:
        report = env_check.check_env(env, **trials)
    except UserError as e:
        raise UserError(str(e).replace("--env: ", "ENV: ", 1)) from None
    if as_row:
        print(as_json(report.findings, {"environment": report.environment, "card": report.card}, "rules"))
    else:
        counts = Counter[str](finding.level for finding in report.findings)
        named = (("failed", "broken"), ("warning", "doubtful"))
        found = [f"{counts[level]} rule{'s' * (counts[level] > 1)} {word}" for level, word in named if counts[level]]
        verdict = " and ".join(found) or "keeps to every rule that was checked"
        print_findings(f"{report.environment}: {verdict}", report.findings, report.card, "rule")
    return report.status


# `polyplay systems --new NAME`.

TEMPLATE = Path(__file__).parent / "page" / "system.txt"


def write_system(given: Sequence[str]) -> None:
    """Write a template for a new system to NAME.py. Raises UserError if NAME is taken or is not a module name."""
    if len(given) != 1:
        raise UserError(f"--new '{' '.join(given)}': must be one name, such as my_system")
    name, path = given[0], Path(f"{given[0]}.py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"--new: {name} is not a module name; use letters, digits and _, as in my_system")
    if path.exists() or importlib.util.find_spec(name) is not None:
        taken = f"file {path}" if path.exists() else f"module {name}"
        raise UserError(f"--new: a {taken} already exists; choose another name")
    path.write_text(TEMPLATE.read_text("utf-8").replace("NAME:", f"{name}:"), "utf-8")
    print(f"{path} written; `polyplay train {name}:system` trains it")
