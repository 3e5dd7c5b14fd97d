"""The plan of a run, told before anything is started: who works, how much memory, how long, what is exact, what ends an
episode. Read from the wiring and its specs. A plan that cannot work is refused, with the nearest that can.

Imports no torch.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.machine import cores
from polyplay.common.team import members
from polyplay.envs.action_range import describe_scaling
from polyplay.runs import memory_estimate
from polyplay.runs.flags import flag
from polyplay.runs.load import compute_threads
from polyplay.runs.memory_estimate import GAMES, kind_of, size_text, workers_of
from polyplay.runs.search_estimate import estimate_lines, moves_per_second, search_role
from polyplay.workers.sizing import threads_of

SECONDS = 2.0  # of the micro-benchmark
PATIENCE = 120.0  # seconds to wait for the first update in it
# what may be halved to make a plan fit, in the order in which that is tried
FIELDS = ["lanes", "batch", "lanes batch", "unroll", "slots", "actors", "replicas", "learners", "actors batch"]
FIELDS += ["capacity", "learners batch capacity"]
HALVINGS = 12
COMPILES = "the replay's loops are compiled first, once per machine; this takes about half a minute"
ANEW = "environments start new episodes"


@dataclass(frozen=True)
class Plan:
    """`lines` for people; the rest for whoever decides."""

    memory: Mapping[str, float]  # predicted bytes, by what they are for
    limit: int  # bytes there are
    checkpoint: int  # bytes of one
    frames: int  # in all
    left: float  # agent steps to go
    passes: int = 1  # updates from one rollout, at most
    warning: str = ""  # why nothing will be learnt
    lines: list[tuple[str, str]] = field(default_factory=list)
    refused: str = ""  # why it can't be done here

    @property
    def needs(self) -> float:
        """Bytes at least."""
        return sum(self.memory.values())


def make_plan(crew: Any, wired: Any, options: Any, done: int = 0) -> Plan:
    """The plan of a wired crew that has `done` agent steps behind it."""
    from polyplay.nets.outline import outlines

    envs = wired.envs
    skip = envs.spec.frames_per_step
    spec = next(r.spec for r in crew.roles if r.learner and r.spec)
    with compute_threads(1):  # others may be at work on this machine: two threads that wait for each other lose most
        with outlines():
            net = wired.policy()
        parts = memory_estimate.predict_memory(crew, envs.spec, net)
    total, limit, weights = spec.total, memory_estimate.memory_limit(), memory_estimate.bytes_of(net)
    checkpoint = weights * (1 + bool(spec.target) + len(spec.update.optim.statistics))
    own = any(r.apart and r.learns_own for r in crew.roles)  # replays that nobody saves
    checkpoint *= max([1, *(len(r.served) for r in crew.roles)])
    checkpoint += int(0 if own else parts["replay"])
    best = "" if any(r.served for r in crew.roles) else " and the best"
    when = f"every {options.checkpoint_every:g} s, the last {options.keep}{best} stay"
    lines = [
        ("workers", _workers(crew)),
        *([("network", _network(wired, net))] if hasattr(wired.policy, "choice") else []),
        *([("cores", crew.divided)] if crew.divided else []),
        *([("gradient", text)] if (text := _gradient(crew, net)) else []),
        ("memory", _memory(parts, limit)),
        ("disk", f"{size_text(checkpoint)} per checkpoint without environments; {when}"),
        ("length", _length(options, total, done, skip)),
        ("updates", _updates(crew, total)),
        ("repeat", _repeats(crew)),
        ("resume", _resumes(crew)),
        ("episodes", episodes(envs)),
        *([("actions", text)] if (text := _scaling(wired)) else []),
    ]
    if any(r.held_replay for r in crew.roles):
        from polyplay.buffers.replay import rng, row_kernels  # with numba
        from polyplay.common.compiled import CompileState

        lines += [] if CompileState.uncached or rng.is_compiled(row_kernels.append) else [("once", COMPILES)]
    left = max(0.0, total - done)
    passes = spec.passes.updates if spec.passes else 1
    return Plan(parts, limit, checkpoint, int(total * skip), left, passes, _warning(crew, total), lines)


# ----------------------------------------------------------------------------------------------------- in words


def _workers(crew: Any) -> str:
    roles = []
    for role in crew.roles:
        envs = role.envs
        lanes = f" with {envs.lanes} lane{'s' * (envs.lanes != 1)} each{_steppers(envs)}" if envs else ""
        roles.append(f"{role.name} ×{role.n}{lanes}")
        if role.agents is not None:
            envs = role.agents.envs
            roles[-1] += f" for {envs.active or envs.lanes} agents{_steppers(envs)}"
    threads = {r.name: threads_of(r, crew) for r in crew.roles}
    how = "compute threads: " + ", ".join(f"{n} {name}" for name, n in threads.items())
    if len(set(threads.values())) == 1:
        most = max(threads.values())
        how = f"{most} compute thread{'s' * (most > 1)} each"
    if crew.serial:
        how = "all workers take turns in one thread"
    elif all(r.on == "thread" for r in crew.roles):
        how = "threads of one process, 1 compute thread each"
    numbers = f"; networks in {crew.precision}" if crew.precision != "float32" else ""
    numbers += _places(crew)
    return (
        f"{', '.join(roles)}; {how}; {cores()} core{'s' * (cores() != 1)}{numbers}; a lane is one parallel environment"
    )


def _network(wired: Any, net: Any) -> str:
    """What was chosen."""
    return f"{wired.policy.choice}; {sum(p.numel() for p in net.parameters()):,} parameters"


def _gradient(crew: Any, net: Any) -> str:
    """How a replica's threads divide a batch, where they do (learning.gradient_parts); "" elsewhere."""
    for role in crew.roles:
        replay = role.held_replay
        filtered = getattr(role.spec and role.spec.update, "outliers", None)
        if role.learner and replay is not None and not replay.sequence and not filtered:
            alone = crew.serial or crew.trace or role.on == "thread" or not crew.where.on_cpu
            n = 1 if alone else members(replay.batch, threads_of(role, crew), sum(p.numel() for p in net.parameters()))
            if n > 1:
                return f"{n} threads divide each batch of {replay.batch} transitions"
    return ""


