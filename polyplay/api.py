"""Python interface of Polyplay: functions to train, resume, evaluate, load, export and check, and the class `Run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay import systems
from polyplay.core import user_modules
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.envs.make import remembering
from polyplay.runs import directory as run_files
from polyplay.runs import flags, option_file, options, run
from polyplay.runs.run import RunResult
from polyplay.runs.session import Callback as Callback
from polyplay.workers import process

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from polyplay.envs.check import CheckReport
    from polyplay.evaluation.agent import Agent


@dataclass
class Run(RunResult):
    """A training run that has ended, with its `directory`, `exit_code`, `reason`, `summary` and `settings`."""

    def evaluate(self, episodes: int | None = None, seed: int = 0, **options: Any) -> Row:
        """Play full games with a trained agent of this run, and return the scores. See `polyplay.evaluate`."""
        return evaluate(self.directory, episodes, seed, **{"trust": True, **options})  # this program made the run

    def metrics(self) -> dict[str, list[Any]]:
        """Return the run's progress reports as a dictionary {column: list}, which pandas.DataFrame accepts. The page
        docs/reference/metrics.md describes the columns.
        """
        return run_files.read_table(self.directory / "metrics.jsonl")

    def episodes(self) -> dict[str, list[Any]]:
        """Return all full games that ended in training as a dictionary {column: list}."""
        return run_files.read_table(self.directory / "episodes.jsonl")

    def plot(self, out: str | Path | None = None, games: int = 100) -> Figure:
        """Draw the learning curve, and return a matplotlib figure. Each point is the mean return of the `games` full
        games before it. If `out` is given, also write the figure to this file. Needs the extra polyplay[plots].
        """
        from polyplay.cli import plot

        options = plot.PlotOptions(games=games) if out is None else plot.PlotOptions(str(out), games=games)
        figure = plot.draw_curves([self.directory], options)
        if out is not None:
            plot.write_figure(figure, Path(options.out))
        return figure


@remembering()
def train(
    system: str | systems.Page | None = None,
    config: str | Path | None = None,
    callbacks: Sequence[object] = (),
    **overrides: Any,
) -> Run:
    """Train an agent, and return the run when training has ended.

    `system`: name of the algorithm, such as "ppo" (`polyplay systems` lists all names), or your own `Page`.
    `config`: file of options, or the directory of a run to repeat. If `config` names a system, `system` may be omitted.
    `callbacks`: functions that are called with the run and each report, or objects of subclasses of `Callback`.
    `overrides`: options as keyword arguments, such as `lanes=8` for `--lanes 8`. They override `config`.
    """
    user_modules.refuse("polyplay.train")
    system = system if system is None or isinstance(system, str) else systems.name_of(system)
    given = overrides if system is None else {*overrides, "system"}
    file = None if config is None else option_file.read_option_file(config, given)
    if file is not None:
        system = file.choose_system(system)
    if system is None:
        raise UserError('train takes a system first: train("ppo", …), or config=FILE that names one')
    process.start_early(overrides)
    over = overrides.get("over") or (file and file.values.get("over"))
    page = systems.page_of(system, over)
    return Run(**vars(run.train(page, *options.resolve(page, file, **overrides), callbacks)))


def resume(directory: str | Path, trust: bool = False, callbacks: Sequence[object] = (), **overrides: Any) -> Run:
    """Resume a training run from its newest checkpoint, and return the run when training has ended.
    `trust`: whether to execute code that the run's files name, even if the run was made elsewhere.
    `callbacks`: functions or objects, as in `train`.
    `overrides`: new values of run options as keyword arguments, such as `frames` or `minutes`.
    """
    user_modules.refuse("polyplay.resume")
    return Run(**vars(run.resume(Path(directory), overrides, trust, callbacks)))


def evaluate(directory: str | Path, episodes: int | None = None, seed: int = 0, **options: Any) -> Row:
    """Play full games with a run's trained agent, and return the scores. Returns are sums of unclipped rewards.
    `options`: options of `polyplay evaluate`: `checkpoint` (default: the newest), `agent`, `protocol`, `epsilon`,
        `starts`, `greedy`, `max_steps`, `video`, `device` and `trust`.
    """
    user_modules.refuse("polyplay.evaluate")
    from polyplay.evaluation import evaluate

    options |= {"episodes": episodes, "seed": seed}
    given: Any = flags.check_keywords(options, flags.option_types(evaluate.EvaluateOptions), "evaluate")
    return evaluate.evaluate(Path(directory), evaluate.EvaluateOptions(**given))


def load(
    path: str | Path,
    checkpoint: str | int | None = None,
    seed: int = 0,
    epsilon: float | None = None,
    trust: bool = False,
    agent: str | int | None = None,
) -> Agent:
    """Load a trained policy from the directory of a run or of one checkpoint. See `evaluation.agent.Agent`."""
    from polyplay.evaluation.agent import Agent

    return Agent(path, checkpoint, seed, epsilon, trust, agent)


def export(
    directory: str | Path,
    file: str | Path,
    checkpoint: str | None = None,
    trust: bool = False,
    agent: int | str | None = None,
) -> Row:
    """Write a trained policy as an ONNX file, and return a description of the file. By default, export the newest
    checkpoint. For `trust`, see `resume`. For `agent`, see `evaluation.agent.Agent`.
    """
    from polyplay.cli import evaluate

    return evaluate.export(Path(directory), Path(file), checkpoint, trust, None if agent is None else str(agent))


def check(env: str | Callable[..., object], **options: Any) -> CheckReport:
    """Test whether the environment `env` (its name or class) follows the rules for environments. Return a report."""
    user_modules.refuse("polyplay.check")
    from polyplay.envs import check

    return check.check_env(env, **options)
