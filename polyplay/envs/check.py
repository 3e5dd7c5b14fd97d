"""Test an environment against every rule of `envs/rules`, for the command `polyplay check ENV`.

Four trials play the same random actions. The first two use one copy of the environment (lane 0), the second time with
another iteration order of Python's sets. The third uses another copy (lane 1) with another seed. The fourth repeats the
first one while a second copy steps in the same process. If no rule is broken, the check also measures the speed of a
pool with one process per core.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from polyplay.core import tree, user_modules
from polyplay.core.errors import EnvFailure, Finding, Level, UserError, status
from polyplay.core.machine import cores
from polyplay.core.processes import ForkServer
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Batch, Spec
from polyplay.envs import rules
from polyplay.envs.base_pool import UnitPool
from polyplay.envs.build import factory
from polyplay.envs.images import ImageOptions
from polyplay.envs.lane import START, near_bounds
from polyplay.envs.make import POOLS, whole_matches
from polyplay.envs.pool import Envs, EnvSpec, Factory, Pool, box_parts
from polyplay.envs.process_pool import REORDERED, SERVER, TRACE, EnvProcess, ProcessPool, exit_text, settle
from polyplay.envs.rules import RULES
from polyplay.envs.saved_state import wrappers_of
from polyplay.envs.spaces import SpaceViolation, action_sampler, describe_scaling

STEPS, SECONDS = 1000, 10.0  # limits of steps and seconds of one trial, unless --steps is given
BESIDE = 200, 5.0  # limits of steps and seconds of the trial beside another lane
LANES = 2  # lanes per process of the pool whose speed is measured
AT_ENDS = ("flags", "final-observation", "autoreset")
SLOW = 0.5  # a step that takes this fraction of its time limit counts as slow
LONG = 50  # steps; if all episodes have the same length, of at least this, a time limit seems to end them


# --------------------------------------------------------------------------------- inside the environment's process


def watching(envs: Envs) -> Factory:
    """Return a function that builds an environment and passes it to `watched`."""
    name, options = envs.name, envs.options

    def build() -> Any:
        return watched(factory(name, options)())

    build.__qualname__ = envs.title
    return build


def watched(env: Any) -> Any:
    """Change `env` so that it reports calls of reset() within step(). If the step that ends an episode returns the
    first observation of the next episode, step() raises SpaceViolation. Other calls only set the warning
    `env.polyplay_remark`.
    """
    if not isinstance(env, gymnasium.Env):
        return env
    begun, step = list[object](), env.step

    def watched_step(action: Any) -> Any:
        begun.clear()
        answer = step(action)
        if begun and isinstance(answer, tuple) and len(answer) == 5:
            over = bool(answer[2]) or bool(answer[3])
            if over and any(data_equivalence(obs, answer[0], exact=True) for obs in begun):
                text = "the step that ended an episode called reset() and returned the next one's beginning"
                raise SpaceViolation(text, "autoreset")
            text = "the step that ended an episode called reset() too" if over else "reset() without an end"
            env.polyplay_remark = "autoreset", text  # type: ignore[attr-defined]
        return answer

    with contextlib.suppress(Exception):  # an environment that allows no new attributes is not watched
        for layer in wrappers_of(env):
            layer.reset = _recorded(layer.reset, begun)  # type: ignore[method-assign]
        env.step = watched_step  # type: ignore[method-assign]
    return env


def _recorded(reset: Callable[..., Any], begun: list[object]) -> Callable[..., Any]:
    @functools.wraps(reset)  # wrappers inspect reset()'s keywords
    def recording(*args: Any, **kw: Any) -> Any:
        answer = reset(*args, **kw)
        if isinstance(answer, tuple) and answer:
            begun.append(np.copy(answer[0]) if isinstance(answer[0], np.ndarray) else answer[0])
        return answer

    return recording


# ------------------------------------------------------------------------------------------------------ one trial


@dataclass
class Trial:
    """One trial of an environment: random actions, their results, and the rules that the environment broke."""

    seed: int = 0
    most_steps: int = 0
    seconds: float = 0.0
    broke: dict[str, str] = field(default_factory=dict)  # broken rule → text about it
    odd: dict[str, str] = field(default_factory=dict)  # rule → warning
    steps: int = 0
    resets: int = 0
    ends: list[tuple[int, bool]] = field(default_factory=list)  # each episode: (length in steps, whether it terminated)
    prints: list[int] = field(default_factory=list)  # checksums of all rows, to compare two trials
    generator: int = -1  # identity of the environment's random generator, see rules.rng_of; -1: unknown
    step_sum: float = 0.0  # seconds of all steps; below, of the longest step and the longest reset
    step_most: float = 0.0
    reset_most: float = 0.0
    length: int = 0  # steps of the current episode so far

    def play(
        self,
        open_pool: Callable[[], Pool],
        beside: Iterator[Batch] = iter(()),
        report: Callable[[int], None] = lambda steps: None,
    ) -> Trial:
        """Play until a rule is broken, or the limit of steps or seconds is reached.

        `beside`: iterator that steps another pool. It advances before each step of this pool.
        `report`: function that is called before each step with the number of steps so far.
        """
        try:
            with closing(open_pool()) as pool:
                self._play(pool, beside, report)
        except (EnvFailure, UserError) as e:
            rule, text = broken_rule(e, "step" if self.resets else "build")
            self.broke[rule] = f"step {self.steps + 1}: {text}" if self.resets else text
        return self

    def _play(self, pool: Pool, beside: Iterator[Batch], report: Callable[[int], None]) -> None:
        rows, boxes, seats = random_rows(pool, self.seed), box_parts(pool.spec), pool.spec.seats
        row, ended, until = next(rows), np.ones(seats, bool), time.monotonic() + self.seconds
        while True:
            mine = tree.at(row, slice(0, seats))
            begins = bool(mine["first"].all()) and (seats > 1 or bool(ended.all()))
            if begins and self.length:  # some players of the last episode never arrived
                self.ends.append((self.length, bool(ended.any())))
            ended = (ended & (not begins)) | mine["over"]
            self.resets, self.steps = self.resets + begins, self.steps + (not begins)
            self.length = 0 if begins else self.length + 1
            if self.length and ended.all():
                self.ends.append((self.length, bool(mine["terminated"].any())))
                self.length = 0
            self._look(pool, mine, boxes)
            if self.steps >= self.most_steps or time.monotonic() > until:
                return
            report(self.steps)
            with contextlib.suppress(EnvFailure, UserError):  # faults of the other lane do not count
                next(beside, None)
            start = time.perf_counter()
            row = next(rows)
            took = time.perf_counter() - start
            if row["first"].all():
                self.reset_most = max(self.reset_most, took)
            else:
                self.step_sum, self.step_most = self.step_sum + took, max(self.step_most, took)

    def _look(self, pool: Pool, row: Batch, boxes: Mapping[str, gymnasium.spaces.Box]) -> None:
        self.prints.append(zlib.crc32(b"".join(leaf.tobytes() for _, leaf in tree.leaves(row))))
        if isinstance(pool, UnitPool) and self.generator < 0:
            self.generator = pool.generator
        for text in pool.remarks:
            self._warn(rules.rule_of(text) or "bounds", rules.without_rule(text))
        pool.remarks.clear()
        for path, leaf in tree.leaves(row["obs"]):
            if leaf.dtype == np.float64 and (most := float(np.abs(leaf).max(initial=0.0))) > rules.MOST:
                text = f"an observation holds {most:g}, which float32, in which networks compute, can't hold"
                self._warn("finite", f"{text}: train with --inputs normalize")
            for one in leaf[~row["first"]] if path in boxes else ():  # pools check the observations of resets
                try:
                    near_bounds(boxes[path], one, path)
                except SpaceViolation as e:
                    self._warn("bounds", f"{e}; training looks at bounds after a reset only")

    def look_at_images(self, obs: Spec) -> None:
        """Check whether networks accept the image observations."""
        if flaw := rules.image_flaw(obs):
            self.broke["images"] = flaw
        elif read := rules.flat_images(obs, other=True):
            self.odd["images"] = f"--network auto is an MLP, which reads {' and '.join(read)}"

    def _warn(self, rule: str, text: str) -> None:
        self.odd.setdefault(rule, f"step {self.steps}: {text}" if self.steps else text)


def broken_rule(e: Exception, rule: str) -> tuple[str, str]:
    """Return the rule that an error names, and the first line of the error. If it names none, return `rule`. For a hang
    or a crash, the line also names the place in the environment's code.
    """
    head, *trace = str(e).removeprefix("an environment failed: ").split("\n")
    rule = rules.rule_of(head) or rule
    return rule, rules.without_rule(head) + (_place(trace) if rule in ("hang", "crash") else "")


def _place(trace: Sequence[str]) -> str:
    """Return the names of the last calls in the environment's own code, at most three."""
    places = re.findall(r'File "(.+)", line (\d+) in (\S+)', "\n".join(trace))
    theirs = [p for p in places if not re.search("polyplay/(envs|core)/|/multiprocessing/|^<", p[0])]
    own = [f"{Path(file).name}:{line} in {name}" for file, line, name in theirs[:3]]
    return f" ({' ← '.join(own)})" if own else ""


