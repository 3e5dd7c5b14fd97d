"""What `polyplay bench` measures: a run of each system, in order, as one JSON document. `Measures` does all measuring,
so that tests can put numbers in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from polyplay.cli.bench import SCHEMA, advice, settings
from polyplay.cli.bench.main import BenchOptions
from polyplay.cli.bench.settings import WiredSystem
from polyplay.cli.bench.watched_run import watched
from polyplay.common.errors import EnvFailure, WorkerLost
from polyplay.common.files import Row
from polyplay.common.machine import cores, stamp
from polyplay.envs.pool import Envs

QUIET = 0.1  # cores that others may use


@dataclass(frozen=True)
class Measures:
    """How things are measured, and where progress is reported."""

    rate: Callable[[str, Row, float, int], Row] = watched
    report: Callable[[str], None] = lambda text: None


class Bench:
    """One `polyplay bench` of these systems. Raises UserError before anything is measured."""

    def __init__(self, systems: Sequence[str], options: BenchOptions, means: Measures):
        self.options, self.means, self.cores = options, means, cores()
        images = settings.pictures(Envs(options.env, 1).spec.obs)
        self.network = options.network or ("a3c" if images else "mlp")
        self.wired = [settings.wire(name, self._keywords(name)) for name in systems]

    def _keywords(self, system: str) -> Row:
        return settings.keywords(system, self.options.env, self.network, self.options.precision, self.cores)

    def run(self) -> Row:
        """The document."""
        begun, options = time.monotonic(), self.options
        rows = [self._system(wired) for wired in self.wired]
        fixed = {"env": options.env, "network": self.network, "precision": options.precision}
        about = {"schema": SCHEMA, **stamp(), "cores": self.cores, **fixed, "seconds": options.seconds}
        took = round(time.monotonic() - begun, 1)
        return {**about, "took_seconds": took, "systems": rows, "notes": doubts(rows)}

    def _system(self, wired: WiredSystem) -> Row:
        """A system's row: its rate, and where the core time went."""
        row: Row = {"system": wired.system, "settings": wired.changed, "keywords": wired.keywords}
        self.means.report(f"{wired.system}: a run of it …")
        try:
            run = self.means.rate(wired.system, wired.keywords, self.options.seconds, wired.turn)
        except (EnvFailure, WorkerLost) as e:
            return {**row, "error": str(e)}
        used, others, workers = (n / self.cores for n in (run["own_cores"], run["others_cores"], wired.workers))
        where = advice.split_core_time(run["time"], used, others, workers, wired.kind == "processes")
        sizes = {
            "pool": wired.kind,
            "acting_batch": float(wired.lanes if wired.lanes > 1 else run.get("predict_batch") or 1.0),
            "rows_per_update": wired.T * wired.B,
            "epochs": wired.epochs,
            "frames_per_step": wired.envs.spec.frames_per_step,
        }
        shares = {"shares": asdict(where), "wait_share": run["time"].get("wait", 0.0)}
        told = {"bottleneck": advice.NAMES[advice.bottleneck(where)], "change": advice.sentence(where, wired)}
        return {**row, **sizes, "sps": run["sps"], **shares, "run": run, **told}


def doubts(rows: Sequence[Row]) -> list[str]:
    """What makes figures doubtful."""
    found = [f"{r['system']}: {r['error'].splitlines()[0]}" for r in rows if "error" in r]
    for row in rows:
        others = row["run"]["others_cores"] if "run" in row else 0.0
        if others > QUIET:
            disturbed = f"other programs used {others:.1f} cores meanwhile"
            found.append(f"{row['system']}: {disturbed}; measure again when it is quiet")
    return found
