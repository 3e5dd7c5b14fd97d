"""Turn a command line, Python keywords or an option file into one checked configuration, with the source of each value.

A system's page, as `polyplay.systems.load(name)` returns it, has the system's own options, `Config` (a frozen
dataclass), and `presets`. `RunOptions` has the options that every run has. Imports no torch.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from polyplay.buffers.league import League
from polyplay.core import user_modules
from polyplay.core.errors import Count, Fraction, Seconds, Seed, UserError, Whole, Width
from polyplay.core.files import Row
from polyplay.core.worker import HyperparameterSchedule, SchedulePoint
from polyplay.envs.images import read_image_options
from polyplay.envs.pool import ATARI57, need, task_words
from polyplay.runs import flags
from polyplay.runs.flags import flag
from polyplay.systems import Page, _presets

if TYPE_CHECKING:
    from polyplay.runs.option_file import OptionFile

# Groups of options, as `--help` lists them.


GROUPS = {  # other options of a system are in the group algorithm, other options of every run in the group run
    "duration": "frames steps minutes until_return",
    "population": "over population every vary exploit explore score at_once",
    "environment": "env lanes atari env_kwargs env_options wrapper images stack gray size frame_skip task_input "
    "life_loss inputs actions reward reward_scale env_workers groups step_timeout max_restarts",
    "network": "network hidden activation core core_size width head dueling init",
    "algorithm": "loss",
    "optimizer": "learning_rate anneal change optimizer optimizer_eps decay max_grad_norm reduction",
    "exploration": "entropy_cost epsilon epsilon_decay_steps sigma noise",
    "replay": "ratio capacity learning_starts evict_every alpha beta prefetch replay_workers sequence burn_in",
    "worker": "actors learners replicas workers agents predictors trainers shards slots lag sync pull schedule "
    "predict_batch min_batch queue stale outlier correction serial on cores device actors_on precision",
    "run": "",
    "evaluation": "eval_every eval_episodes eval_protocol eval_epsilon",
}


def grouped(page: Iterable[str], run: Iterable[str]) -> dict[str, list[str]]:
    """Return {group: names of its options} for --help. page: options of the system. run: options that every run has."""
    home = {name: group for group, names in GROUPS.items() for name in names.split()}
    order, others = list(home), {**dict.fromkeys(page, "algorithm"), **dict.fromkeys(run, "run")}
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(others, key=lambda name: order.index(name) if name in home else len(order)):
        found[home.get(name, others[name])].append(name)
    return {group: members for group, members in found.items() if members}


COMMON = "over env preset population vary frames steps minutes until_return seed run lanes actors replicas "
COMMON += "learning_rate gamma network hidden device dry_run"  # options that most people change: --help explains them


def show_options(defaults: Sequence[object], command: str, about: str, whole: bool) -> NoReturn:
    """Raise Help, whose text lists the options with their default values.

    `defaults`: objects with the default values: a system's Config, if any, and RunOptions.
    `whole`: whether to list all options, not only those in COMMON.
    """
    *page, run = (flags.option_types(type(of)) for of in defaults)
    short = [name for name in COMMON.split() if name in {**run, **(page[0] if page else {})}]
    groups = grouped(page[0] if page else (), run)
    raise flags.Help(defaults, groups, command, about, short=None if whole else short)


# `--change NAME=VALUE@AT,…` schedules hyperparameters: parse its words, check them, describe them in the plan.


Lines = list[tuple[str, str]]  # lines of the plan: (heading, text)
FORM = "NAME=VALUE@AT,VALUE@AT with AT a part of the run from 0 to 1.0, or agent steps, as in learning_rate=1e-3@0.5"


def parse_changes(words: Iterable[str]) -> tuple[HyperparameterSchedule, ...]:
    """Parse the words of --change into schedules of hyperparameters. Raises UserError if a word has the wrong form."""
    found: dict[str, HyperparameterSchedule] = {}
    for word in words:
        name, equals, rest = str(word).partition("=")
        name = name.replace("-", "_")
        if not equals or not name.isidentifier() or name in found:
            raise UserError(f"--change: {word} given, allowed: each NAME once, with all its values, {FORM}")
        found[name] = HyperparameterSchedule(name, tuple(_point(str(word), part) for part in rest.split(",")))
    return tuple(found.values())


def _point(word: str, part: str) -> SchedulePoint:
    """Parse VALUE@AT. A whole number AT above 0 counts agent steps. Any other AT is a fraction of the run."""
    value, _, place = part.partition("@")
    with contextlib.suppress(ValueError):
        text = flags.expand_suffix(place)
        number, at, whole = float(value), float(text), text.replace("_", "").isdecimal()
        if math.isfinite(number) and (0.0 <= at <= 1.0 or (whole and at > 1.0)):
            return SchedulePoint(number, at, not whole or at == 0.0)
    raise UserError(f"--change: '{part}' of {word} given, allowed: {FORM}")


def check_changes(crew: Any, types: flags.OptionTypes) -> Lines:
    """Check the hyperparameters that --change schedules. Return a line of the plan that lists them, or [] without any.

    `crew`: the run's workers before their start.
    `types`: {option: type} of the system.
    Raises UserError if a hyperparameter is unknown, if a value is out of range, if times are out of order, or if the
    agents of a league copy the hyperparameter from each other.
    """
    if not crew.schedules:
        return []
    spec = crew.learner.spec
    leagues = [role.find(League) for role in crew.roles]
    copied = {name for league in leagues if league for name in league.varied}  # agents copy these from each other
    known = [name for name in spec.hyperparameters.configured if name not in ("remaining", *copied)]
    lines = []
    for schedule in crew.schedules:
        name = schedule.name
        if name not in known:
            near = flags.did_you_mean(name, known)
            raise UserError(f"--change: {name} given, allowed here: {', '.join(known)}{near}")
        for point in schedule.points:
            flags.check_value(f"--change {name}", point.value, types.get(name, float))
        steps = [point.steps(spec.total) for point in schedule.points]
        if steps != sorted(set(steps)):
            text = ", ".join(f"{at:,.0f}" for at in steps)
            raise UserError(f"--change: {name} changes at {text} agent steps; each must be later than the last")
        values = ", ".join(f"{p.value:g} from {at:,.0f}" for p, at in zip(schedule.points, steps, strict=True))
        lines.append(f"{name} {values} agent steps")
    return [("changes", "; ".join(lines))]


def scheduled_names(words: Iterable[str]) -> set[str]:
    """Return the names of the hyperparameters that --change schedules. Raises UserError if it has a wrong form."""
    return {schedule.name for schedule in parse_changes(words)}


OF_ONE_RUN = ("run", "resume", "dry_run", "quiet", "verbose")  # entries of config.json that no other run takes over
ADJUSTABLE = ("learning_rate", "entropy_cost", "frames")  # a system's options that may change when a run resumes
MORE = """--seeds 0..4 trains once per seed.
--config FILE reads options (TOML, YAML, JSON); --save-config FILE writes them.
--sweep FILE trains every combination of the lists in a file; --part N: one."""
SIZES = ("lanes", "actors", "learners")  # options that may change on a resume too; all environments then restart
LIMITS = ("steps", "minutes", "until_return")
CHANGEABLE: tuple[str, ...] = (*ADJUSTABLE, *SIZES, *LIMITS, "change", "report_every", "checkpoint_every", "keep")
CHANGEABLE += ("compile", "device", "hosts", "place", "ship", "host_timeout", "host_wait")
Sources = dict[str, str]  # option → source of its value, such as "default", "preset NAME" or "command line"


Settings = Any  # the configuration of a system: an instance of its page's `Config`
T = TypeVar("T")


@dataclass(frozen=True)
class RunOptions:
    """Options of every run. Whole numbers may be written 10_000_000, 10M or 1e7."""

    steps: Count | None = None
    # stop after this many agent steps, at the end of a rollout (also --total-timesteps, -n); instead of --frames
    minutes: Seconds | None = None  # stop after this many minutes of wall time
    until_return: float | None = None
    # stop at this mean return of the last 100 full games; with several tasks, at this mean score over tasks
    seed: Seed = 0  # seed of all random numbers
    run: str | None = None  # directory of the run (none: runs/SYSTEM-ENV-SEED-TIME)
    resume: Literal["never", "auto"] = "never"
    # auto: resume the run in --run, or start a run if none exists there; for jobs that a cluster restarts. Only
    # options that `polyplay resume` takes may differ from the existing run
    preset: str = "auto"
    # named set of defaults of the system (auto: chosen by --env; paper for Atari games, else a tuned set)
    change: tuple[str, ...] = ()
    # schedule hyperparameters: NAME=VALUE@AT,VALUE@AT. Each value holds from AT, a fraction of the run (0, 0.5) or
    # agent steps (10M), until the next one. The option may be repeated (docs/guides/runs_and_plots.md)
    loss: str | None = None
    # your own loss, as module:callable: a function that takes the system's Loss and returns a Loss
    # (docs/guides/own_loss.md; none: the system's loss)
    serial: bool = False  # run all workers in one process and one thread: deterministic, and a debugger works
    on: Literal["process", "thread"] = "process"  # run workers as processes or as threads
    step_timeout: Seconds = 60.0
    # seconds that a step or reset of an environment may take before its process is replaced
    max_restarts: Whole = 10
    # number of environment faults (exception, hang, lost process) that a worker repairs within an hour and within
    # 10,000 of its steps; one more fault ends the run
    report_every: Seconds = 5.0  # seconds between reports
    checkpoint_every: Seconds = 300.0  # seconds between checkpoints
    keep: Count = 3  # number of newest checkpoints to keep; the best one is always kept
    quiet: bool = False  # print only warnings, errors and the last line
    verbose: bool = False  # print every value with its source, and the whole plan, at the start
    tensorboard: bool = True  # write tensorboard/ in the run directory
    trace: bool = False  # write the losses of every update to updates.jsonl
    log_episodes: bool = True  # write every full game to episodes.jsonl
    metrics_style: Literal["polyplay", "cleanrl", "sb3"] = "polyplay"
    # names of metrics in TensorBoard and W&B: Polyplay's, CleanRL's or Stable-Baselines3's
    wandb: str | None = None  # Weights & Biases project to which metrics are also sent (none: not sent)
    env_kwargs: tuple[str, ...] = ()
    # keyword arguments of the environment, as NAME=VALUE; for Atari games see docs/guides/atari.md
    env_options: tuple[str, ...] = ()
    # options of every reset, as NAME=VALUE; or a curriculum, as module:callable: a function that takes the run's
    # progress (0 to 1; in evaluations 1) and returns the options of a reset
    wrapper: tuple[str, ...] = ()
    # wrappers of a Gymnasium environment, each as module:callable; the first is innermost
    images: str = "auto"
    # names of observation parts that are images: LEAF,LEAF or none (auto: uint8 parts of at least 24 pixels a
    # side); a single part is called obs
    stack: Count | None = None  # frames stacked in every image, newest last (none: the environment's own number)
    gray: bool = False  # convert images to gray
    size: str | None = None  # resize images by area averaging, to SIDE or HEIGHTxWIDTH pixels (none: do not resize)
    frame_skip: Count | None = None
    # number of frames per action; their rewards are added (none: the environment's own number)
    task_input: Literal["none", "onehot", "embedding"] = "none"
    # if --env lists several tasks, how the network gets the task: as a one-hot vector or a learned embedding
    hidden: tuple[Width, ...] = ()
    # sizes of the network's hidden layers, such as 256 256 (only one after convolutions; none: the network's own)
    activation: Literal["tanh", "relu"] | None = None  # activation function of an mlp's hidden layers (none: tanh)
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    # number type of the networks' computations; weights stay float32. bfloat16 is faster on processors with fast
    # bfloat16 instructions (auto: bfloat16 if a measurement at the start finds it faster)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # device of learners, replicas and GA3C's predictors (auto: CUDA if there is a GPU); a3c always uses the CPU
    actors_on: Literal["cpu", "device"] = "cpu"
    # device of the actors of impala and appo: the CPU, one core per actor, or the learners' device (for large
    # networks, and few actors with many lanes)
    cores: Count | None = None
    # number of cores to use (none: all that this process may use); numbers of workers and threads that you do not set
    # are chosen to fit
    eval_every: Count | None = None
    # frames between evaluations of the current weights (none: no evaluations); scores go to evaluations.jsonl, the best
    # weights to checkpoints/best-…
    eval_episodes: Count = 10  # games per evaluation
    eval_protocol: Literal["run", "null-op", "null-op-30min", "null-op-1-30", "sticky"] = "run"
    # protocol of evaluations during training: how games start and end, as in `polyplay evaluate --protocol`
    eval_epsilon: Fraction | None = None
    # probability of a uniform random action in evaluations during training (none: the system's value, mostly 0)
    reuse: bool = True
    # reuse layer outputs computed while acting if the weights are unchanged (a2c, accel with a2c, convolutional
    # networks); --no-reuse recomputes them
    compile: Literal["auto", "on", "off"] = "auto"
    # compile updates of small networks ahead of time, and act without torch (on a GPU: CUDA graphs, for all networks);
    # auto: compile in the background, but not with --serial or --trace; on: wait for the compiler at the start
    hosts: str | None = None
    # other machines to run actors on: ray or ray:HOST:PORT, those of a Ray cluster; local:N, N Ray nodes that the run
    # starts on this machine (none: this machine alone; docs/guides/many_machines.md)
    place: str | None = None
    # assign workers to machines: ROLE=WHERE or ROLE[A-B]=WHERE, separated by commas; WHERE is here, others, even, a
    # machine's name or address, or res:NAME, a Ray resource (none: actors on other machines, replicas evenly)
    ship: str | None = None
    # folder with the modules of your environment or network: other machines get a copy and import from it (none:
    # the modules must be installed there)
    host_timeout: Seconds = 5.0  # seconds of silence before a machine counts as lost
    host_wait: Seconds = 300.0  # seconds to wait for a machine that replaces a lost one; then the run ends
    dry_run: bool = False  # print the plan and measure the speed for two seconds; write nothing

    def __post_init__(self) -> None:
        if self.resume == "auto" and self.run is None:
            raise UserError("--resume auto: needs a directory in which to find the run again; give --run DIR")
        flags.read_assignments("env_kwargs", self.env_kwargs)
        reset_options(self.env_options)
        read_image_options(self.images, self.stack, self.gray, self.size, self.frame_skip)
        parse_changes(self.change)
        for name in self.wrapper:
            if not isinstance(name, str) or ":" not in name:
                raise UserError(f"--wrapper: {name} given, allowed: module:callable, a function of an environment")


Choice = tuple[Settings, RunOptions, Sources]


def spoken_name(page: Page) -> str:
    """Return a system's name as in a command: `ppo`, or `pbt --over ppo` for a population of ppo runs."""
    return page.name + (f" --over {page.over.name}" if page.over else "")