def random_rows(pool: Pool, seed: int) -> Iterator[Batch]:
    """Play random actions in a pool, and yield the results of each step."""
    draw = action_sampler(pool.spec.action, seed)
    while True:
        lanes, row = pool.recv()
        yield row
        pool.send(lanes, draw(len(row["first"]), row.get("mask")))


def steps_per_second(pool: Pool, seconds: float) -> float:
    """Measure the steps per second of all lanes together, for about `seconds` after the first rows."""
    rows, steps = random_rows(pool, 0), 0
    next(rows)
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not steps:
        steps += len(next(rows)["first"])
    return steps / max(took, 1e-9)


# ------------------------------------------------------------------------------------------------------- findings


def finding(rule: str, broke: Mapping[str, str], trials: tuple[Trial, Trial, Trial], limit: float) -> Finding:
    """Return the result of the check for one rule. `trials`: trials 1 to 3. `limit`: seconds that a step may take."""
    if rule in broke:
        return Finding(rule, "failed", broke[rule], RULES[rule].fix)
    level, seen = _judged(rule, *trials, limit)
    return Finding(rule, level, seen, RULES[rule].fix if level == "warning" else "")


def _judged(rule: str, first: Trial, again: Trial, other: Trial, limit: float) -> tuple[Level, str]:
    if rule in first.odd:
        return "warning", first.odd[rule]
    if not first.steps:
        return "unseen", "not tested"
    if rule == "seed":
        return _seed(first, other)
    if rule == "determinism":
        at = differ(first.prints, again.prints)
        if at is not None:
            text = f"two trials with the same seed and actions differ from row {at} on"
            return "warning", f"{text}; the second had sets in another order (PYTHONHASHSEED)"
        n = min(len(first.prints), len(again.prints))
        return ("ok", f"the same {n:,} rows twice") if n else ("unseen", "not tested: there was no second trial")
    lengths = {n for n, _ in first.ends}
    limited = len(first.ends) > 1 and len(lengths) == 1 and all(dead for _, dead in first.ends)
    if rule == "flags" and limited and (n := min(lengths)) >= LONG:
        return "warning", f"all {len(first.ends)} episodes terminated after {n} steps: a time limit must be truncated"
    if rule in AT_ENDS[1:] and not first.ends:
        hint = "" if first.broke else f"; --steps {10 * first.steps} looks longer"
        return "unseen", f"no episode ended in {first.steps:,} steps{hint}"
    if rule == "step-time":
        text = f"a step {_time(first.step_sum / first.steps)} in the mean, {_time(first.step_most)} at most"
        slow = max(first.step_most, first.reset_most) > SLOW * limit
        return "warning" if slow else "ok", f"{text}; a reset {_time(first.reset_most)} at most"
    at_ends = f"at {len(first.ends):,} ends"
    return "ok", at_ends if rule in AT_ENDS else f"in {first.steps:,} steps and {first.resets:,} resets"


