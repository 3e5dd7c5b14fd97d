"""Plan of a run, shown before workers start: workers, memory, length, reproducibility, and how episodes end.

If the run needs more memory than is available, an error names an option to lower.

Imports no torch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from polyplay.buffers.league import League
from polyplay.core import platform, processes, tree
from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.core.platform import memory_limit
from polyplay.envs.atari import game, plays_games
from polyplay.envs.images import BARE
from polyplay.envs.make import native, split_steps
from polyplay.envs.spaces import describe_scaling
from polyplay.envs.tasks import task_parts
from polyplay.runs.flags import flag
from polyplay.workers.sizing import threads_of

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew

# Least memory that a run needs: bytes of its replays, queues, weights and Atari emulators. Memory of processes, other
# environments and the networks' computations is not counted.

MB = 2**20
Parts = Mapping[str, float]  # part → bytes
SIZES = {  # part of the memory → options that make this part larger
    "replay": ("capacity",),
    "rollouts": ("lanes", "unroll", "slots", "actors", "learners"),
    "weights": ("learners", "replicas", "actors"),
    "emulators": ("lanes", "actors"),
}
EMULATOR = 1.7 * MB  # measured memory of an emulator that plays an Atari game
PROPOSED = 0.75  # fraction of the available memory that a proposed setting fills; the rest is for uncounted memory


def size_text(n: float) -> str:
    """Return a number of bytes as text, such as 12.3 MB or 1.24 GB."""
    mb = n / MB
    return f"{mb / 1024:.3g} GB" if mb >= 1000 else f"{mb:.3g} MB"


# ------------------------------------------------------------------------------------------------- needed memory


def predict_memory(crew: Crew, net: Any) -> dict[str, float]:
    """Predict the memory that all processes of a run need. Return {part: bytes} for the parts rollouts, replay,
    weights, emulators, and other shared objects.

    `net`: the run's network, whose size is measured.
    """
    weights = bytes_of(net)
    parts = dict.fromkeys(("rollouts", "replay", "weights"), 0.0)
    for role in crew.roles:
        if role.spec is not None:
            own = role.spec.update.worker_nbytes(net) + weights * sum(part.vectors for part in role.spec.parts)
            own *= max(1.0, role.agents / role.n)
        else:  # the weights as one vector; unless the worker only serves agents, also the gradient
            own = weights * (0.0 if role.policy is None else 1.0 if "agents" in role.edges() else 2.0)
        parts["weights"] += role.n * own
        if role.held_replay is not None:
            parts["replay"] += role.n * role.held_replay.bytes(batches="out" not in role.holds)
        if role.source is not None:  # for each agent that a worker trains
            parts["rollouts"] += role.n * max(1.0, role.agents / role.n) * role.source.nbytes(net)
        if role.envs is not None and plays_games(role.envs):
            parts["emulators"] = parts.get("emulators", 0.0) + role.n * role.envs.lanes * EMULATOR
    for edge in crew.edges():
        parts[edge.memory] = parts.get(edge.memory, 0.0) + edge.nbytes
    return parts


def bytes_of(net: Any) -> int:
    """Return the size of a network's parameters and buffers in bytes."""
    return sum(x.numel() * x.element_size() for x in (*net.parameters(), *net.buffers()))


GAMES = ("toy", "game", "arena")  # built-in games: the worker steps them in its own thread, and can save their state


def kind_of(envs: Any) -> str:
    """Return how environments are stepped: ale, toy, game, arena, envpool, vector, inline, processes, or mixed."""
    kinds = kinds_of(envs)
    return kinds.pop() if len(kinds) == 1 else "mixed"


def kinds_of(envs: Any) -> set[str]:
    """Return all ways in which the environments of a run's tasks are stepped, named as in `kind_of`."""
    if envs.spec.tasks and not native(envs):
        return {_kind(part) for part in task_parts(envs)}
    return {_kind(envs)}


def _kind(envs: Any) -> str:
    if native(envs):
        return "ale"
    for name in (*GAMES, "envpool"):
        if envs.title.startswith(f"{name}:"):
            return name
    if envs.spec.vector:
        return "vector"
    return "processes" if split_steps(envs)[1] else "inline"


# ------------------------------------------------------------------------------------------ self-play by tree search


def search_role(crew: Any) -> Any:
    """Return the role (kind of workers) that plays games by tree search, or None if the run has no such workers."""
    return next((r for r in crew.roles if {"board", "out"} <= r.holds.keys()), None)