def parse(page: Page, args: Sequence[str], verb: str = "train", file: OptionFile | None = None) -> Choice:
    """Return (settings, options, sources) from the flags after `polyplay train SYSTEM`. Flags override the option file.

    Raises flags.Help for --help. Raises UserError, with a message of one line, if a flag or preset is unknown, if a
    value is not allowed, or if values contradict each other.
    """
    types = flags.option_types(page.Config, RunOptions)
    command = f"polyplay {verb} {spoken_name(page)}"
    words = flags.split_flags(args, types, command)
    if flags.wants_help(args):
        given = {k: v for k, v in words.items() if k == "serial" or (k in ("preset", "env") and v)}
        named = flags.parse_values(given, types)
        settings, options, _ = _choose(page, named, "command line", None)
        own = "" if "env" in named else "; with --env ID first, for ID"
        about = f"{page.row['idea']}; good for {page.row['good for']}.\n" if "idea" in page.row else ""
        about += f"Defaults [in brackets] are for {settings.env}{own}.\n"
        about += f"Presets: {', '.join(_presets.names(page))}.\n{MORE}"
        about += "\nA run ends at the first of its limits: frames or steps, minutes, until-return."
        whole = flags.HELP[-1] in args
        if whole and options.preset in page.presets:
            about += "\n" + flags.docstring(page.presets[options.preset])
        show_options([settings, options], command, about, whole)
    return _choose(page, flags.parse_values(words, types), "command line", file)