def _seed(a: Trial, b: Trial) -> tuple[Level, str]:
    if not b.prints:
        return "unseen", "not tested: no second lane was played"
    alike = differ(a.prints, b.prints) is None
    if a.generator == b.generator >= 0:
        return "failed", "lanes 0 and 1 got different seeds but draw from the same generator"
    if a.generator < 0 and alike:
        return "warning", "lanes 0 and 1 got different seeds but play the same: right if nothing in it is random"
    return "ok", "two lanes play the same: nothing in it is random" if alike else "two lanes play different episodes"


def differ(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the number of the first row in which two trials differ, or None if they are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def learners_of(spec: EnvSpec) -> str:
    """List the systems that can learn these actions, and those that cannot, with reasons."""
    values, deterministic = rules.values_flaw(spec.action), rules.deterministic_flaw(spec.action)
    kinds = {"policies (a2c, ppo, impala, …)": "", "values (dqn, apex, …)": values}
    kinds |= {"sac, apex_sac": rules.critics_flaw(spec.action), "td3, apex_dpg": deterministic}
    right = [kind for kind, flaw in kinds.items() if not flaw]
    return "; not ".join([", ".join(right), *(f"{kind}: {flaw}" for kind, flaw in kinds.items() if flaw)])


def card_of(envs: Envs, first: Trial) -> dict[str, str]:
    """Describe the environment, the systems that can learn it, its resets, and the episodes of the first trial."""
    by = "Polyplay's own pool" if is_own(envs) else "the pool calls reset() after the last row"
    card = {**envs.spec.describe, "learned by": learners_of(envs.spec)}
    card |= {"real actions": text} if (text := describe_scaling(envs.spec.action, True)) else {}
    card["autoreset"] = f"{by}; the new episode's first row is a separate row"
    card["truncation"] = "separate from termination: learning uses the value of the last observation"
    if ends := first.ends:
        lengths, over = [n for n, _ in ends], sum(dead for _, dead in ends)
        spread = f"{min(lengths):,} to {max(lengths):,} steps, {np.mean(lengths):,.1f} in the mean"
        card["episodes"] = f"{len(ends)} with random actions, {spread}; {over} terminated, {len(ends) - over} truncated"
    return card


# ------------------------------------------------------------------------------------------------------ all trials


@dataclass(frozen=True)
class CheckReport:
    environment: str
    findings: list[Finding]
    card: dict[str, str]

    @property
    def status(self) -> int:
        return status(self.findings)


def check_env(
    env: str | Factory,
    *,
    options: Mapping[str, object] | None = None,
    wrappers: tuple[str, ...] = (),
    reset_options: Any = None,
    images: ImageOptions | None = None,
    steps: int | None = None,
    step_timeout: float = 60.0,
    seed: int = 0,
    measure: float = 1.0,
) -> CheckReport:
    """Check an environment against every rule.

    env: a value of `--env`.
    options, wrappers, reset_options, images: see `Envs`.
    measure: seconds for measuring the speed of a pool.

    Raises UserError if there is no such environment.
    """
    how: dict[str, Any] = {"wrappers": wrappers, "reset_options": reset_options, "images": images}
    envs = Envs(env, 1, options=options or {}, workers=1, step_timeout=step_timeout, max_restarts=0, **how)
    much = seed, steps or STEPS, float("inf") if steps else SECONDS
    first, again, other = Trial(*much), Trial(*much), Trial(*much)
    card, several, broke = dict[str, str](), False, dict[str, str]()
    try:
        envs = whole_matches(envs)  # builds an environment, in a separate process
        several = envs.spec.seats > 1
        first = play_lane(first, envs, 0)
        if envs.spec.images is None:
            first.look_at_images(envs.spec.obs)
        card = card_of(envs, first)
    except UserError as e:
        if rules.rule_of(str(e)) is None:
            raise
        rule, text = broken_rule(e, "build")
        first.broke[rule], several = text, RULES[rule].players
    if first.steps and not first.broke:
        again, other = play_lane(again, envs, 0, REORDERED), play_lane(other, envs, 1)
        broke |= other.broke | again.broke or shared_state(envs, first, again)
    broke |= first.broke
    if first.steps and not broke:
        card["one lane"] = f"{first.steps / max(first.step_sum, 1e-9):,.0f} steps/s"
        lanes = envs.spec.width or LANES * cores() * envs.spec.seats
        try:
            with closing(envs.share(lanes=lanes, workers=cores(), inline=False).open(seed)) as pool:
                card[f"pool of {lanes} lanes"] = f"{steps_per_second(pool, measure):,.0f} steps/s"
        except (EnvFailure, UserError) as e:
            rule, text = broken_rule(e, "step")
            broke[rule] = f"in a pool of {lanes} lanes: {text}"
    trials = first, again, other
    findings = [finding(name, broke, trials, step_timeout) for name in RULES if several or not RULES[name].players]
    return CheckReport(envs.title, findings, card)


def is_own(envs: Envs) -> bool:
    """Tell whether the environment is a vector environment, or is stepped by one of Polyplay's own pools."""
    return envs.title.startswith(tuple(POOLS)) or envs.spec.vector or bool(envs.spec.tasks)


def play_lane(trial: Trial, envs: Envs, lane: int, server: ForkServer = SERVER) -> Trial:
    """Play a trial of one lane or match."""
    if is_own(envs):
        return play_apart(trial, envs, lane)
    observed = envs.share(name=watching(envs), options={}, wrappers=(), reset_options=None, images=None)
    return trial.play(lambda: ProcessPool(observed, trial.seed, lane, 1, server=server))


def shared_state(envs: Envs, first: Trial, again: Trial) -> dict[str, str]:
    """Return {rule: text} of the rules that lane 0 breaks only while another copy steps in its process."""
    if is_own(envs) or differ(first.prints, again.prints) is not None:
        return {}
    steps, seconds = min(first.most_steps, BESIDE[0]), min(first.seconds, BESIDE[1])
    beside = play_apart(Trial(first.seed, steps, seconds), envs, 0, beside=True)
    at = differ(first.prints, beside.prints)
    shows = f"from row {at} on it shows something else where another one is stepped beside it: they share state"
    found = beside.broke if at is None else {"copies": shows} | beside.broke
    return {rule: text for rule, text in found.items() if rule in ("copies", "hang", "crash")}


def play_apart(trial: Trial, envs: Envs, lane: int, beside: bool = False) -> Trial:
    """Play a trial in a separate process, because the environment may hang, crash or change its process. `beside`:
    whether another copy steps in the same process.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    trace, given = SharedBlock(TRACE), cloudpickle.dumps((trial, envs))
    process = EnvProcess(_play_there, (there, trace, given, lane, beside), "env check")
    process.start()
    there.close()
    limit, begun = max(START, envs.step_timeout), False
    try:
        while here.poll(limit):
            if isinstance(found := here.recv(), Trial):
                return found
            trial.steps, limit, begun = found, envs.step_timeout, True
        process.dump()
        time.sleep(0.1)
        rule, text = "hang" if begun else "build", f"took longer than {limit:g} s"
    except EOFError:
        process.join(1.0)
        rule, text = "crash", f"ended its process: {exit_text(process)}"
    finally:
        here.close()
        process.end()
    code = bytes(trace.memory).split(b"\0", 1)[0].decode(errors="replace")
    trial.broke[rule] = f"{f'step {trial.steps + 1}: ' if begun else ''}{text}{_place(code.splitlines())}"
    return trial


def _play_there(answer: Connection, trace: SharedBlock, given: bytes, lane: int, beside: bool) -> None:
    """Play the trial of `play_apart`. Send the number of steps before each step, and the trial at the end."""
    settle(trace)
    with user_modules.importing():
        trial, envs = pickle.loads(given)
    if not beside:
        return answer.send(trial.play(lambda: envs.open(trial.seed, lane), report=answer.send))
    mine = envs.share(inline=True)
    with contextlib.suppress(EnvFailure, UserError), closing(UnitPool(mine, trial.seed, 1)) as other:
        # each pool has its own global random generators
        trial.play(lambda: UnitPool(mine, trial.seed, 0), random_rows(other, trial.seed + 1), answer.send)
    answer.send(trial)