def searching(role: Any) -> str:
    """Describe how tree search chooses moves, and when it resigns a game."""
    options, resign = role.holds["options"], role.holds["resign"]
    quits = "below a value learned from a tenth of the games, which are played out" if resign.v is None else ""
    quits = "never" if resign.played_on == 1.0 else quits or f"below a value of {resign.v:g}"
    slow = f"; {how}" if (how := role.holds["board"].how) else ""
    return f"at most {options.simulations:,} evaluations per move; resigns {quits}{slow}"


SECONDS = 2.0  # seconds of the speed measurement
PATIENCE = 120.0  # seconds that the measurement waits for the first update, or for the first step of self-play
ANEW = "environments start new episodes"


@dataclass(frozen=True)
class Plan:
    """Plan of a run. Its `lines` are (heading, text) pairs to print."""

    memory: Mapping[str, float]  # part → bytes needed at least
    limit: int  # bytes of memory available
    checkpoint: int  # bytes of a checkpoint
    frames: int  # frames of the whole run
    left: float  # agent steps still to make
    warning: str = ""  # reason why the run will make no update; "": it will
    lines: list[tuple[str, str]] = field(default_factory=list)
    refused: str = ""  # reason why the run cannot work on this machine; "": it can

    @property
    def needs(self) -> float:
        """Bytes of memory that the run needs at least."""
        return sum(self.memory.values())


def make_plan(crew: Any, wired: Any, options: Any, done: int = 0) -> Plan:
    """Make the plan of a run.

    crew: the workers of the run, before their start. wired: the run's system.
    done: number of agent steps that a resumed run has already made.
    """
    from polyplay.nets.layers import outlines

    envs = wired.envs
    skip = envs.spec.frames_per_step
    spec = crew.learner.spec
    with outlines():
        net = wired.policy()
    parts = predict_memory(crew, net)
    total, limit, weights = spec.total, memory_limit(), bytes_of(net)
    checkpoint = weights * (1 + sum(part.vectors for part in spec.parts) + len(spec.update.optim.statistics))
    checkpoint *= max([1, *(r.agents for r in crew.roles)])
    if not any(r.asynchronous and r.learns_own for r in crew.roles):  # asynchronous learners do not save replays
        checkpoint += int(parts["replay"])
    best = "" if any(r.agents for r in crew.roles) else " and the best"
    when = f"every {options.checkpoint_every:g} s, the last {options.keep}{best} stay"
    lines = [
        *([("platform", text)] if (text := platform.describe()) else []),
        *([("atari", _atari(envs.spec.describe))] if game(envs) else []),
        *([("images", text)] if (text := _images(envs)) else []),
        *([("tasks", _tasks(envs))] if envs.spec.tasks else []),
        ("workers", _workers(crew)),
        ("network", _network(crew, wired, net)),
        *([("search", searching(role))] if (role := search_role(crew)) is not None else []),
        *([("cores", crew.divided)] if crew.divided else []),
        ("memory", _memory(parts, limit)),
        ("disk", f"{size_text(checkpoint)} per checkpoint without environments; {when}"),
        ("length", _length(options, total, done, skip)),
        ("updates", _updates(crew, total)),
        ("repeat", _repeats(crew)),
        ("resume", _resumes(crew)),
        ("episodes", episodes(envs)),
        *([("actions", text)] if (text := _scaling(wired)) else []),
    ]
    left = max(0.0, total - done)
    return Plan(parts, limit, checkpoint, int(total * skip), left, _warning(crew, total), lines)


# --------------------------------------------------------------------------------------------- lines of the plan


def _workers(crew: Any) -> str:
    roles = []
    for role in crew.roles:
        envs = role.envs
        lanes = f" with {_counted(envs.lanes, 'lane')} each{_steppers(envs)}" if envs else ""
        roles.append(f"{role.name} ×{role.n}{lanes}")
        if (table := role.edges().get("agents")) is not None:
            envs = table.envs
            roles[-1] += f" for {envs.active or envs.lanes} agents{_steppers(envs)}"
    threads = {r.name: threads_of(r, crew) for r in crew.roles}
    how = "compute threads: " + ", ".join(f"{n} {name}" for name, n in threads.items())
    if len(set(threads.values())) == 1:
        how = f"{_counted(max(threads.values()), 'compute thread')} each"
    if crew.serial:
        how = "all workers take turns in one thread"
    elif all(r.on == "thread" for r in crew.roles):
        how = "threads of one process, 1 compute thread each"
    here = _counted(cores(), "core")
    return f"{', '.join(roles)}; {how}; {here}; {_computing(crew)}; a lane is one parallel environment"


def _atari(facts: Mapping[str, str]) -> str:
    actions = facts["actions"].partition(":")[0]
    return f"frameskip {facts['frameskip']}; sticky {facts['sticky']}; actions {actions}; {facts['id']}"