def made_from(env: Any) -> tuple[str, dict[str, Any]]:
    """Return the Gymnasium id and the keyword arguments with which workers can make copies of `env`.

    Raises UserError if Gymnasium did not make `env`, or if `env` was wrapped later.
    """
    import gymnasium

    spec = env.spec if isinstance(env, gymnasium.Env) else None
    if spec is None or spec.additional_wrappers or spec.id not in gymnasium.registry:
        cure = "give a function that makes one: env=lambda: …, or an id with wrapper=(…,)"
        raise UserError(f"env: an instance of {type(env).__name__} given, which workers cannot make again; {cure}")
    usual = gymnasium.registry[spec.id].max_episode_steps
    limit = {} if spec.max_episode_steps == usual else {"max_episode_steps": spec.max_episode_steps}
    return spec.id, {**{k: v for k, v in spec.kwargs.items() if k != "render_mode"}, **limit}


def resolve(page: Page, file: OptionFile | None = None, **overrides: object) -> Choice:
    """Return (settings, options, sources) from Python keywords. Raises UserError if a keyword or value is not allowed.

    If the command line takes `module:callable` for an option, the keyword takes the callable itself, too.
    """
    types = flags.option_types(page.Config, RunOptions)
    overrides = {k: v for k, v in overrides.items() if (k, v) != ("frames", None)}
    if not isinstance(env := overrides.get("env"), str | type) and hasattr(env, "reset"):
        overrides["env"], own = made_from(env)
        overrides["env_kwargs"] = own | dict(overrides.get("env_kwargs", {}))  # type: ignore[call-overload]
    if isinstance(given := overrides.get("env_kwargs"), Mapping):
        overrides["env_kwargs"] = _words(given)
    if isinstance(given := overrides.get("env_options"), Mapping) or callable(given):
        overrides["env_options"] = (given,) if callable(given) else _words(given)
    return _choose(page, flags.check_keywords(overrides, types, spoken_name(page)), "keyword", file)