def _places(crew: Any) -> str:
    """Where networks compute, unless it is the CPU because that was asked for or is all there is."""
    if crew.where.on_cpu:
        return ""
    from polyplay.nets.device import device_name

    acting = [r.name for r in crew.roles if r.envs and not r.spec]
    others = acting if crew.where.actors_on == "cpu" else []
    return f"; on {', '.join(crew.where.devices)}, {device_name(crew.where.devices[0])}" + (
        f" ({others[0]} on the CPU)" if others else ""
    )


def _steppers(envs: Any) -> str:
    n = envs.active or workers_of(envs)
    some = {"ale": f"{n} ale-py thread{'s' * (n > 1)}", "processes": f"{n} environment process{'es' * (n > 1)}"}
    some |= {"inline": "stepped by the worker itself", "vector": "a vector environment, stepped by the worker itself"}
    by = some.get(kind_of(envs))
    return f" ({by})" if by else ""


def _memory(parts: Mapping[str, float], limit: int) -> str:
    told = sorted((k for k in parts if parts[k] >= memory_estimate.MB), key=lambda k: -parts[k])
    text = ", ".join(f"{k} {size_text(parts[k])}" for k in told)
    return f"about {size_text(sum(parts.values()))} of {size_text(limit)}, predicted: {text}"


def _length(options: Any, total: float, done: int, skip: int) -> str:
    text = f"{int(total):,} agent steps" + (f" = {int(total * skip):,} frames" if skip > 1 else "")
    text += f"; {done * skip:,} frames are already done" if done else ""
    sooner = [minutes_text(options.minutes)] if options.minutes is not None else []
    sooner += [f"a return of {options.until_return:g}"] if options.until_return is not None else []
    return text + (f"; or until {' or '.join(sooner)}" if sooner else "")


def _updates(crew: Any, total: float) -> str:
    rows, n = rows_per_update(crew), updates_of(crew, total)
    replays = [r.drawn_replay for r in crew.roles if r.learner and r.drawn_replay]
    passes = next((r.spec.passes for r in crew.roles if r.spec), None)
    if any(replay.ratio is None for replay in replays):
        return f"batches of {rows:,}, as many as there is time for"
    if replays:
        return f"{_counted(n, 'update')}, one every {rows:,} agent steps after the first {first_sample(crew):,}"
    if passes is None:
        return f"about {_counted(n, 'update')} of {rows:,} rows"
    each = f"{_counted(passes.epochs, 'epoch')} of {_counted(passes.minibatches, 'minibatch')}"
    made = _counted(n * passes.updates, "update")
    lag = f" (lag 0 to {passes.updates - 1} within a rollout)" * (passes.updates > 1)
    return f"about {made}: {_counted(n, 'rollout')} of {rows:,} rows, {each} each{lag}"


def _counted(n: int, noun: str) -> str:
    plural = "es" if noun.endswith("batch") else "s"
    return f"{n:,} {noun}{plural * (n != 1)}"


def minutes_text(minutes: float) -> str:
    return f"{minutes:g} minute{'s' * (minutes != 1)}"