def _tasks(envs: Any) -> str:
    spec = envs.spec
    turns = f"lane l of the run plays number l mod {len(spec.order)} of their order"
    hidden = "" if spec.mask is None else "; a mask hides the actions that a task lacks"
    return f"{len(spec.tasks)}: {spec.describe['tasks']}; {turns}; {spec.describe['actions']} for all{hidden}"


def _images(envs: Any) -> str:
    spec, shown = envs.spec, envs.images
    fields, asked = dict(tree.leaves(spec.obs)), shown is not None and shown.leaves is not None
    if not asked and (game(envs) or not spec.image_leaves):
        return ""
    found = ", ".join(f"{path or BARE} {list(fields[path].shape)}" for path in spec.image_leaves) or "none"
    return f"{found}{f' ({shown})' if shown and str(shown) else ''}{', by --images' if asked else ''}"


def _network(crew: Any, wired: Any, net: Any) -> str:
    text = wired.policy.choice
    if (role := search_role(crew)) is not None:
        from polyplay.search.evaluators import ways

        found = ways(role.holds["backend"], crew.precision, crew.placement.devices[0].partition(":")[0])
        names = [f"{backend} in {precision}" for backend, precision in found]
        fastest = f"the fastest of {', '.join(names)}, measured when it starts"
        text += f"; self-play by {fastest if names[1:] else names[0]}"
    return f"{text}; {sum(p.numel() for p in net.parameters()):,} parameters"


UPDATES = {"auto": "updates compiled where that is faster", "on": "updates compiled", "off": "updates not compiled"}


def _computing(crew: Any) -> str:
    from polyplay.nets.device import device_name, is_half

    devices, kind = crew.placement.devices, crew.placement.devices[0].partition(":")[0]
    text = f"networks in {'bfloat16' if is_half(crew.precision, kind) else 'float32'}"
    if crew.placement.on_cpu:
        return f"{text} on the CPU, {UPDATES[crew.control.compile]}"
    acting = [r.name for r in crew.roles if r.envs and not r.source]
    others = f" ({acting[0]} on the CPU)" if acting and crew.placement.actors_on == "cpu" else ""
    graphs = "" if crew.control.compile == "off" else ", by CUDA graphs"
    return f"{text} on {', '.join(devices)}, {device_name(devices[0])}{others}{graphs}"


