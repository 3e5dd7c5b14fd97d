"""Our rule for the numbers of workers: climb by factors first, by ones last, and compare only what can be compared.

The objective is rows trained per second under a cap on the mean policy lag: trainings per second alone would rise with
every smaller batch. A configuration over the cap is worse than any within it; of two over it the lower lag is better.

    search   one direction (all numbers, or one, up or down) at one step (×4, ×2, ×1.4, about ±15 %, at least ±1) at a
             time: a trial B against A, the best accepted. What went up is tried again with twice the step. When no
             direction is left the step gets finer, and after the finest
    rest     looks are long and trials few. A rate that clearly and lastingly differs begins the search anew
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from polyplay.workers.autoscale.ga3c import Bounds, Config, ConfigTrial, Decision, RateReading, Steps, within_bounds

FACTORS = (4.0, 2.0, 1.4, 1.15)
LEAST = 10.0  # trainings that a look must have counted, or it goes on, at most
LONGER = 4  # times
SURE, GAIN, TIE = 2.0, 0.01, 0.01  # standard errors; the log gain worth a change; the loss a smaller number may cost
ROUNDS = 2  # of B, and A between them
RECENT = 5  # looks at A that count
SHIFT = 0.1  # of the log rate: less is no change of regime
Direction = tuple[tuple[str, int], ...]  # (dial, +1 or −1), …


@dataclass
class HillClimb:
    """What the rule knows. `here`: the best accepted configuration; `looks` at it, the newest last."""

    here: Config
    bounds: Bounds
    rng: random.Random
    window: float
    settle: float
    lag: float | None
    peak: float = 0.0  # the greatest rate that an accepted configuration had
    running: Config = field(default_factory=dict)
    looks: deque[RateReading] = field(default_factory=lambda: deque(maxlen=RECENT))
    tried: set[frozenset[tuple[str, int]]] = field(default_factory=set)  # against `here`
    # of the log rate from one look at a configuration to the next: as if four pairs of looks had shown 5 %
    squares: float = 4 * 0.05**2
    pairs: float = 4.0
    decided: Decision | None = None

    # ------------------------------------------------------------------------------------------------ looking

    def look(self, config: Config, seconds: float) -> Generator[ConfigTrial, RateReading, RateReading]:
        """One look of at least `seconds`, longer where hardly anything was trained."""
        settle = 0.0 if config == self.running else self.settle
        self.running = config
        reading = yield ConfigTrial(config, settle, seconds, self.decided)
        self.decided = None
        for _ in range(LONGER - 1):
            if reading.updates * reading.seconds >= LEAST:
                break
            reading = merge([reading, (yield ConfigTrial(config, 0.0, seconds))])
        return reading

    def within(self, reading: RateReading) -> bool:
        return self.lag is None or reading.lag <= self.lag

    def gain(self, a: RateReading, b: RateReading) -> float:
        """Log gain of `b` over `a`; infinite between within and over the cap."""
        if self.within(a) != self.within(b):
            return math.inf if self.within(b) else -math.inf
        return _log(b.rows) - _log(a.rows) if self.within(a) else _log(a.lag) - _log(b.lag)

    def error(self, a: float, b: float) -> float:
        """Standard error of the gain between looks of `a` and of `b` seconds."""
        return math.sqrt(self.squares / self.pairs) * math.sqrt(self.window / a + self.window / b)

    # --------------------------------------------------------------------------------------------------- a trial

    def try_out(self, there: Config, ties: bool = False) -> Generator[ConfigTrial, RateReading, bool]:
        """B against A: a glance, a look, then A B A B while the difference is within noise. True: B is `here` now."""
        self.tried.add(frozenset(there.items()))
        mine: list[RateReading] = []
        smaller = ties and all(there[n] <= self.here[n] for n in there)
        accepted, why = False, "within noise"
        for k in range(2 * ROUNDS):
            if k and k % 2 == 0:
                yield from self.refresh()
            mine.append((yield from self.look(there, self.window / 2)))
            a, b = merge(self.looks), merge(mine)
            self.peak = max(self.peak, a.rows)
            smaller = smaller and _log(b.rows) > _log(self.peak) - 2.0 * TIE
            gain, error = self.gain(a, b), self.error(a.seconds, b.seconds)
            sure = SURE if k else 2.0 * SURE  # of a mere glance
            if gain > max(GAIN, sure * error):
                accepted, why = True, "better"
            elif gain < -sure * error or (k and gain < GAIN - error and not smaller):
                accepted, why = False, "worse"
            elif k % 2 and smaller and gain - error > -TIE:
                accepted, why = True, "no worse, and smaller"
            else:
                continue
            break
        else:
            better, equal = gain > max(GAIN, error), smaller and gain > -0.3 * error
            accepted = better or equal
            why = "better" if better else "no worse, and smaller" if equal else why
        self.decided = Decision(self.here, there, self._worth(a), self._worth(b), accepted, why)
        if accepted:
            self.here = there
            self.looks = deque(mine, RECENT)
            self.tried.clear()
        return accepted

    def _worth(self, reading: RateReading) -> float:
        return reading.rows if self.within(reading) else -reading.lag

    def refresh(self) -> Generator[ConfigTrial, RateReading, None]:
        """Look at A again. It counts alone if it is far from what was known: something else has changed."""
        reading = yield from self.look(self.here, self.window)
        if self.looks and self.far(reading, merge(self.looks)):
            reading = yield from self.look(self.here, self.window)  # the first may have been an accident
            if self.far(reading, merge(self.looks)):
                self.forget()
        if self.looks:
            change = min(abs(_log(reading.rows) - _log(self.looks[-1].rows)), 0.3)
            self.squares += change * change / 2
            self.pairs += 1.0
        self.looks.append(reading)

    def forget(self) -> None:
        """What was measured is no longer true."""
        self.looks.clear()
        self.tried.clear()
        self.peak = 0.0

    def far(self, reading: RateReading, known: RateReading) -> bool:
        return abs(_log(reading.rows) - _log(known.rows)) > max(SHIFT, 4.0 * self.error(known.seconds, reading.seconds))

    # --------------------------------------------------------------------------------------------------- search

    def search(self, factors: tuple[float, ...] = FACTORS) -> Generator[ConfigTrial, RateReading, None]:
        for factor in factors:
            todo = self.directions()
            while todo:
                direction = todo.pop(0)
                there = self.step(direction, factor)
                if there == self.here or frozenset(there.items()) in self.tried:
                    continue
                if (yield from self.try_out(there, ties=factor > FACTORS[-1])):
                    yield from self.go_on(direction, factor)
                    todo = [direction, *(d for d in self.directions() if d != direction)]

    def go_on(self, direction: Direction, factor: float) -> Generator[ConfigTrial, RateReading, None]:
        """Further the same way, in longer steps, as long as it goes up."""
        while True:
            factor = min(factor * factor, FACTORS[0])
            there = self.step(direction, factor)
            if there == self.here or not (yield from self.try_out(there, ties=True)):
                return

    def directions(self) -> list[Direction]:
        """All numbers together, then each alone, then one for another, in the seed's order."""
        names = [n for n, (low, high) in self.bounds.items() if low < high]
        alone: list[Direction] = [((n, sign),) for n in names for sign in (1, -1)]
        trades: list[Direction] = [((a, 1), (b, -1)) for a in names for b in names if a != b]
        self.rng.shuffle(alone)
        self.rng.shuffle(trades)
        together = [tuple((n, sign) for n in names) for sign in (1, -1)] if len(names) > 1 else []
        return [*together, *alone, *trades]

    def step(self, direction: Direction, factor: float) -> Config:
        new = dict(self.here)
        for name, sign in direction:
            n = new[name]
            new[name] = max(n + 1, round(n * factor)) if sign > 0 else min(n - 1, round(n / factor))
        return within_bounds(new, self.bounds)

    # ----------------------------------------------------------------------------------------------------- rest

    def rest(self, long: float, between: int) -> Generator[ConfigTrial, RateReading, tuple[float, ...]]:
        """Long looks until something changes; the factors to search with then. Every `between` looks one trial."""
        known, strange, n = merge(self.looks), 0, 0
        while True:
            reading = yield from self.look(self.here, long)
            n += 1
            odd = self.far(reading, known) or self.within(reading) != self.within(known)
            strange = strange + 1 if odd else 0
            if strange >= 2:
                self.decided = Decision(self.here, self.here, self._worth(known), self._worth(reading), True, "changed")
                self.forget()
                self.looks.append(reading)
                return FACTORS
            if not strange:
                known = merge([known, reading], most=3.0 * long)
                self.looks.append(reading)
            if n % between == 0 and not strange and (todo := self.directions()):
                there = self.step(self.rng.choice(todo), self.rng.choice(FACTORS[1:]))
                if there != self.here and (yield from self.try_out(there)):
                    return FACTORS[1:]
                between = min(2 * between, 64)


def climb(
    start: Config,
    bounds: Bounds,
    seed: int = 0,
    *,
    lag: float | None = None,
    window: float = 4.0,
    settle: float = 1.0,
    rest: float = 20.0,
) -> Steps:
    """See the head of this file. `lag`: the greatest mean policy lag, in updates; None: no cap.

    `window`, `settle`: seconds that a look lasts, and that a new configuration runs before it; `rest`: of a look while
    nothing is tried.
    """
    self = HillClimb(within_bounds(start, bounds), bounds, random.Random(seed), window, settle, lag)
    factors: tuple[float, ...] = FACTORS
    while True:
        yield from self.refresh()
        yield from self.search(factors)
        factors = yield from self.rest(rest, 6)


def merge(looks: Sequence[RateReading], most: float = math.inf) -> RateReading:
    """One reading of several looks, each weighted by its length; as long as all together, or `most`."""
    total = math.fsum(r.seconds for r in looks)
    names = ("rows", "updates", "lag", "predictions", "queue")
    means = {n: math.fsum(getattr(r, n) * r.seconds for r in looks) / total for n in names}
    return RateReading(min(total, most), **means)


def _log(x: float) -> float:
    return math.log(max(x, 1e-6))