def _choose(page: Page, given: Mapping[str, object], source: str, file: OptionFile | None) -> Choice:
    """Choose the value of each option: from `given`, or else from the file, the preset or the default."""
    if file is None:
        return _chosen(page, given, source, {}, {})
    written = file.checked(page.name, flags.option_types(page.Config, RunOptions), given)
    usual = {k: v for k, v in written.items() if k in file.usual}
    orders = {k: v for k, v in written.items() if k not in usual}
    try:
        settings, options, sources = _chosen(page, given, source, orders, usual)
    except UserError as e:
        raise file.explained(e, given) from None
    return settings, options, {k: f"config {file.path}" if v == "file" else v for k, v in sources.items()}


def _chosen(
    page: Page, given: Mapping[str, object], source: str, orders: Mapping[str, object], usual: Mapping[str, object]
) -> Choice:
    """Choose the values as in `_choose`.

    `orders`: values of the file that the user chose.
    `usual`: values of the file that came from a preset or a default.
    """
    types = flags.option_types(page.Config, RunOptions)
    orders, given = listed(orders), listed(given)
    _check_length({**usual, **orders, **given})
    named = {**orders, **given}
    name, base = _preset(page, named, usual.get("preset"))
    base = _presets.with_lanes_for_tasks(base, named)
    base, wishes = _presets.with_fastest(base, serial=bool(named.get("serial")))
    wishes |= _shown(page, name, base, named)
    plain, options = page.Config(), replace_known(RunOptions(preset=name), wishes)
    sources = dict.fromkeys(types, "default")
    changed = {k for k, value in vars(base).items() if value != vars(plain)[k]}
    sources |= dict.fromkeys([*changed, *wishes], f"preset {name}")
    here = {**vars(base), **vars(options)}
    orders = {**{k: v for k, v in usual.items() if v != here[k]}, **orders}
    sources |= dict.fromkeys(orders, "file") | dict.fromkeys(given, source)
    asked = {k: v for k, v in {**orders, **given}.items() if k != "preset"}
    settings, options = replace_known(base, asked), replace_known(options, asked)
    if "network" not in asked and asked.get("core", "none") != "none":
        settings = _presets.use_shared_torso(settings)
    if options.hidden or options.activation:
        settings = _with_layers(settings, options)
    return settings, options, sources


