"""From a command line or keywords to one checked configuration, with where each value came from.

A system's page gives `Config` (a frozen dataclass) and `PRESETS`; what every run has is `RunOptions`. Nothing
here knows any system: functions take the page, `polyplay.systems.load(name)`. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from polyplay.common.bounds import Count, Fraction, Seconds, Seed, Whole, Widths
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.runs import flags
from polyplay.runs.changes import parse_changes
from polyplay.runs.env_instances import is_instance, made_from
from polyplay.runs.option_file import OptionFile
from polyplay.runs.option_groups import grouped
from polyplay.systems import _presets

if TYPE_CHECKING:
    from polyplay.systems import System
    from polyplay.workers.crew import Crew


ADJUSTABLE = ("learning_rate", "entropy_cost")  # of a system's options, what may differ when a run goes on
MORE = """--seeds 0..4 trains once per seed.
--config FILE reads options from config.json, YAML or TOML; flags override them."""
SIZES = ("lanes", "actors", "learners")  # as well, if lanes may begin anew
LIMITS = ("frames", "steps", "minutes", "until_return")
HOSTS = ("hosts", "place", "ship", "host_timeout", "host_wait")
REPORTS = ("report_every", "checkpoint_every", "keep")
CHANGEABLE = (*ADJUSTABLE, *SIZES, "change", *LIMITS, *REPORTS, "device", *HOSTS)  # of all
Sources = dict[str, str]  # option → "default" | "preset NAME" | "command line" | "keyword" | "config FILE" | "resume"


class Options(Protocol):
    """Any dataclass of options."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


class Settings(Options, Protocol):
    """The configuration of a system: an instance of its page's `Config`."""

    @property
    def env(self) -> object: ...
    @property
    def budget(self) -> int: ...


class Page(Protocol):
    """A module of `polyplay.systems`."""

    __name__: str
    Config: type[Settings]
    PRESETS: Mapping[str, Callable[[], Settings]]
    ROW: Mapping[str, str]

    def build(self, c: Settings, crew: Crew, /) -> System: ...


T = TypeVar("T", bound=Options)