def minutes_over(minutes: float) -> str:
    return f"{minutes_text(minutes)} {'is' if minutes == 1 else 'are'} over"


def rows_per_update(crew: Any) -> int:
    """Agent steps that one update of all learners together takes, or all passes over one rollout."""
    return max(1, round(_steps_per_update(crew)))


def _steps_per_update(crew: Any) -> float:
    role = next(r for r in crew.roles if r.learner)
    together, replay = 1 if role.apart or role.served else role.n, role.drawn_replay
    if replay is not None:
        return replay.batch * max(replay.sequence, 1) * together / (replay.ratio or 1.0)
    return together * math.prod(role.source.shape if role.source else (role.envs.lanes, role.T))


def first_sample(crew: Any) -> int:
    """Agent steps before replays are drawn from, over all of them; 0: there is none."""
    return sum(r.n * r.held_replay.start for r in crew.roles if r.held_replay)


def updates_of(crew: Any, total: float) -> int:
    """Updates, or rollouts with passes over each, in so many agent steps."""
    first, each = first_sample(crew), _steps_per_update(crew)
    return max(0, math.floor((total - first) / each)) if first else math.ceil(total / each)


def _warning(crew: Any, total: float) -> str:
    first = first_sample(crew)
    free = any(r.drawn_replay.ratio is None for r in crew.roles if r.learner and r.drawn_replay)
    if not first or (total > first if free else updates_of(crew, total)):
        return ""
    end = f"the run ends after {int(total):,} agent steps, but the first update needs more than {first:,} (--start)"
    return f"no update will be made: {end}; lower --start or raise --steps"


def _repeats(crew: Any) -> str:
    if not crew.where.on_cpu:
        return "not bitwise reproducible: sums on a GPU have no fixed order"
    if not _fixed(crew):
        return "not bitwise reproducible, because workers are asynchronous; with --serial it is"
    why = " (lag 0)" if not crew.serial and any(r.source for r in crew.roles) else ""
    return f"bitwise reproducible with the same seed and settings, if the environment is deterministic{why}"


def _fixed(crew: Any) -> bool:
    """Whether no clock decides what workers do."""
    fixed = all(r.envs.fixed for r in crew.roles if r.envs)
    free = any(r.apart and r.n > 1 for r in crew.roles)
    queues = any(r.source for r in crew.roles)
    return crew.serial or (fixed and not free and (not queues or _in_step(crew)))


def resumes_exactly(crew: Any) -> bool:
    """Whether a resumed run learns, to the bit, as one that was never stopped, if environments can be saved: then
    checkpoints hold all that decides what comes next.
    """
    ahead = any(r.drawn_replay and not r.held_replay for r in crew.roles)
    free = any(r.apart or r.in_league for r in crew.roles)
    return crew.where.on_cpu and _fixed(crew) and not (ahead or free or _forgets(crew))


def _forgets(crew: Any) -> bool:
    """Whether auxiliary tasks draw from a memory of recent rows, which no checkpoint has."""
    terms = {name for r in crew.roles if r.spec for name in getattr(r.spec.loss, "terms", ())}
    return bool(terms & {"reward_prediction", "value_replay"})


def _in_step(crew: Any) -> bool:
    """Whether acting waits for every update, and every update takes one rollout of each actor."""
    actors = [r for r in crew.roles if r.out is not None]
    learners = [r for r in crew.roles if r.source is not None]
    if any(r.held_replay or r.drawn_replay for r in learners):
        return False
    waits = all(r.lag == 0 for r in actors)
    return waits and all(r.source.n * r.n == sum(a.n for a in actors) for r in learners)


def _resumes(crew: Any) -> str:
    kinds = {kind_of(r.envs) for r in crew.roles if r.envs}
    ahead = any(r.drawn_replay and not r.held_replay for r in crew.roles)
    whole = any(r.spec and getattr(r.spec.update, "whole", False) for r in crew.roles)
    if any(r.in_league for r in crew.roles):
        return "restores each agent's weights, optimiser, counters; ratings, past selves; matches under way are lost"
    if whole and not ahead:
        return f"restores weights, optimiser, counters; {ANEW}, replays start empty"
    if not whole and any(r.apart for r in crew.roles):
        return f"restores weights, optimiser, counters, saved while workers change them; {ANEW}"
    if not kinds <= {*GAMES, "processes", "inline"}:
        return f"restores weights, optimiser, counters, rollouts in flight; {ANEW}"
    saved = "restores all, environments too" + ("" if kinds <= {*GAMES} else " if they can be saved")
    if ahead:
        return f"{saved}; batches drawn ahead are drawn again"
    if resumes_exactly(crew):
        return f"{saved}; bitwise, unless a stop drops a slow rollout"
    forgets = _fixed(crew) and _forgets(crew)
    return f"{saved}; not bitwise: {'recent rows of auxiliary tasks are lost' if forgets else 'workers run freely'}"


