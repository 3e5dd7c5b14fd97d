"""Plan, train and resume a population: several runs that are trained together (population-based training)."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from polyplay import systems
from polyplay.buffers import replay
from polyplay.core import checkpoint, machine, platform
from polyplay.core.errors import EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.files import Row, is_row, parse_json, read_lines, refusal_text, write_json
from polyplay.envs.pool import task_words
from polyplay.envs.tasks import TaskReturns
from polyplay.population import store as states
from polyplay.population import trainer
from polyplay.population.rules import Prior
from polyplay.runs import directory as run_files
from polyplay.runs import flags, load, reporter, run, terminal
from polyplay.runs import options as run_options
from polyplay.runs.options import Page, RunOptions, Settings, Sources
from polyplay.runs.population_report import PopulationPanel
from polyplay.runs.run import RunResult
from polyplay.runs.session import RunSegment, Supervisor
from polyplay.systems import _presets
from polyplay.workers.crew import Crew

# Options whose values may differ between members. For each value, a member is built, to check that members with
# different values have the same network, optimizer and replay.


ALIKE = {"env", *run_options.HOW_MADE, "frames", *run_options.LIMITS, "seed", "hidden", "activation"}


def check_varied(words: Iterable[str]) -> None:
    """Raise UserError if --vary names an option that must have one value for all members, such as the game."""
    for word in words:
        name = word.partition("=")[0].replace("-", "_")
        if name in ALIKE or name in flags.option_types(RunOptions):
            raise UserError(f"--vary: {name} given, but all members share its value: leave it out")


def anew_of(settings: Any, crew: Crew, priors: dict[str, Prior], types: flags.OptionTypes) -> frozenset[str]:
    """Return the varied options that change the number of lanes (parallel environments) or the length of rollouts. If a
    member copies such an option, its lanes must restart.

    Raises UserError if a value is not allowed, or if it changes the network, the optimizer or the replay buffer.
    """
    anew = set[str]()
    for name, prior in priors.items():
        values = prior.choices or (prior.low, prior.high)
        checked = [flags.check_value(f"--vary {name}", value, types[name]) for value in values]
        first, *others = (_built(settings, crew, {name: value}) for value in checked)
        for value, other in zip(values[1:], others, strict=True):
            _refuse(f"--vary: {name}={value} given, but it", first, other)
            if first["lanes"] != other["lanes"]:
                anew.add(name)
    return frozenset(anew)


def _built(settings: Any, crew: Crew, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Build a member with these values, and describe its network, optimizer, replay buffer and lanes."""
    other, wired = _presets.wire_member(settings, crew, values)
    if wired.player is not None:
        raise UserError(f"--over: {settings.over} given, but its self-play has no score: choose another system")
    spec = other.learner.spec
    assert spec is not None
    with load.compute_threads(1):
        network = {name: tuple(tensor.shape) for name, tensor in wired.policy().state_dict().items()}
    replays = {role.name: replay.layout(role.held_replay) for role in other.roles if role.held_replay}
    lanes = [
        [(r.name, r.n, r.envs and (r.envs.lanes, r.envs.groups), r.source and r.source.steps) for r in other.roles],
        [edge.nbytes for edge in other.edges() if edge.memory == "rollouts"],
    ]
    optimizer = {"": spec.update.optim.title, "statistics": spec.update.optim.statistics}
    return {"network": network, "optimizer": optimizer, "replay": replays, "lanes": {"": lanes}}


COPIED = {
    "network": "the network, whose weights members copy",
    "optimizer": "the optimizer, whose state members copy",
    "replay": "the replay, which a member keeps",
}