@dataclass(frozen=True)
class RunOptions:
    """The same for every system. Whole numbers may be written 10_000_000, 10M or 1e7."""

    frames: Count | None = None
    """stop after this many frames of the environment (with frame skip 4: four per agent step)"""
    steps: Count | None = None
    """stop after this many agent steps, at the end of a rollout (also --total-timesteps, -n); instead of --frames"""
    minutes: Seconds | None = None
    """stop after this many minutes of wall time"""
    until_return: float | None = None
    """stop when the mean return of the last 100 full games reaches this"""
    seed: Seed = 0
    """seed of all random numbers"""
    run: str | None = None
    """directory of the run (none: runs/SYSTEM-ENV-SEED-TIME)"""
    resume: Literal["never", "auto"] = "never"
    """auto: start a run in --run, or resume the run that is there, for jobs that a cluster queues again. Only options
    that `polyplay resume` takes may differ from that run's"""
    preset: str = "auto"
    """named set of defaults of the system (auto: chosen by --env; paper for Atari games, else a tuned one)"""
    change: tuple[str, ...] = ()
    """hyperparameters that have other values later: NAME=VALUE@AT,VALUE@AT. Each value holds from AT on, a part of the
    run (0, 0.5) or agent steps (10M), until the next one. May be given several times (docs/guides/runs_and_plots.md)"""
    serial: bool = False
    """run all workers in one process and one thread: deterministic, and a debugger works"""
    on: Literal["process", "thread"] = "process"
    """workers are processes or threads"""
    step_timeout: Seconds = 60.0
    """replace the process of an environment if a step or a reset takes longer than this many seconds"""
    max_restarts: Whole = 10
    """how many faults of its environments (exception, hang, lost process) a worker repairs within an hour and within
    10,000 of its steps; one more fault ends the run"""
    report_every: Seconds = 5.0
    """seconds between reports"""
    checkpoint_every: Seconds = 300.0
    """seconds between checkpoints"""
    keep: Count = 3
    """how many of the newest checkpoints to keep; the best one is always kept"""
    quiet: bool = False
    """print warnings, errors and the last line only"""
    verbose: bool = False
    """print every value with its source, and the whole plan, at the start"""
    tensorboard: bool = True
    """write tensorboard/ in the run directory"""
    trace: bool = False
    """write the losses of every update to updates.jsonl"""
    log_games: Whole = 1_000_000
    """write each of so many games to episodes.jsonl, then about every 2nd, 4th, … (0: none)"""
    metrics_style: Literal["polyplay", "cleanrl", "sb3"] = "polyplay"
    """names of metrics in TensorBoard and W&B: Polyplay's, CleanRL's or Stable-Baselines3's"""
    wandb: str | None = None
    """also send metrics to this project of Weights & Biases (none: do not)"""
    env_kwargs: tuple[str, ...] = ()
    """keyword arguments of the environment, as NAME=VALUE; for Atari games see docs/guides/atari.md"""
    wrapper: tuple[str, ...] = ()
    """wrappers of a Gymnasium environment, each as module:callable; the first is innermost"""
    hidden: Widths = ()
    """sizes of the network's hidden layers: 256 256 for an mlp, one size after convolutions (none: its own)"""
    activation: Literal["tanh", "relu"] | None = None
    """activation function of an mlp's hidden layers (none: tanh)"""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """number type of the networks' computations; weights stay float32. bfloat16 is faster on processors with fast
    bfloat16 instructions (auto: bfloat16 if a measurement at the start finds it faster)"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where learners, replicas and GA3C's predictors compute (auto: on CUDA if there is a GPU); a3c always uses
    the CPU"""
    actors_on: Literal["cpu", "device"] = "cpu"
    """where actors of impala and appo compute: on the CPU, one core each, or on the learners' device (for large
    networks, with few actors of many lanes)"""
    cores: Count | None = None
    """use this many cores of the machine (none: all that this process may use); the numbers of workers and threads
    that are not set are chosen to fit"""
    eval_every: Count | None = None
    """evaluate the current weights after every this many frames (none: never); scores go to
    evaluations.jsonl, the best weights to checkpoints/best-…"""
    eval_episodes: Count = 10
    """games per evaluation"""
    eval_protocol: Literal["run", "null-op", "null-op-30min", "null-op-1-30", "sticky"] = "run"
    """how games of these evaluations start and end, as in `polyplay evaluate --protocol`"""
    eval_epsilon: Fraction | None = None
    """probability of a uniform random action in these evaluations (none: the system's own value, mostly 0)"""
    reuse: bool = True
    """reuse the layer outputs that were computed while acting, where the weights are the same (a2c, accel with a2c,
    convolutional networks); --no-reuse computes them again"""
    hosts: str | None = None
    """other machines, to which actors go: ray or ray:HOST:PORT, those of a Ray cluster; pretend:N, processes of this
    machine that stand for N others (none: this machine alone; docs/guides/many_machines.md)"""
    place: str | None = None
    """which workers are on which machine: ROLE=WHERE or ROLE[A-B]=WHERE, separated by commas; WHERE is here, others,
    even, a machine's name or address, or res:NAME, a resource of Ray's (none: actors on others, replicas evenly)"""
    ship: str | None = None
    """folder whose modules are taken along to other machines, for an environment or network of your own"""
    host_timeout: Seconds = 5.0
    """a machine that is silent for so many seconds is lost"""
    host_wait: Seconds = 300.0
    """seconds that workers of a lost machine wait for another one; then the run ends"""
    dry_run: bool = False
    """print the plan, measure the speed for two seconds, write nothing"""

    def __post_init__(self) -> None:
        if self.frames is not None and self.steps is not None:
            raise UserError(f"--frames {self.frames} and --steps {self.steps} set the same limit: give one of them")
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose contradict each other: give one of them")
        if self.resume == "auto" and self.run is None:
            raise UserError("--resume: auto given, but it takes a directory to find again: give --run DIR")
        flags.read_assignments("env_kwargs", self.env_kwargs)
        parse_changes(self.change)
        for name in self.wrapper:
            if not isinstance(name, str) or ":" not in name:
                raise UserError(f"--wrapper: {name} given, allowed: module:callable, a function of an environment")


def name_of(page: Page) -> str:
    return page.__name__.rpartition(".")[2]


def spoken_name(page: Page) -> str:
    """As it is written behind a verb: of a population with the system of its members, which has options too."""
    other = getattr(page, "OVER", None)
    return name_of(page) + (f" --over {name_of(other)}" if other else "")


def _of_members(page: Page) -> str:
    """Whose options the help of a population lists."""
    if (other := getattr(page, "OVER", None)) is None:
        return ""
    text = "The options of population are its own; all others are its members', as in"
    return f"\n{text} `polyplay train {name_of(other)}`: those of the system of --over, and of every run."