def episodes(envs: Any) -> str:
    """What ends an episode, and the value beyond its end."""
    facts = envs.spec.describe
    ended, cut = "", f" (time limit: {facts.get('time limit', 'its own')})"
    if envs.title.startswith("ALE/"):
        life = " or life" if facts.get("life loss", "ignored") != "ignored" else ""
        ended, cut = f" by a lost game{life}", f" after {_number(facts.get('max frames'))} frames"
    return f"terminated{ended}: value 0; truncated{cut}: value of the last observation"


def _scaling(wired: Any) -> str:
    """What becomes of a policy's numbers where actions are real; "": there are none such."""
    given = getattr(wired.policy, "options", {})
    deterministic = getattr(wired.policy, "deterministic", False)
    return describe_scaling(wired.envs.spec.action, deterministic or given.get("actions", "scale") == "scale")


def _number(text: str | None) -> str:
    return f"{int(text):,}" if text and text.isdigit() else str(text)


# ------------------------------------------------------------------------------------------------------ refusal


def check_plan(plan: Plan, settings: Any, again: Callable[[Any], Plan]) -> Plan:
    """The plan itself, or UserError if it needs more memory than there is. `again`: the plan of other settings."""
    if plan.needs <= plan.limit:
        return plan
    most = max(plan.memory, key=lambda k: plan.memory[k])
    needs, part, limit = size_text(plan.needs), size_text(plan.memory[most]), size_text(plan.limit)
    what = f"memory: this takes about {needs} ({most} {part}), there are {limit}"
    found = nearest_fit(plan, settings, again)
    given = " ".join(f"{flag(k)} {v}" for k, v in found.items())
    raise UserError(f"{what}; {f'what fits: {given}' if found else 'no smaller setting fits: take a larger machine'}")


def nearest_fit(plan: Plan, settings: Any, again: Callable[[Any], Plan]) -> dict[str, int]:
    """The fields to change and their values, halved as little as will do; empty if nothing fits."""
    fixed = plan.memory.get("processes", 0.0)
    over = (plan.needs - fixed) / (plan.limit - fixed) if fixed < plan.limit else 1.0
    for k in range(max(1, math.ceil(math.log2(over))), HALVINGS + 1):
        for names in FIELDS:
            changed = {name: getattr(settings, name, 0) >> k for name in names.split()}
            if all(changed.values()) and _fits(changed, settings, again):
                return changed
    return {}


def _fits(changed: dict[str, int], settings: Any, again: Callable[[Any], Plan]) -> bool:
    try:
        other = again(dataclasses.replace(settings, **changed))
    except UserError:
        return False
    return other.needs <= other.limit


# -------------------------------------------------------------------------------------------------- measured


def measure_speed(crew: Any, metrics: tuple[str, ...], plan: Plan, skip: int) -> list[tuple[str, str]]:
    """Start the crew, let it run for two seconds after its first update, stop it: speed, time to go, memory. Nothing of
    a plan that is refused. Of self-play an estimate, if its first update is far away.
    """
    from polyplay.runs.reports.process_usage import memory_mb
    from polyplay.runs.reports.terminal import clock_text

    if (role := search_role(crew)) is not None:
        moves, evaluations = moves_per_second(crew, role)
        if plan.refused or first_sample(crew) > PATIENCE * moves:
            return estimate_lines(role, moves, evaluations, plan.left)
    if plan.refused:
        return []
    crew.start(metrics)
    try:
        _until(crew, lambda: crew.counters.column("updates").max() >= 1, PATIENCE)
        before, steps = time.monotonic(), float(crew.counters.column("steps").sum())
        _until(crew, lambda: False, SECONDS)
        rate = (float(crew.counters.column("steps").sum()) - steps) / (time.monotonic() - before)
        used = memory_mb()
    finally:
        crew.stop()
    if rate <= 0:
        return [("measured", f"no step within {SECONDS:g} s; {used:,.0f} MB")]
    frames = f"{rate * skip:,.0f} frames/s, " * (skip > 1)
    text = f"{frames}{rate:,.0f} agent steps/s for {SECONDS:g} s; {used:,.0f} MB"
    return [("measured", text), ("eta", f"{clock_text(plan.left / rate)} at that speed")]


def _until(crew: Any, enough: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not enough() and not crew.poll(0.05):
        pass