def _refuse(what: str, own: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> None:
    for part, meaning in COPIED.items():
        for name in own[part] | other[part]:
            mine, theirs = own[part].get(name, "absent"), other[part].get(name, "absent")
            if mine != theirs:
                text = f"{name} {mine} becomes {theirs}".strip()
                raise UserError(f"{what} changes {meaning}: {text}; leave it out")


# A session of a member trains its run, as an ordinary run, until the next decision about the member.


TAIL = 1 << 16  # bytes at a file's end that are searched for a member's last games
SEEDS = 1000  # seeds reserved per population, so that members of two populations never share a seed


@dataclass(frozen=True)
class MemberRunner:
    """Callable that trains a member in one session, up to the next decision about it (see trainer.RunMember)."""

    directory: Path
    system: str
    settings: Settings
    options: RunOptions
    sources: Sources
    score: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # options that the user changed on a resume
    elsewhere: Callable[..., tuple[str, str]] | None = None  # runs a session on another machine

    def __call__(
        self, m: Row, until: int, stopping: Callable[[], str], say: Callable[[str, str], None]
    ) -> trainer.MemberSession:
        """Train member `m` up to agent step `until`. If only this member fails, return its failure. Raises UserError or
        WorkerLost if the other members would fail, too.
        """
        name, begun = f"member {m['member']:02d}", time.monotonic()
        directory, part = states.Store(self.directory).member(m["member"]), RunSegment(until, stopping)
        output = WarningReader(lambda text: say("caution", f"{name}: {text}"))
        try:
            if self.elsewhere is not None:
                ended, why = self.elsewhere(self, directory, m, part, say)
            else:
                with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                    ended, why = self._run(directory, m, part)
        except (NotFinite, EnvFailure, WorkerLost) as e:
            first, *others = str(e).rstrip().split("\n")  # a traceback's last line names the exception
            ended = "failed" if isinstance(e, NotFinite) else "lost"
            why = " ".join([first, *(line for line in others[-1:] if line not in first)])
        except UserError as e:
            raise UserError(f"{name}: {e}") from None
        except OSError as e:
            raise WorkerLost(f"{name}: {refusal_text(e)}") from None
        counters = _newest_counters(directory)
        games = last_returns(directory, m["copied"], self.score)
        return trainer.MemberSession(ended, why, counters["steps"], counters["frames"], games, time.monotonic() - begun)  # type: ignore[arg-type]

    def _run(self, directory: Path, m: Row, part: RunSegment) -> tuple[str, str]:
        """Train on this machine. Return (how the session ended, why)."""
        if (directory / "config.json").exists():
            contents = run_files.read_config(directory)
            if any(contents["config"].get(name) != value for name, value in m["values"].items()):
                contents["config"] |= m["values"]
                write_json(directory / "config.json", contents)
            if learnt(directory) >= part.until:  # an earlier session was killed before the decision
                return "ready", ""
            result = run.continue_run(
                directory, {**self.changes, **load.objects_of(self.settings, self.options)}, True, part=part
            )
        else:
            settings = replace(self.settings, **m["values"])
            options = replace(self.options, run=str(directory), seed=SEEDS * self.options.seed + m["member"])
            sources = self.sources | dict.fromkeys(m["values"], "population")
            result = run.begin_run(systems.load(self.system), settings, options, sources, part=part)
        if result.reason == part.paused:
            return "ready", ""
        if part.stopping and (why := part.stopping()) and result.reason.startswith(why):
            return "stopped", result.reason
        if result.exit_code:  # the run could not be saved
            raise OSError(result.reason)
        return "done", result.reason


class WarningReader(io.TextIOBase):
    """Output stream of a member's session, which passes warnings to the function `warn` and drops all other lines."""

    def __init__(self, warn: Callable[[str], None]):
        self.warn, self.rest = warn, ""
        self.before = sys.stdout, sys.stderr  # streams that `warn` prints to

    def write(self, text: str) -> int:
        """Process the complete lines of `text`. Keep an incomplete last line until a later call completes it."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            found = line.removeprefix("polyplay: ").removeprefix("warning ")
            if found != line:
                with contextlib.redirect_stdout(self.before[0]), contextlib.redirect_stderr(self.before[1]):
                    self.warn(found)
        return len(text)


def learnt(directory: Path) -> float:
    """Return the agent steps that a run's newest checkpoint was trained on, or 0 if no checkpoint is readable."""
    return load.steps_learnt(next(reversed(checkpoint.everything(directory)), None))


def _newest_counters(directory: Path) -> Row:
    for path in reversed(checkpoint.everything(directory)):
        with contextlib.suppress(OSError, ValueError):
            return dict(checkpoint.manifest(path)["counters"])
    return {"steps": 0, "frames": 0}


def last_returns(directory: Path, since: int, score: str = "games") -> tuple[float, ...]:
    """Return the returns of a member's last games or of its last evaluation, made after agent step `since`.

    `score`: "games" or "evaluations".
    """
    if score == "evaluations":
        rows = [row for row in read_lines(directory / "evaluations.jsonl", "steps") if row["steps"] > since]
        if rows and "task_return_means" in rows[-1]:  # the mean over tasks of the tasks' scores
            return (float(rows[-1]["episodic_return_mean"]),) * len(rows[-1]["returns"])
        return tuple(rows[-1]["returns"]) if rows else ()
    games = [row for row in _tail(directory / "episodes.jsonl", run_files.GAME) if row["steps"] > since]
    if games and "task" in games[-1]:
        return _mean_scores(directory, games)
    return tuple(float(game["episodic_return"]) for game in games[-trainer.GAMES :])


def _mean_scores(directory: Path, games: list[Row]) -> tuple[float, ...]:
    """Return the mean score over tasks, repeated for each of the last games. Return () if a task has no game yet."""
    words = task_words(run_files.read_config(directory)["config"]["env"])
    returns = TaskReturns(tuple(name for name, _ in words), fewest=1)
    for game in games:
        returns.add(game["task"], game["episodic_return"])
    score = returns.score()
    return () if score is None else (score,) * min(len(games), trainer.GAMES)


def newest_steps(directory: Path) -> int:
    """Return the number of agent steps in the last report of a run."""
    return max((row["steps"] for row in _tail(directory / "metrics.jsonl", run_files.METRICS)), default=0)


def _tail(path: Path, numbers: tuple[str, ...]) -> Iterator[Row]:
    """Yield the last rows of a file of JSON lines. Rows that lack a key of `numbers` are skipped."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        for line in file.read().split(b"\n"):
            if is_row(row := parse_json(line), numbers):
                yield row


# The main process of a population starts, watches and stops the trainers (workers that train members), and prints their
# progress. The trainers make all decisions.


SHOW = 1.0  # seconds between panel updates


class PopulationSession(Supervisor):
    """Main process of a population, which starts the trainers (workers that train members) and waits for their end."""

    patience, late, goes_on = 60.0, "members did not end", "continues the population"

    def __init__(self, crew: Crew, directory: Path, lines: Sequence[RenderableType], quiet: bool):
        super().__init__(crew, directory)
        self.store, self.shown = states.Store(directory), 0.0
        self.panel = PopulationPanel(quiet, terminal.Screen(live=False if crew.serial or quiet else None))
        with self.store.locked() as population:
            self.decisions: int = population["decisions"]
            population["clock"] = {"before": population["wall_seconds"], "since": time.monotonic()}  # wall time
            self.store.write(population)
        self.panel.begin(lines)

    def _look(self, last: bool = False) -> None:
        self._report_signals()
        cluster = self.crew.cluster
        if cluster is not None and not self.finishing_since and (why := cluster.failing()):
            self._warn(f"{why}: saving checkpoints")
            self._finish(why, 1)
        if time.monotonic() - self.shown < SHOW and not last:
            return
        self.shown = time.monotonic()
        population = self.store.read()
        if population["decisions"] > self.decisions:
            for row in states.read_lineage(self.directory)[self.decisions : population["decisions"]]:
                self.panel.decision(row)
            self.decisions = population["decisions"]
        training = [m["member"] for m in population["members"] if m["state"] == states.TRAINING]
        self.panel.show(population, {i: newest_steps(self.store.member(i)) for i in training})

    def _warn(self, text: str) -> None:
        self.panel.screen.warn(text)

    def _close(self) -> Row:
        self.closing = True
        self.crew.stop()
        with contextlib.suppress(Exception):
            self._look(last=True)
        with self.store.locked() as population:
            for m in population["members"]:
                m["state"] = states.WAITING if m["state"] == states.TRAINING else m["state"]
            population["wall_seconds"] = states.wall_seconds(population)
            with contextlib.suppress(OSError):  # on a full disk, the next session writes the file
                self.store.write(population)
        members = population["members"]
        best = states.best_member(members)
        if self.reason == "done" and all(m["state"] == states.FAILED for m in members):
            self.exit_code, self.reason = 1, f"all members have failed: {members[0]['why']}"
        summary = {
            **{"reason": self.reason, "exit_code": self.exit_code, "directory": str(self.directory)},
            "wall_seconds": round(population["wall_seconds"], 3),
            **{k: sum(m[k] for m in members) for k in ("steps", "frames")},
            "decisions": population["decisions"],
            "failed": sum(m["state"] == states.FAILED for m in members),
            "best_member": best and best["member"],
            "best_score": best and best["score"],
            "finished": machine.now(),
        }
        with contextlib.suppress(OSError):
            write_json(self.directory / "summary.json", summary)
        self.panel.end(summary)
        return summary


# options of every run that apply to the population, not to a member
HOSTS = "hosts", "place", "ship", "host_timeout", "host_wait"
OWN: dict[str, Any] = {
    **dict.fromkeys(HOSTS[:3]),
    "run": None,
    "resume": "never",
    "dry_run": False,
    "quiet": True,
    "verbose": False,
    "cores": None,
}


def train(page: Any, settings: Any, options: RunOptions, sources: Sources) -> RunResult:
    """Train a new population. Raises UserError, EnvFailure, NotFinite or WorkerLost if no member can continue."""
    settings, title = replace(settings, over=page.over.name), page.name
    reporter.check_wandb(options.wandb)
    settings, (crew, plan, lines), left = run_options.fitted(
        settings, sources, lambda other: _wire(page, other, options)
    )
    for name in plan.evolution.priors:
        if run_options.is_order(name, sources):
            raise UserError(f"{flags.flag(name)}: given together with --vary {name}: leave one of them out")
    directory = run_options.new_directory(title, f"{settings.over}-{settings.env}", options)

    def begin(about: Row) -> None:
        run_options.refuse_begun(directory)
        states.Store(directory).begin(plan.about(), plan.founders())
        about |= {"system": title, "environment": _presets.wire_member(settings, crew)[1].envs.spec.describe}
        run_files.write_config(directory, about)
        load.remember(directory, settings, options)

    return _go(directory, settings, options, sources, crew, left + lines, begin)


def resume(directory: Path, changes: Mapping[str, Any], trust: bool = False) -> RunResult:
    """Resume a population. changes: new values of options of its members."""
    given = load.objects_of(changes)
    changes = {name: value for name, value in changes.items() if name not in given}
    page, settings, options, config = load.load_run(directory, trust, population=True, given=given, learns=True)
    for name in changes:
        if name in flags.option_types(page.Config) and name != "frames":
            raise UserError(f"{flags.flag(name)}: a population decides what its members have; leave it out")
    store = states.Store(directory)
    _check_code(store, config)
    settings, others = run_options.adjust(page, settings, changes)
    elsewhere = {"place": None, "ship": None} if "hosts" in changes else {}  # values are for the earlier machines
    options = run_options.override(options, {"run": str(directory), **elsewhere, **others})
    crew, plan, lines = _wire(page, settings, options)
    sources = {**config["sources"], **{k: "resume" for k in changes if k not in run_options.OF_ONE_RUN}}

    def begin(about: Row) -> None:
        store.repair()
        about |= {k: config[k] for k in ("system", "environment")}
        run_files.amend_config(directory, about)
        _extend(store, plan, changes)

    now, unused = vars(options) | {"frames": settings.frames}, "steps" if options.steps is None else "frames"
    changed = {k: now[k] for k, source in sources.items() if source == "resume" and k != unused}  # by any resume
    return _go(directory, settings, options, sources, crew, lines, begin, changed)


def _check_code(store: states.Store, config: Row) -> None:
    """Raise UserError if a member's files name code that the population's config.json does not name."""
    for m in run_files.read_population(store.directory)["members"]:
        run_files.check_named(store.directory / states.FILE, {"config": m["values"]}, config)
        if (store.member(m["member"]) / "config.json").exists():
            run_files.check_named(store.member(m["member"]), run_files.read_config(store.member(m["member"])), config)


def _extend(store: states.Store, plan: trainer.PopulationPlan, changes: Mapping[str, Any]) -> None:
    """Let interrupted members continue. If the population now trains longer, finished members continue, too."""
    with store.locked() as population:
        further = population["total"] != plan.total or any(
            changes.get(name) is not None for name in ("frames", *run_options.LIMITS)
        )
        for m in population["members"]:
            goes_on = {states.TRAINING: True, states.FAILED: m["lost"], states.DONE: further}
            if goes_on.get(m["state"]):
                m["state"] = states.WAITING
            if m["state"] != states.FAILED or m["falls"] >= trainer.DRAWS:
                m["falls"] = 0  # a failed member that found no other member to copy searches again
        population |= plan.about()
        store.write(population)


def _wire(page: Page, settings: Any, options: RunOptions) -> tuple[Crew, trainer.PopulationPlan, list[tuple[str, str]]]:
    """Return the crew of trainers (workers that train members), the plan, and the plan's lines. Raises UserError."""
    if options.serial and settings.at_once > 1:
        raise UserError(f"--at-once: {settings.at_once} given, but --serial is one thread: leave one of them out")
    if settings.score == "evaluations" and options.eval_every is None:
        raise UserError("--score: evaluations given, but none are made: give --eval-every FRAMES too")
    check_varied(settings.vary)
    crew = load.crew_of(options, population=True)
    load.wire_system(page, settings, crew)
    (role,) = crew.roles
    plan: trainer.PopulationPlan = role.holds["plan"]
    evolution = plan.evolution
    if evolution.exploit != "none" and evolution.every >= plan.total:
        text = f"--every: {evolution.every:,} agent steps given, but each member has {plan.total:,} in all"
        raise UserError(f"{text}, so no member would copy another: lower it, raise --steps, or give --exploit none")
    for name in sorted(run_options.scheduled_names(options.change) & {*evolution.priors}):
        raise UserError(f"--change: {name} given together with --vary {name}: leave one of them out")
    types = flags.option_types(page.Config)
    each, there = _member_cores(crew)
    with machine.share(max(1, machine.cores() // each)):
        plan = replace(plan, anew=anew_of(settings, crew, dict(evolution.priors), types))
        crew.roles[0] = role.holding(plan=plan)
        other, wired = _presets.wire_member(settings, crew)
        own = _presets.member_settings(settings)
        member = run.complete_plan(systems.load(settings.over), other, wired, own, options)
    cores = f"{each} of {there} cores each" if platform.BINDS else f"{platform.UNBOUND}: they share all {there}"
    trainers = f"{role.n} at once, {cores}; a member's own plan follows"
    return crew, plan, [*_lines(plan, trainers), *member.lines]


def _lines(plan: trainer.PopulationPlan, trainers: str) -> list[tuple[str, str]]:
    evolution = plan.evolution
    steps = f"{plan.total:,} agent steps each, {plan.size * plan.total:,} together"
    every = f"every {evolution.every:,} agent steps of a member"
    decisions = ("decisions", f"{every}: {evolution.exploit}, {evolution.explore}")
    if evolution.exploit == "none":
        decisions = ("copies", "none: each member keeps its first values")
    return [
        ("members", f"{plan.size} run{'s' * (plan.size > 1)} of {plan.over}, {steps}"),
        *(("vary", f"{name} from {prior.label()}") for name, prior in evolution.priors.items()),
        decisions,
        ("trainers", trainers),
        *(("machines", f"members run on {machines}") for machines in [plan.machines] if machines),
    ]


def _go(
    directory: Path,
    settings: Any,
    options: RunOptions,
    sources: Sources,
    crew: Crew,
    lines: list[tuple[str, str]],
    begin: Callable[[Row], None],
    changes: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run the population, or in a dry run only print its plan. begin: function that records the start on disk."""
    if options.dry_run:
        console = terminal.default_console()
        shown = [("run", f"{directory} (dry run: nothing is written)"), *lines]
        terminal.print_all(console, terminal.fact_lines(shown, console))
        return RunResult(directory, 0, "dry run", {}, settings)
    with closing(run_files.DirectoryLock(directory)):
        config, given = run_options.to_json(settings), run_options.to_json(options)
        begin({"config": config, "options": given, "sources": sources})
        runner = _runner(directory, settings, options, sources, changes or {})
        crew.roles[0] = crew.roles[0].holding(run=replace(runner, elsewhere=_elsewhere(crew, options)))
        console = terminal.default_console()
        told = terminal.fact_lines([("run", str(directory)), *lines], console)
        if not options.verbose:
            told = terminal.brief_lines(terminal.short_facts(lines), directory, console)
        summary = PopulationSession(crew, directory, [*told], options.quiet).go()
    return RunResult(directory, summary["exit_code"], summary["reason"], summary, settings)


def _runner(
    directory: Path, settings: Any, options: RunOptions, sources: Sources, changes: Mapping[str, Any]
) -> MemberRunner:
    own: Settings = _presets.member_settings(settings)
    types = flags.option_types(type(own), RunOptions).keys() - {*HOSTS}
    kept, changed = ({k: v for k, v in given.items() if k in types} for given in (sources, changes))
    return MemberRunner(directory, settings.over, own, replace(options, **OWN), kept, settings.score, changed)


def _elsewhere(crew: Crew, options: RunOptions) -> Callable[..., tuple[str, str]] | None:
    """Return a function that runs a member's session on another machine, or None without other machines."""
    if crew.cluster is None:
        return None
    from polyplay.runs.remote_members import RemoteMembers

    return RemoteMembers(crew.cluster, _member_cores(crew)[0], options)


def _member_cores(crew: Crew) -> tuple[int, int]:
    """Return the numbers of CPU cores for each member in training and for all members together."""
    there = _presets.member_cores(crew)
    return max(1, there // crew.roles[0].n), there