def parse(
    page: Page, args: Sequence[str], verb: str = "train", file: OptionFile | None = None
) -> tuple[Settings, RunOptions, Sources]:
    """(settings, options, sources) from the flags after `polyplay train SYSTEM`, which override those of a file.

    --help prints and raises SystemExit(0). An unknown flag, a bad value, an unknown preset, values that
    contradict each other: UserError, one line.
    """
    types = flags.option_types(page.Config, RunOptions)
    command = f"polyplay {verb} {spoken_name(page)}"
    words = flags.split_flags(args, types, command)
    if flags.wants_help(args):
        named = {k: words[k][0] for k in ("preset", "env") if words.get(k)}
        name, base = _preset(page, named)
        base, wishes = _presets.with_fastest(base, serial="serial" in words)
        groups = grouped(flags.option_types(page.Config), flags.option_types(RunOptions))
        about = f"Defaults follow from --env. Below: preset {name}, for {base.env}"
        about += ".\n" if "env" in named else f"; `{command} --env ID --help` shows those of ID.\n"
        about += f"Presets: {', '.join(_presets.names(page))}.\n{MORE}{_of_members(page)}"
        about += "\n" + " ".join((page.PRESETS[name].__doc__ or "").split()) if name in page.PRESETS else ""
        flags.show_help([base, RunOptions(preset=name, **wishes)], groups, command, about)
    return _with_file(page, flags.parse_values(words, types), "command line", file)


def resolve(page: Page, file: OptionFile | None = None, **overrides: object) -> tuple[Settings, RunOptions, Sources]:
    """The same from Python keywords; a callable may stand where the command line takes `module:callable`."""
    types = flags.option_types(page.Config, RunOptions)
    if is_instance(overrides.get("env")):
        overrides["env"], own = made_from(overrides["env"])
        overrides["env_kwargs"] = own | dict(overrides.get("env_kwargs", {}))  # type: ignore[call-overload]
    if isinstance(given := overrides.get("env_kwargs"), Mapping):
        overrides["env_kwargs"] = tuple(f"{k}={v!r}" for k, v in given.items())
    return _with_file(page, flags.check_keywords(overrides, types, spoken_name(page)), "keyword", file)


def _with_file(
    page: Page, given: Mapping[str, object], source: str, file: OptionFile | None
) -> tuple[Settings, RunOptions, Sources]:
    """As `_choices`. A value of the file that was a default there, and is one here, stays one."""
    if file is None:
        return _choices(page, given, source)
    values = file.checked(flags.option_types(page.Config, RunOptions), given)
    decisive = {k: v for k, v in {**values, **given}.items() if k in ("preset", "env", "serial")}
    base, plain, _ = _choices(page, decisive, source)
    usual = {**vars(base), **vars(plain)}
    values = {k: v for k, v in values.items() if k not in file.usual or v != usual[k]}
    settings, options, sources = _choices(page, {**values, **given}, source)
    return settings, options, sources | dict.fromkeys(values, file.source)


def _choices(page: Page, given: Mapping[str, object], source: str) -> tuple[Settings, RunOptions, Sources]:
    """The values given, and the preset's or the defaults for all others. A source is a preset only where that differs
    from the defaults.
    """
    name, base = _preset(page, given)
    base, wishes = _presets.with_fastest(base, serial=bool(given.get("serial")))
    plain, options = page.Config(), _replace_known(RunOptions(preset=name), wishes)
    sources = dict.fromkeys(flags.option_types(page.Config, RunOptions), "default")
    changed = {k for k, value in vars(base).items() if value != getattr(plain, k)}
    sources |= dict.fromkeys([*changed, *wishes], f"preset {name}")
    sources |= dict.fromkeys(given, source)
    given = {k: v for k, v in given.items() if k != "preset"}
    settings, options = _replace_known(base, given), _replace_known(options, given)
    if "network" not in given and given.get("core", "none") != "none":
        settings = _presets.with_core(settings)
    if options.hidden or options.activation:
        settings = _with_layers(settings, options)
    return settings, options, sources


def _with_layers(settings: Settings, options: RunOptions) -> Settings:
    """The network with the layers that are asked for: mlp(256,256,relu). Raises UserError: it is a function."""
    if not hasattr(settings, "network"):
        raise UserError("--hidden, --activation: given, but this system's network has --blocks and --filters")
    name: object = settings.network
    if callable(name):
        raise UserError("--hidden, --activation: given, but --network is a function: let it choose its layers")
    words = [*map(str, options.hidden), *([options.activation] if options.activation else [])]
    return _replace_known(settings, {"network": f"{str(name).partition('(')[0]}({','.join(words)})"})