def _steppers(envs: Any) -> str:
    n = envs.active or min(envs.workers or cores(), envs.lanes // envs.groups)  # as the pool counts them
    here, others = split_steps(envs) if (kind := kind_of(envs)) == "processes" else (True, 0)
    apart = _counted(envs.active or others, "environment process")
    some = {
        "ale": _counted(n, "ale-py thread"),
        "processes": f"stepped by the worker itself and {apart}" if here else apart,
    }
    some |= dict.fromkeys(("inline", *GAMES), "stepped by the worker itself")
    some |= {
        "mixed": "each task stepped in its own way",
        "vector": "a vector environment, stepped by the worker itself",
        "envpool": "EnvPool's threads",
    }
    return f" ({some[kind]})"


def _memory(parts: Mapping[str, float], limit: int) -> str:
    shown = sorted((k for k in parts if parts[k] >= MB), key=lambda k: -parts[k])
    text = "".join(f"; {k} {size_text(parts[k])}" for k in shown)
    games, others = (", emulators", "") if "emulators" in parts else ("", ", environments")
    least = f"at least {size_text(sum(parts.values()))} of {size_text(limit)} for replays, queues{games} and weights"
    return f"{least}{text}; not counted: processes{others}, networks' working memory"


def _length(options: Any, total: float, done: int, skip: int) -> str:
    text = f"{int(total):,} agent steps" + f" = {int(total * skip):,} frames" * (skip > 1)
    text += f"; {done * skip:,} frames are already done" * bool(done)
    sooner = [f"{options.minutes:g} minutes"] if options.minutes is not None else []
    sooner += [f"a return of {options.until_return:g}"] if options.until_return is not None else []
    return text + f"; or until {' or '.join(sooner)}" * bool(sooner)


def _updates(crew: Any, total: float) -> str:
    rows, n = max(1, round(_steps_per_update(crew))), updates_of(crew, total)
    replay, passes = crew.learner.replay, crew.learner.spec.passes
    if replay and replay.ratio is None:
        return f"batches of {rows:,}, as many as time allows"
    if replay:
        return f"{_counted(n, 'update')}, one every {rows:,} agent steps after the first {first_sample(crew):,}"
    if passes is None:
        return f"about {_counted(n, 'update')} of {rows:,} rows"
    each = f"{_counted(passes.epochs, 'epoch')} of {_counted(passes.minibatches, 'minibatch')}"
    made = _counted(n * passes.updates, "update")
    lag = f" (lag 0 to {passes.updates - 1} within a rollout)" * (passes.updates > 1)
    return f"about {made}: {_counted(n, 'rollout')} of {rows:,} rows, {each} each{lag}"


def _counted(n: int, noun: str) -> str:
    plural = "es" if noun.endswith(("batch", "process")) else "s"
    return f"{n:,} {noun}{plural * (n != 1)}"


def minutes_over(minutes: float) -> str:
    return f"{minutes:g} minute{' is' if minutes == 1 else 's are'} over"


def _steps_per_update(crew: Any) -> float:
    """Return the agent steps for one update, or for one rollout if learners make several passes over a rollout."""
    role = crew.learner
    together = 1 if role.asynchronous or role.agents else role.n
    ratio = (role.replay.ratio if role.replay else None) or 1.0
    return math.prod(role.source.shape) * together / ratio


def first_sample(crew: Any) -> int:
    """Return the number of agent steps before the first batch is drawn from the replay buffers, or 0 without any."""
    return sum(r.n * r.held_replay.start for r in crew.roles if r.held_replay)


def updates_of(crew: Any, total: float) -> int:
    """Return the number of updates in `total` agent steps, or of rollouts if learners make several passes over each."""
    first, each = first_sample(crew), _steps_per_update(crew)
    return max(0, math.floor((total - first) / each)) if first else math.ceil(total / each)


def _warning(crew: Any, total: float) -> str:
    first = first_sample(crew)
    replay = crew.learner.replay
    free = replay is not None and replay.ratio is None
    if not first or (total > first if free else updates_of(crew, total)):
        return ""
    end = f"the run ends after {int(total):,} agent steps, but the first update needs more than {first:,}"
    return f"no update will be made: {end} (--learning-starts); lower --learning-starts or raise --steps"


def _repeats(crew: Any) -> str:
    if not crew.placement.on_cpu:
        return "not bitwise reproducible: sums on a GPU have no fixed order"
    if not _fixed(crew):
        return "not bitwise reproducible, because workers are asynchronous; with --serial it is"
    why = " (lag 0)" if not crew.serial and _crosses(crew) else ""
    sets = processes.describe_sets(crew.serial)
    until = "; not after updates are compiled" if crew.control.compile == "auto" else ""  # a clock decides when
    fixed = "bitwise reproducible with the same seed and settings, if the environment is deterministic"
    return f"{fixed}{sets}{why}{until}"


def _crosses(crew: Any) -> bool:
    """Tell whether some workers learn from rollouts or batches that other workers make."""
    return any("source" in r.edges() for r in crew.roles)


def _fixed(crew: Any) -> bool:
    """Tell whether the results do not depend on the timing of workers."""
    fixed = all(r.envs.fixed for r in crew.roles if r.envs)
    free = any(r.asynchronous and r.n > 1 for r in crew.roles)
    return crew.serial or (fixed and not free and (not _crosses(crew) or _in_step(crew)))


def resumes_exactly(crew: Any) -> bool:
    """Tell whether a resumed run gives bitwise the results of a run without a stop, if environments can be saved."""
    free = any(r.asynchronous or (r.find(League) and not crew.serial) for r in crew.roles)
    return crew.placement.on_cpu and _fixed(crew) and not (_drawn_ahead(crew) or free or _forgets(crew))


def _drawn_ahead(crew: Any) -> bool:
    """Tell whether learners get batches from a replay buffer in another worker."""
    return any(r.source and r.replay and not r.held_replay for r in crew.roles)


def _forgets(crew: Any) -> bool:
    """Tell whether auxiliary losses use recent steps that checkpoints do not save."""
    terms = {name for r in crew.roles if r.spec and not r.agents for name in r.spec.loss.terms}
    return bool(terms & {"reward_prediction", "value_replay"})


def _in_step(crew: Any) -> bool:
    """Tell whether each update uses one rollout of every actor, and all actors wait for the update."""
    actors = [r for r in crew.roles if "out" in r.holds]
    learners = [r for r in crew.roles if "source" in r.edges()]
    if any(r.replay for r in learners) or any(r.holds.get("lag") != 0 for r in actors):
        return False
    return all(r.source.n * r.n == sum(a.n for a in actors) for r in learners)


def _resumes(crew: Any) -> str:
    kinds = set[str]().union(*(kinds_of(r.envs) for r in crew.roles if r.envs))
    ahead = _drawn_ahead(crew)
    whole = any(r.spec and r.spec.update.pauses for r in crew.roles)
    if any(r.find(League) for r in crew.roles) and not crew.serial:
        return "restores each agent's weights, optimizer, counters; ratings, past agents; matches under way are lost"
    if whole and not ahead:
        return f"restores weights, optimizer, counters; {ANEW}, replays start empty"
    if not whole and any(r.asynchronous for r in crew.roles):
        return f"restores weights, optimizer, counters, saved while workers change them; {ANEW}"
    if not kinds <= {*GAMES, "processes", "inline"}:
        return f"restores weights, optimizer, counters, rollouts in flight; {ANEW}"
    saved = "restores all, environments too" + ("" if kinds <= {*GAMES} else " if they can be saved")
    if ahead:
        return f"{saved}; batches drawn ahead are drawn again"
    if resumes_exactly(crew):
        return f"{saved}; bitwise where the run repeats, unless a stop drops a slow rollout"
    forgets = _fixed(crew) and _forgets(crew)
    return f"{saved}; not bitwise: {'recent rows of auxiliary tasks are lost' if forgets else 'workers run freely'}"


def episodes(envs: Any) -> str:
    """Describe how episodes end, and which value estimate replaces the later rewards at each kind of end."""
    facts = envs.spec.describe
    ended, cut = "", f" (time limit: {facts.get('time limit', 'its own')})"
    if game(envs):
        life = " or life" if facts.get("life loss", "ignored") != "ignored" else ""
        ended, cut = f" by a lost game{life}", f" after {facts.get('max frames')} frames"
    resets = f"; resets: {text}" if (text := facts.get("resets", "")) else ""
    return f"terminated{ended}: value 0; truncated{cut}: value of the last observation{resets}"


def _scaling(wired: Any) -> str:
    return describe_scaling(wired.envs.spec.action, wired.policy.scales_actions)


# ------------------------------------------------------------------------------------------------------ memory check


def check_plan(plan: Plan, settings: Any) -> Plan:
    """Return the plan if enough memory is available. Otherwise raise UserError, which names an option to lower."""
    if plan.needs <= plan.limit:
        return plan
    most = max(plan.memory, key=lambda k: plan.memory[k])
    needs, part, limit = size_text(plan.needs), size_text(plan.memory[most]), size_text(plan.limit)
    what = f"memory: this takes at least {needs} ({most} {part}), but only {limit} are available"
    share = (PROPOSED * plan.limit - plan.needs) / plan.memory[most] + 1
    found = {name: n for name in SIZES.get(most, ()) if type(n := vars(settings).get(name)) is int}
    fits = [f"{flag(name)} to about {int(share * n):,}" for name, n in found.items() if share * n >= 1]
    lower = fits[:1] or [" and ".join(flag(name) for name, n in found.items() if n > 1)]
    raise UserError(f"{what}; {f'lower {lower[0]}' if lower[0] else 'no smaller setting fits: use a larger machine'}")


# ------------------------------------------------------------------------------------------ speed measurement


def measure_speed(crew: Any, metrics: tuple[str, ...], plan: Plan, skip: int) -> list[tuple[str, str]]:
    """Run the workers, and measure their speed for two seconds after the first update. Return lines of the plan about
    speed, memory and estimated time, or [] if the plan is refused.
    """
    from polyplay.runs.crew_metrics import memory_mb
    from polyplay.runs.terminal import clock_text

    if plan.refused:
        return []
    first = "updates" if search_role(crew) is None else "steps"
    printed = set[str]()  # each text is printed once, even if several workers send it

    def log(kind: str, text: str) -> None:
        if kind != "game" and text not in printed:
            printed.add(text)
            print(text, file=sys.stderr)

    crew.log = log
    crew.start(metrics)
    try:
        _until(crew, lambda: crew.counters.column(first).max() >= 1, PATIENCE)
        before, done = time.monotonic(), float(crew.counters.column("steps").sum())
        _until(crew, lambda: False, SECONDS)
        rate = (float(crew.counters.column("steps").sum()) - done) / (time.monotonic() - before)
        used = memory_mb()
    finally:
        crew.stop()
    if rate <= 0:
        return [("measured", f"no step within {SECONDS:g} s; {used:,.0f} MB")]
    frames = f"{rate * skip:,.0f} frames/s, " * (skip > 1)
    steps = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    text = f"{frames}{steps} agent steps/s for {SECONDS:g} s; {used:,.0f} MB"
    return [("measured", text), ("eta", f"{clock_text(plan.left / rate)} at this speed")]


def _until(crew: Any, enough: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not enough() and not crew.poll(0.05):
        pass