def listed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """If `--env` names a list of tasks, as @FILE or @module:function, write the tasks into it. Raises UserError."""
    env = given.get("env")
    if not isinstance(env, str) or not env.startswith("@") or "," in env or env == ATARI57:
        return given
    allowed = "@atari57, @FILE of an environment per line, or @module:function that returns a list"
    if ":" in env and not Path(env[1:]).exists():
        found = user_modules.find(env[1:], "--env", allowed)()
        need(isinstance(found, list | tuple), f"--env: {env} returned {type(found).__name__}; allowed: a list of names")
        words = [str(word) for word in found]
    else:
        try:
            words = Path(env[1:]).read_text("utf-8").split()
        except OSError as e:
            raise UserError(f"--env: cannot read {env[1:]}: {e.strerror}; allowed: {allowed}") from None
        except UnicodeDecodeError:
            raise UserError(f"--env: {env[1:]} is not a text file; allowed: {allowed}") from None
    need(len(words) > 1, f"--env: {env} has {len(words)} tasks; allowed: two or more; for one, write its name")
    return {**given, "env": ",".join(words)}


def _with_layers(settings: Settings, options: RunOptions) -> Settings:
    if "network" not in vars(settings):
        raise UserError("--hidden, --activation: given, but this system's network has --blocks and --filters: set them")
    if callable(settings.network):
        raise UserError("--hidden, --activation: given, but --network is a function: choose the layers there")
    words = [*map(str, options.hidden), *([options.activation] if options.activation else [])]
    return replace(settings, network=f"{str(settings.network).partition('(')[0]}({','.join(words)})")