def _preset(page: Page, given: Mapping[str, object]) -> tuple[str, Settings]:
    """The preset that is named, or else the one that fits the environment, and its configuration."""
    name, env = str(given.get("preset", _presets.AUTO)), given.get("env")
    automatic = name == _presets.AUTO
    if automatic:
        made = how_made(_replace_known(RunOptions(), {k: given[k] for k in ("env_kwargs", "wrapper") if k in given}))
        name = _presets.choose(page, page.Config().env if env is None else env, **made)
    return name, _presets.settings(page, name, env, automatic)


def how_made(options: RunOptions) -> dict[str, Any]:
    """What Envs takes besides an environment's name."""
    kwargs = flags.read_assignments("env_kwargs", options.env_kwargs)
    return {"kwargs": kwargs, "wrappers": options.wrapper}


def override(options: RunOptions, changes: Mapping[str, object]) -> RunOptions:
    """Options of a resumed run with `changes`; new frames take the place of old steps, and vice versa."""
    changes = flags.check_keywords(changes, flags.option_types(RunOptions), "resume")
    limits = any(changes.get(k) is not None for k in ("frames", "steps"))
    cleared: dict[str, object] = {"frames": None, "steps": None} if limits else {}
    cleared |= {"quiet": False} if changes.get("verbose") else {"verbose": False} if changes.get("quiet") else {}
    return _replace_known(options, cleared | changes)


def adjust(page: Page, settings: Settings, changes: Mapping[str, object]) -> tuple[Settings, dict[str, object]]:
    """The settings of a resumed run with those of `changes` that are hyperparameters, and the other changes. Raises
    UserError: what its system does not have, or what cannot change any more.
    """
    types, able = flags.option_types(page.Config), (*ADJUSTABLE, *SIZES)
    for name in changes:
        if name in types and name not in able:
            raise UserError(f"{name}: it cannot change when a run goes on; what can: {', '.join(able)}")
        if name in able and name not in types:
            raise UserError(f"{flags.flag(name)}: {name_of(page)} has no such option")
    own = {k: flags.check_value(flags.flag(k), v, types[k]) for k, v in changes.items() if k in types}
    return _replace_known(settings, own), {k: v for k, v in changes.items() if k not in types}


def new_directory(system: str, env: object, options: RunOptions) -> Path:
    """Make and return the directory of a new run (a dry one is not made); UserError if it holds a run already or
    cannot be made.
    """
    place = getattr(env, "__name__", None) or str(env)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", place.removeprefix("ALE/")).strip("-.") or "env"
    stem = options.run or f"runs/{system}-{slug}-{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, again = Path(stem), 1
    while options.run is None and path.exists():  # two runs begun within one second
        again += 1
        path = Path(f"{stem}-{again}")
    refuse_begun(path)
    if options.dry_run:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--run: cannot make the directory {path}: {e.strerror}; name another") from None
    return path


def refuse_begun(path: Path) -> None:
    """UserError if there is a run already."""
    if (path / "config.json").exists():
        raise UserError(f"--run: {path} holds a run already; `polyplay resume {path}` goes on with it, or name another")


def to_json(value: Options) -> Row:
    """A dataclass of plain values as a dict that json can write; a callable becomes its `module:name`."""
    return {f.name: json_value(getattr(value, f.name)) for f in dataclasses.fields(value)}


def from_json(cls: type[T], data: Mapping[str, object], where: str = "config.json") -> T:
    """The inverse of `to_json`; UserError names every unknown, missing or wrongly typed field."""
    types = flags.option_types(cls)
    unknown, missing = sorted(set(data) - set(types)), sorted(set(types) - set(data))
    wrong = [f"{word} {', '.join(names)}" for word, names in (("unknown", unknown), ("missing", missing)) if names]
    if wrong:
        raise UserError(f"{where} does not fit {cls.__name__} of this version: {'; '.join(wrong)}")
    return cls(**{k: flags.check_value(f"{where}: {k}", v, types[k]) for k, v in data.items()})


def json_value(value: object) -> object:
    """An option's value as JSON has it; of what no import finds again, such as a partial, a name with <."""
    if callable(value):
        name = getattr(value, "__qualname__", f"{type(value).__qualname__}.<instance>")
        return f"{getattr(value, '__module__', '?')}:{name}"
    return [json_value(v) for v in value] if isinstance(value, tuple) else value


def _replace_known(base: T, given: Mapping[str, object]) -> T:
    """`base` with those of the values given that are its fields."""
    return dataclasses.replace(base, **{k: v for k, v in given.items() if k in base.__dataclass_fields__})
