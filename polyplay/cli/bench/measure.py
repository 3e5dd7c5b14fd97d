"""What `polyplay bench` measures, in order, and what comes of it: one JSON document.

A system's own run, then, with the batch sizes seen there, its parts, in processes that measure together: right after
each other, since a machine that others share changes its speed within minutes. All measuring is done by `Means`, so
that tests can put numbers in its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from polyplay.cli.bench import SCHEMA, advice, limits, settings
from polyplay.cli.bench.crowd import MeasureProcesses, MeasureRequest
from polyplay.cli.bench.limits import PartCosts, WatchedRun
from polyplay.cli.bench.watched_run import watched
from polyplay.common.errors import EnvFailure, WorkerLost
from polyplay.common.machine import cores, stamp
from polyplay.envs.pool import Envs

ACTING, ROWS = 32, (5, 32)  # sizes at which networks are compared
QUIET = 0.1  # cores that others may use
Row = dict[str, Any]


@dataclass(frozen=True)
class Measures:
    """How things are measured, and who hears of it."""

    rate: Callable[[str, Mapping[str, Any], float, int], Row] = watched
    crowd: Callable[[int], Any] = MeasureProcesses
    say: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic


class Bench:
    """One `polyplay bench` of these systems. Raises UserError before anything is measured."""

    def __init__(self, systems: Sequence[str], asked: Any, means: Measures):
        self.asked, self.means, self.cores = asked, means, cores()
        self.half = _half()
        self.networks = list(asked.network) or networks(Envs(asked.env, 1).spec.obs)
        self.wired = [self._wire(name, self.networks[0]) for name in systems]
        self.free = {what: [self._freed(w, what) for w in self.wired] for what in dict.fromkeys(asked.without)}

    def _wire(self, system: str, network: str) -> settings.WiredSystem:
        keywords = settings.keywords(system, self.asked.env, network, self.asked.precision, self.cores)
        return settings.wire(system, keywords)

    def _freed(self, wired: settings.WiredSystem, what: str) -> settings.WiredSystem:
        """The same system with `what` made free."""
        from polyplay.cli.bench.free_network import NAME

        changed = {"env": settings.free_environment(wired)} if what == "env" else {"network": NAME}
        return settings.wire(wired.system, {**wired.keywords, **changed})

    def run(self) -> Row:
        begun = self.means.clock()
        with self.means.crowd(self.cores) as crowd:
            machine = self._machine(crowd)
            now = "bfloat16" if asked_half(self.asked.precision, self.half) else "float32"
            faster = advice.faster(machine["networks"], self.networks[0], now)
            rows = [self._system(i, crowd, faster) for i in range(len(self.wired))]
        fixed = {"env": self.asked.env, "network": self.networks[0], "precision": self.asked.precision}
        told = {"schema": SCHEMA, **stamp(), "cores": self.cores, **fixed, "seconds": self.asked.seconds}
        took = round(self.means.clock() - begun, 1)
        return {**told, "took_seconds": took, "machine_limits": machine, "systems": rows, "notes": doubts(rows)}

    # ------------------------------------------------------------------------------------- one after another

    def _rate(self, wired: settings.WiredSystem, how: str) -> Row:
        self.means.say(f"{wired.system}{how}: a run of it …")
        try:
            return self.means.rate(wired.system, wired.keywords, self.asked.seconds, wired.turn)
        except (EnvFailure, WorkerLost) as e:
            return {"error": str(e)}

    def _machine(self, crowd: Any) -> Row:
        """The environment, and every network in every precision, at sizes that are the same for all."""
        both = asked_half(self.asked.precision, self.half) or self.half
        precisions = ["float32", "bfloat16"] if both else ["float32"]
        seconds, rows = self._seconds, []
        base = settings.keywords("a2c", self.asked.env, self.networks[0], "float32", self.cores) | {"reuse": False}
        self.means.say("the environment alone …")
        env = crowd.measure(MeasureRequest("a2c", base, seconds, lanes=ACTING // 2))["env"]
        for network in self.networks:
            for precision in precisions:
                self.means.say(f"{network} in {precision} alone …")
                keywords = {**base, "network": network, "precision": precision}
                us = crowd.measure(MeasureRequest("a2c", keywords, seconds, acting=ACTING, rows=ROWS))
                costs = PartCosts(env, us["infer"], us["learn"])
                per = {f"{k}_per_s": self.cores * 1e6 / us[k] for k in ("infer", "learn")}
                rows.append({"network": network, "precision": precision, "us": asdict(costs), **per})
                rows[-1]["limit"] = limits.rate_limit(self.cores, costs)
        sizes = {"acting": ACTING, "rows": ROWS[0] * ROWS[1]}
        return {"env_us": env, "env_per_s": self.cores * 1e6 / env, "networks": rows, **sizes}

    @property
    def _seconds(self) -> float:
        """For each part."""
        return min(1.0, self.asked.seconds / 8)

    def _parts(self, wired: settings.WiredSystem, acting: float, crowd: Any) -> PartCosts:
        lanes = wired.lanes if wired.kind in settings.NATIVE else 1
        how: dict[str, Any] = {"acting": acting, "rows": (wired.T, wired.B), "lanes": lanes}
        return PartCosts(**crowd.measure(MeasureRequest(wired.system, wired.keywords, self._seconds, **how)))

    def _system(self, number: int, crowd: Any, faster: str) -> Row:
        """A system's row: run and parts put together, and what removals do."""
        wired = self.wired[number]
        run = self._rate(wired, "")
        row: Row = {"system": wired.system, "settings": wired.told, "keywords": wired.keywords}
        if "error" in run:
            return {**row, **run}
        row = self._put_together(wired, row, run, crowd, faster)
        if self.free:
            row["without"] = list(self._removals(number, row, crowd))
        return row

    def _put_together(self, wired: settings.WiredSystem, row: Row, run: Row, crowd: Any, faster: str) -> Row:
        acting = float(wired.lanes if wired.lanes > 1 else run.get("predict_batch") or 1.0)
        self.means.say(f"{wired.system}: its parts alone …")
        costs = self._parts(wired, acting, crowd)
        seen = WatchedRun(run["sps"], run["own_cores"], run["others_cores"], wired.workers, run["time"])
        where = limits.split_core_time(self.cores, costs, seen, wired.kind)
        name, most = limits.bottleneck(where), limits.rate_limit(self.cores, costs)
        sizes = {"pool": wired.kind, "acting_batch": acting, "rows_per_update": wired.T * wired.B}
        return {
            **row,
            **sizes,
            "epochs": wired.epochs,
            "frames_per_step": wired.frames,
            "sps": run["sps"],
            "limit": most,
            "fraction": run["sps"] / most,
            "costs_us": asdict(costs),
            "where_us": asdict(where),
            "whole_us": where.whole,
            "wait_share": run["time"].get("wait", 0.0),
            "run": run,
            "bottleneck": limits.NAMES[name],
            "change": advice.sentence(name, where, wired, faster),
        }

    def _removals(self, number: int, row: Row, crowd: Any) -> Iterator[Row]:
        """Was it the bottleneck? Each freed run is right between two of the system's own."""
        freed: list[Row] = []
        own = [self._rate(self.wired[number], ", again")]
        for what, free in self.free.items():
            freed.append(self._rate(free[number], f" without {what}"))
            own.append(self._rate(self.wired[number], ", again"))
        for what, run, pair in zip(self.free, freed, pairwise(own), strict=True):
            yield self._without(what, row, self.free[what][number], run, pair, crowd)

    def _without(
        self, what: str, row: Row, free: settings.WiredSystem, run: Row, own: tuple[Row, Row], crowd: Any
    ) -> Row:
        """What the split predicts for a removal, and what the removal did."""
        failed = next((r for r in (run, *own) if "error" in r), None)
        if failed:
            return {"what": what, **failed}
        self.means.say(f"{row['system']} without {what}: its parts alone …")
        costs = self._parts(free, row["acting_batch"], crowd)
        where, parts = limits.CoreTime(**row["where_us"]), PartCosts(**row["costs_us"])
        removed = limits.removed_time(where, parts, costs, ("env",) if what == "env" else ("infer", "learn"))
        return {
            "what": what,
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


def doubts(rows: Sequence[Row]) -> list[str]:
    """What makes figures doubtful."""
    found = [f"{r['system']}: {r['error'].splitlines()[0]}" for r in rows if "error" in r]
    for r in rows:
        runs = [r["run"]] if "run" in r else []
        removals = r.get("without", [])
        busy = [run["others_cores"] for run in [*runs, *(w["run"] for w in removals if "run" in w)]]
        most = max([*busy, *(others for w in removals for others in w.get("own_others_cores", []))], default=0.0)
        if most > QUIET:
            found.append(
                f"{r['system']}: other programs used {most:.1f} cores meanwhile; measure again when it is quiet"
            )
    return found


def asked_half(precision: str, half: bool) -> bool:
    """Whether networks are computed in bfloat16. half: auto means that here."""
    return precision == "bfloat16" or (precision == "auto" and half)


def _half() -> bool:
    from polyplay.nets.precision import is_half

    return is_half("auto")


def networks(obs: Any) -> list[str]:
    """Those to measure where none is named: the small one first, which is what systems are run with."""
    return ["a3c", "nature"] if settings.pictures(obs) else ["mlp"]