def _preset(page: Page, given: Mapping[str, object], before: object = None) -> tuple[str, Settings]:
    """Return (name, configuration) of the preset in `given`. If the user gave none, use the preset `before` of an
    option file. Without it, use the preset that fits the environment.
    """
    name, env = str(given.get("preset", _presets.AUTO)), given.get("env")
    automatic = name == _presets.AUTO
    made = how_made(replace_known(RunOptions(), {k: given[k] for k in HOW_MADE if k in given}))
    if automatic:
        name = str(before or "") or _presets.choose(page, page.Config().env if env is None else env, **made)
    return name, _presets.settings(page, name, env, automatic, **made)


def _shown(page: Page, name: str, base: Settings, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the preset's image options for the environment. Return {} with --images, or for a user's own system."""
    if "images" in given or ":" in page.name:
        return {}
    own = {k: v for k, v in given.items() if k in HOW_MADE[:3]}
    made = how_made(replace_known(RunOptions(), own))
    return _presets.shown_images(page, name, given.get("env", base.env), **made)


HOW_MADE = ("env_kwargs", "env_options", "wrapper", "images", "stack", "gray", "size", "frame_skip", "task_input")


def how_made(options: RunOptions) -> dict[str, Any]:
    """Return the keyword arguments of `Envs` for making environments, except the name. Raises UserError."""
    kwargs = flags.read_assignments("env_kwargs", options.env_kwargs)
    seen = options.images, options.stack, options.gray, options.size, options.frame_skip
    shown = read_image_options(*seen)
    resets = reset_options(options.env_options)
    made = {"kwargs": kwargs, "wrappers": options.wrapper, "reset_options": resets, "images": shown}
    return {**made, "task_input": options.task_input}


def reset_options(words: Sequence[Any]) -> Any:
    """Return the value of --env-options: a callable, its name module:callable, or {NAME: VALUE}. Raises UserError."""
    if len(words) == 1 and (callable(words[0]) or ":" in words[0].partition("=")[0]):
        return words[0]
    if wrong := [word for word in words if callable(word) or ":" in word.partition("=")[0]]:
        text = f"{json_value(wrong[0])} given with others, allowed: one module:callable alone, or NAME=VALUE …"
        raise UserError(f"--env-options: {text}")
    return flags.read_assignments("env_options", words)


def _words(given: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"{k}={v!r}" for k, v in given.items())


def override(options: RunOptions, changes: Mapping[str, object]) -> RunOptions:
    """Return the options of a resumed run, in which `changes` replace earlier values. Raises UserError."""
    changes = flags.check_keywords(changes, flags.option_types(RunOptions), "resume")
    cleared = {"quiet": False} if changes.get("verbose") else {"verbose": False} if changes.get("quiet") else {}
    return replace_known(options, cleared | changes)


def adjust(page: Page, settings: Settings, changes: Mapping[str, object]) -> tuple[Settings, dict[str, object]]:
    """Apply `changes` to the settings of a resumed run. Return the new settings, and the changes that are not options
    of the system. Raises UserError if the system lacks an option, or if the option cannot change in a resumed run.
    """
    _check_length(changes)
    types = flags.option_types(page.Config)
    able = [name for name in (*ADJUSTABLE, *SIZES) if name in types]
    for name in changes:
        if name in {*types, *ADJUSTABLE, *SIZES}.difference(able):
            what = f"cannot change when a run of {page.name} resumes"
            raise UserError(f"{flag(name)}: {what}; these can: {', '.join(able)}")
    changes = {k: v for k, v in changes.items() if (k, v) != ("frames", None)}
    own = {k: flags.check_value(flag(k), v, types[k]) for k, v in changes.items() if k in types}
    others = {k: v for k, v in changes.items() if k not in types}
    return replace(settings, **own), {"steps": None, **others} if "frames" in own else others


def _check_length(given: Mapping[str, object]) -> None:
    frames, steps = given.get("frames"), given.get("steps")
    if frames is not None and steps is not None:
        raise UserError(f"--frames {frames} and --steps {steps} set the same limit: give one of them")


NAMED = 3  # a directory's name lists at most this number of tasks


def new_directory(system: str, env: object, options: RunOptions) -> Path:
    """Make the directory of a new run, and return its path. In a dry run, nothing is made. Raises UserError if the
    directory already holds a run, or cannot be made.
    """
    place = getattr(env, "__name__", None) or str(env)
    place = f"{n}-tasks" if (n := len(task_words(env))) > NAMED else place.replace(",ALE/", ",")
    slug, title = (re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") for text in (place.removeprefix("ALE/"), system))
    path = stem = Path(options.run or f"runs/{title}-{slug or 'env'}-{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}")
    again = 1
    while options.run is None and path.exists():  # another run started within the same second
        again += 1
        path = Path(f"{stem}-{again}")
    refuse_begun(path)
    try:
        if not options.dry_run:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--run: cannot make the directory {path}: {e.strerror}; name another") from None
    return path


def refuse_begun(path: Path) -> None:
    """Raise UserError if the directory already holds a run."""
    if (path / "config.json").exists():
        raise UserError(f"--run: {path} holds a run already; `polyplay resume {path}` continues it, or name another")


def to_json(value: Any) -> Row:
    """Convert a dataclass of plain values to a dict for JSON. A callable becomes its `module:name`."""
    return {f.name: json_value(vars(value)[f.name]) for f in fields(value)}


def from_json(cls: type[T], data: Mapping[str, object]) -> T:
    """Convert a dict that `to_json` wrote back to the dataclass `cls`. If an older file lacks a field, the field gets
    its default. Raises UserError if a field is unknown or has the wrong type.
    """
    types = flags.option_types(cls)
    if wrong := sorted(set(data) - set(types)):
        raise UserError(f"config.json does not fit {cls.__name__} of this version: unknown: {', '.join(wrong)}")
    return cls(**{k: flags.check_value(f"config.json: {k}", v, types[k]) for k, v in data.items()})


def json_value(value: object) -> object:
    """Convert an option's value for JSON. A callable becomes its `module:name`."""
    if callable(value):
        name = getattr(value, "__qualname__", f"{type(value).__qualname__}.<instance>")
        return f"{getattr(value, '__module__', '?')}:{name}"
    return [json_value(v) for v in value] if isinstance(value, tuple) else value


def replace_known(base: T, given: Mapping[str, object]) -> T:
    """Return a copy of the dataclass `base` with the values from `given`. Ignore names that `base` lacks."""
    known: Any = base
    return replace(known, **{k: v for k, v in given.items() if k in vars(base)})


# Values from a preset or a default are wishes: a wish that does not fit the run is left out. Values from the user are
# orders.
#
# An error message about a wish names its source, because the user did not give that option.


FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
MOST_LEFT_OUT = 8  # most values of a preset or default that are left out of a run


def _number(value: int, text: str) -> int:
    """Return a value that an error message allows: the next multiple, or at most the number of transitions."""
    multiple = re.findall(r"multiples? of (?:the |--[a-z]+ )?([1-9]\d*)", text)
    rows = re.findall(r"([1-9]\d*) (?:transitions|trajectories)", text)
    return -(-value // int(multiple[-1])) * int(multiple[-1]) if multiple else min([value, *map(int, rows[:1])])


def _fewer(value: str, text: str) -> str:
    """Remove the task that an error message names from a list of auxiliary tasks. Return "none" if no task is left."""
    named = re.search(r"--auxiliary (\w+):", text)
    left = [task for task in value.split(",") if named and task.strip().partition("=")[0] != named[1]]
    return ",".join(left) or "none"


WISHES: dict[str, Any] = {  # option → replacement of a refused value, or a function (value, message) → replacement
    **{"inputs": "raw", "core": "none", "previous": False, "correction": "none", "auxiliary": _fewer},
    **{"event_rewards": (), "rewards": "game"},
    **{"lanes": _number, "minibatches": _number, "reward": lambda value, text: "none" if value == "scale" else value},
}


def is_order(name: str, sources: Sources) -> bool:
    """Return whether the user chose this option's value. Otherwise a preset, a default or the run itself chose it."""
    source = sources.get(name, "default")
    return not (source in ("default", "chosen") or source.startswith("preset "))


def _in_file(name: str, sources: Sources) -> bool:
    return sources.get(name, "").startswith("config ")


def left_out(text: str, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """Return {option: replacement} for values of presets or defaults that are refused with the error message `text`."""
    found = dict[str, Any]()
    for name, value in wishes.items():
        other = WISHES.get(name, value)
        other = other(value, text) if callable(other) else other
        found |= {name: other} if other != value else {}
    return found


def fitted(settings: Settings, sources: Sources, wire: Callable[[Settings], Any]) -> tuple[Settings, Any, Lines]:
    """Call `wire` with the settings. If `wire` refuses a value of a preset or a default, replace the value and try
    again. Return (settings, result of `wire`, lines of the plan about replaced values). Raises UserError if a refused
    value cannot be replaced.
    """
    lines: Lines = []
    while True:
        try:
            return settings, wire(settings), lines
        except UserError as e:
            named = [word.replace("-", "_") for word in FLAG.findall(str(e))]
            wishes = {n: v for n, v in vars(settings).items() if n in named and not is_order(n, sources)}
            shown = {n: v for n, v in vars(settings).items() if n in named and (n in wishes or _in_file(n, sources))}
            whose = {name: f"{name} {value} ({sources.get(name, 'default')})" for name, value in shown.items()}
            found = left_out(str(e), wishes) if len(lines) < MOST_LEFT_OUT else {}
            if not found:
                text = ", ".join(whose[name] for name, value in shown.items() if value not in ((), "", None))
                raise UserError(f"{e}; {text}" if text else str(e)) from None
            reason = str(e).partition(";")[0]
            lines += [("left out", f"{whose[name]}: {reason}; {value} instead") for name, value in found.items()]
            settings = replace(settings, **found)
