"""What `polyplay bench` measures, in order, and what comes of it: one JSON document.

A system's own run comes first; then its parts, with the batch sizes that the run reported, in processes that measure
together. They follow each other at once, since a machine that others share changes its speed within minutes. `Measures`
does all measuring, so that tests can put numbers in its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from polyplay.cli.bench import SCHEMA, advice, limits, settings
from polyplay.cli.bench.crowd import MeasureProcesses, MeasureRequest
from polyplay.cli.bench.free_network import NAME
from polyplay.cli.bench.limits import PartCosts, WatchedRun
from polyplay.cli.bench.main import BenchOptions
from polyplay.cli.bench.settings import WiredSystem
from polyplay.cli.bench.watched_run import watched
from polyplay.common.errors import EnvFailure, WorkerLost
from polyplay.common.files import Row
from polyplay.common.machine import cores, stamp
from polyplay.common.tree import Spec
from polyplay.envs.pool import Envs
from polyplay.nets.precision import choose_precision, is_half

ACTING, ROWS = 32, (5, 32)  # sizes at which networks are compared
QUIET = 0.1  # cores that others may use


@dataclass(frozen=True)
class Measures:
    """How things are measured, and where progress is reported."""

    rate: Callable[[str, Row, float, int], Row] = watched
    crowd: Callable[[int], MeasureProcesses] = MeasureProcesses
    report: Callable[[str], None] = lambda text: None


class Bench:
    """One `polyplay bench` of these systems. Raises UserError before anything is measured."""

    def __init__(self, systems: Sequence[str], options: BenchOptions, means: Measures):
        self.options, self.means, self.cores = options, means, cores()
        self.part_seconds = min(1.0, options.seconds / 8)
        self.networks = list(options.network) or networks(Envs(options.env, 1).spec.obs)
        self.wired = [settings.wire(name, self._keywords(name)) for name in systems]
        self.free = {what: [freed(w, what) for w in self.wired] for what in dict.fromkeys(options.without)}

    def _keywords(self, system: str) -> Row:
        return settings.keywords(system, self.options.env, self.networks[0], self.options.precision, self.cores)

    def run(self) -> Row:
        """The document."""
        begun, options = time.monotonic(), self.options
        with self.means.crowd(self.cores) as self.crowd:
            machine = self._machine()
            now = "bfloat16" if is_half(choose_precision(options.precision)) else "float32"
            faster = advice.faster(machine["networks"], self.networks[0], now)
            rows = [self._system(i, faster) for i in range(len(self.wired))]
        fixed = {"env": options.env, "network": self.networks[0], "precision": options.precision}
        about = {"schema": SCHEMA, **stamp(), "cores": self.cores, **fixed, "seconds": options.seconds}
        took = round(time.monotonic() - begun, 1)
        return {**about, "took_seconds": took, "machine_limits": machine, "systems": rows, "notes": doubts(rows)}

    # ------------------------------------------------------------------------------------- one after another

    def _rate(self, wired: WiredSystem, how: str) -> Row:
        self.means.report(f"{wired.system}{how}: a run of it …")
        try:
            return self.means.rate(wired.system, wired.keywords, self.options.seconds, wired.turn)
        except (EnvFailure, WorkerLost) as e:
            return {"error": str(e)}

    def _parts(self, wired: WiredSystem, acting: float, how: str = "") -> PartCosts:
        self.means.report(f"{wired.system}{how}: its parts alone …")
        rows, lanes = (wired.T, wired.B), wired.lanes if wired.kind in settings.NATIVE else 1
        request = MeasureRequest(wired.system, wired.keywords, self.part_seconds, acting, rows, lanes)
        return PartCosts(**self.crowd.measure(request))

    def _machine(self) -> Row:
        """The environment, and every network in every precision, at sizes that are the same for all."""
        both = is_half(self.options.precision) or is_half("auto")
        base = self._keywords("a2c") | {"precision": "float32", "reuse": False}
        self.means.report("the environment alone …")
        env = self.crowd.measure(MeasureRequest("a2c", base, self.part_seconds, lanes=ACTING // 2))["env"]
        rows = []
        for network in self.networks:
            for precision in ["float32", "bfloat16"] if both else ["float32"]:
                self.means.report(f"{network} in {precision} alone …")
                keywords = {**base, "network": network, "precision": precision}
                us = self.crowd.measure(MeasureRequest("a2c", keywords, self.part_seconds, ACTING, ROWS))
                costs = PartCosts(env, us["infer"], us["learn"])
                per = {f"{k}_per_s": self.cores * 1e6 / us[k] for k in ("infer", "learn")}
                limit = limits.rate_limit(self.cores, costs)
                rows.append({"network": network, "precision": precision, "us": asdict(costs), **per, "limit": limit})
        sizes = {"acting": ACTING, "rows": ROWS[0] * ROWS[1]}
        return {"env_us": env, "env_per_s": self.cores * 1e6 / env, "networks": rows, **sizes}

    def _system(self, number: int, faster: str) -> Row:
        """A system's row: run and parts put together, and what removals do."""
        wired = self.wired[number]
        run = self._rate(wired, "")
        row: Row = {"system": wired.system, "settings": wired.changed, "keywords": wired.keywords}
        if "error" in run:
            return {**row, **run}
        row |= self._put_together(wired, run, faster)
        if self.free:
            row["without"] = list(self._removals(number, row))
        return row

    def _put_together(self, wired: WiredSystem, run: Row, faster: str) -> Row:
        acting = float(wired.lanes if wired.lanes > 1 else run.get("predict_batch") or 1.0)
        costs = self._parts(wired, acting)
        observed = WatchedRun(run["sps"], run["own_cores"], run["others_cores"], wired.workers, run["time"])
        where = limits.split_core_time(self.cores, costs, observed, wired.kind)
        name, limit = limits.bottleneck(where), limits.rate_limit(self.cores, costs)
        return {
            "pool": wired.kind,
            "acting_batch": acting,
            "rows_per_update": wired.T * wired.B,
            "epochs": wired.epochs,
            "frames_per_step": wired.envs.spec.frames_per_step,
            "sps": run["sps"],
            "limit": limit,
            "fraction": run["sps"] / limit,
            "costs_us": asdict(costs),
            "where_us": asdict(where),
            "whole_us": where.whole,
            "wait_share": run["time"].get("wait", 0.0),
            "run": run,
            "bottleneck": limits.NAMES[name],
            "change": advice.sentence(name, where, wired, faster),
        }

    def _removals(self, number: int, row: Row) -> Iterator[Row]:
        """Was it the bottleneck? Each freed run is right between two of the system's own."""
        runs: list[Row] = []
        own = [self._rate(self.wired[number], ", again")]
        for what, free in self.free.items():
            runs.append(self._rate(free[number], f" without {what}"))
            own.append(self._rate(self.wired[number], ", again"))
        for what, run, pair in zip(self.free, runs, pairwise(own), strict=True):
            failed = next((r for r in (run, *pair) if "error" in r), None)
            yield {"what": what, **(failed or self._without(what, row, self.free[what][number], run, pair))}

    def _without(self, what: str, row: Row, free: WiredSystem, run: Row, own: tuple[Row, Row]) -> Row:
        """What the split predicts for a removal, and what the removal did."""
        costs = self._parts(free, row["acting_batch"], f" without {what}")
        where, parts = limits.CoreTime(**row["where_us"]), PartCosts(**row["costs_us"])
        removed = limits.removed_time(where, parts, costs, ("env",) if what == "env" else ("infer", "learn"))
        return {
            "env": free.envs.title,
            "removed_us": removed,
            "free_costs_us": asdict(costs),
            "sps": run["sps"],
            "own_sps": [r["sps"] for r in own],
            "own_others_cores": [r["others_cores"] for r in own],
            "predicted": limits.gain(where, removed),
            "measured": run["sps"] / statistics.fmean(r["sps"] for r in own),
            "run": run,
        }


def freed(wired: WiredSystem, what: str) -> WiredSystem:
    """The same system with `what` made free."""
    changed = {"env": settings.free_environment(wired)} if what == "env" else {"network": NAME}
    return settings.wire(wired.system, {**wired.keywords, **changed})


def doubts(rows: Sequence[Row]) -> list[str]:
    """What makes figures doubtful."""
    found = [f"{r['system']}: {r['error'].splitlines()[0]}" for r in rows if "error" in r]
    for row in rows:
        removals = row.get("without", [])
        busy = [r["run"]["others_cores"] for r in (row, *removals) if "run" in r]
        most = max([*busy, *(others for r in removals for others in r.get("own_others_cores", []))], default=0.0)
        if most > QUIET:
            disturbed = f"other programs used {most:.1f} cores meanwhile"
            found.append(f"{row['system']}: {disturbed}; measure again when it is quiet")
    return found


def networks(obs: Spec) -> list[str]:
    """Those to measure where none is named: the small one first, which is what systems are run with."""
    return ["a3c", "nature"] if settings.pictures(obs) else ["mlp"]
