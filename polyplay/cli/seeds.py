"""`polyplay train SYSTEM --seeds …`: a run for each seed, one after the other, and what they come to together."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.table import Table

from polyplay.common.errors import EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.common.statistics import mean_interval
from polyplay.runs.reports.screen import default_console
from polyplay.runs.run import RunResult

ALLOWED = "allowed: whole numbers from 0, as 0..4, 0,1,2 or 0 1 2"
PICTURE = "seeds.png"


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Each seed once, in the order given. Raises UserError."""
    seeds: dict[int, None] = {}
    for part in [part for word in words for part in word.split(",")]:
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            hint = f"; a range goes up: {match[2]}..{match[1]}" if match else ""
            raise UserError(f"--seeds: '{' '.join(words)}' given, {ALLOWED}{hint}")
        seeds |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not seeds:
        raise UserError(f"--seeds needs a value: {ALLOWED.removeprefix('allowed: ')}")
    return list(seeds)


def train_seeds(seeds: Sequence[int], train: Callable[[int], RunResult], directory: str | None) -> int:
    """Train one seed after the other until a signal ends a run, and print the summary; the worst exit status. train:
    from a seed. directory: of all runs together (None: each has its own).
    """
    runs: dict[int, RunResult | None] = {}  # None: it failed
    status = 0
    for seed in seeds:
        try:
            run = runs[seed] = train(seed)
        except (EnvFailure, WorkerLost, NotFinite) as e:
            runs[seed], status = None, max(status, 1)
            print("\n".join([f"polyplay: failed: {e}", *getattr(e, "__notes__", [])]), file=sys.stderr, flush=True)
            continue
        status = max(status, run.exit_code)
        if run.exit_code >= 128:
            break
    default_console().print(table_of_seeds(runs))
    ended = [run for run in runs.values() if run is not None]
    if ended and find_spec("matplotlib") is not None:
        _draw_picture(ended, Path(directory) if directory else ended[0].directory)
    return status


def table_of_seeds(runs: dict[int, RunResult | None]) -> Table:
    """A line for each seed, then the mean return with its 95 % interval over seeds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("seed", "return", "frames", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ended", overflow="fold")
    returns = []
    for seed, run in runs.items():
        summary = run.summary if run else {}
        mean, seconds = summary.get("episodic_return_mean", summary.get("best_score")), summary.get("wall_seconds")
        returns += [] if mean is None else [mean]
        shown = "–" if mean is None else f"{mean:,.2f}"
        minutes = "–" if seconds is None else f"{seconds / 60:.1f}"
        frames = f"{summary['frames']:,}" if "frames" in summary else "–"
        table.add_row(str(seed), shown, frames, minutes, str(summary.get("reason", "failed")))
    if returns:
        interval = mean_interval(returns)
        about = "95 % interval {:,.2f} to {:,.2f}".format(*interval) if interval else "no interval: it is of one seed"
        table.add_section()
        table.add_row("mean", f"{sum(returns) / len(returns):,.2f}", "", "", about)
    return table


def _draw_picture(runs: Sequence[RunResult], directory: Path) -> None:
    """Leaves it out where no game has ended yet."""
    from polyplay.cli import plot

    drawn = [run.directory for run in runs if run.summary.get("episodic_return_mean") is not None]
    if drawn:
        print(plot.curves(drawn, directory / PICTURE))
