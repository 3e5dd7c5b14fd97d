"""Evaluate a run's checkpoints by a protocol (rules of how games start and end). Write scores that can be compared and
verified.

Each evaluation is a file in the run's directory, `evaluation-….json`.
"""

from __future__ import annotations

import contextlib
import fractions
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polyplay.core import checkpoint, machine, platform, processes
from polyplay.core.errors import Count, Fraction, Seed, Simulations, UserError, Whole
from polyplay.core.files import Row, write_json
from polyplay.core.numbers import mean_interval
from polyplay.core.tree import Batch
from polyplay.envs import atari
from polyplay.envs.pool import Envs, Pool, closest_names
from polyplay.envs.tasks import TaskReturns
from polyplay.runs import directory as run_files
from polyplay.runs import load
from polyplay.systems import System
from polyplay.workers import process

if TYPE_CHECKING:
    from polyplay.acting import play
    from polyplay.nets.policy import Player

MATCH = 10_000  # most games of a match; all are played at once
EVERY = 30.0  # seconds between lines of progress if standard error is not a terminal


class GamesWatch:
    """Counter of games and steps. Ends an evaluation at a signal, or after `max_steps` steps of all environments."""

    def __init__(self) -> None:
        self.max_steps: int | None = None
        self.games, self.steps, self.total = 0, 0, 0.0
        self.signal, self.warned, self.ended = 0, 0.0, ""  # ended: cause of an early end
        self._show: Callable[[], None] = lambda: None

    def step(self, found: list[play.PlayedGame], lanes: int) -> bool:
        """Count a step of `lanes` environments, and the ended games. Return whether the evaluation continues."""
        self.games, self.steps = self.games + len(found), self.steps + lanes
        self.total += sum(game.ret for game in found)
        self._show()
        if self.signal:
            self.ended = f"stopped by {processes.name(self.signal)}"
        elif self.max_steps is not None and self.steps >= self.max_steps:
            self.ended = f"--max-steps {self.max_steps:,} are over"
        return not self.ended

    @contextlib.contextmanager
    def on_screen(self, episodes: int, console: Console | None = None) -> Iterator[None]:
        """Within this context, show progress (a bar on a terminal, else a line every 30 s), and handle signals."""
        console = console or Console(stderr=True, highlight=False)
        columns = (TextColumn("games"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
        task, due = bar.add_task("", total=episodes), time.monotonic() + EVERY

        def show() -> None:
            nonlocal due
            mean = f"mean return {self.total / self.games:,.2f}" if self.games else "no game has ended yet"
            line = f"{mean} · {self.steps:,} steps"
            bar.update(task, completed=self.games, description=line)
            if not console.is_terminal and time.monotonic() >= due:
                due = time.monotonic() + EVERY
                console.print(f"{self.games:,} of {episodes:,} games · {line}", soft_wrap=True)

        self._show = show
        shown = bar if console.is_terminal else contextlib.nullcontext()  # before Rich 14.3 a hidden bar prints a line
        with shown, processes.handled(self._receive):
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            if time.monotonic() - self.warned >= processes.AGAIN:
                raise processes.Stopped(number)
            return
        self.signal, self.warned = number, time.monotonic()
        what = "ending after this step; a second signal, at least 1 s later, ends without a score"
        with contextlib.suppress(OSError):  # no print: a stream could wait for a lock that this thread holds
            os.write(2, f"\npolyplay: {processes.name(number)}: {what}\n".encode())


SEEN_RATE = 15.0  # pictures per second of shown observations: one per four frames
SCALE = 4  # height and width in a film of each pixel of an observation
GIF_SECONDS, GIF_RATE = 20.0, 15.0  # a GIF's most seconds, and its pictures per second


def with_pictures(envs: Envs, option: str) -> Envs:
    """Return `envs`, changed so that each step gives a picture. Atari games show the emulator's screen, and other
    Gymnasium environments the result of render(). Built-in and EnvPool environments stay unchanged. `option`: its name
    in error messages. Raises UserError.
    """
    title = envs.spec.tasks[envs.only] if envs.spec.tasks else envs.title
    if atari.plays_games(envs):
        return replace(envs, inline=True, options={**envs.options, "pipeline": "plain"})
    if title.startswith(("arena:", "toy:", "game:", "envpool:")):
        return envs
    shown = replace(envs, inline=True, options={**envs.options, "render_mode": "rgb_array"})
    try:
        shown.spec  # noqa: B018 - builds one
    except UserError as e:
        raise UserError(f"{option}: needs an environment that takes render_mode='rgb_array'; {e}") from None
    return shown


def picture(step: Batch, pool: Pool, option: str) -> tuple[np.ndarray, float]:
    """Return a picture of the first environment, RGB uint8 [H, W, 3], and the number of pictures per second. If nothing
    is rendered, the picture is the newest plane of an image observation. Raises UserError.
    """
    try:
        rendered = pool.picture(0)
    except Exception as e:
        why = " ".join(str(e).split())
        if isinstance(e, DependencyNotInstalled) and "pygame" in why:
            raise UserError(f"{option}: needs the package pygame; `{machine.install_command(option[2:])}`") from None
        raise UserError(f"{option}: rendering failed: {type(e).__name__}: {why}") from e
    if rendered is None:
        obs = step["obs"]
        if isinstance(obs, dict) or obs.ndim != 4 or obs.dtype != np.uint8:
            raise UserError(f"{option}: needs image observations [C, H, W] of uint8; this environment has none")
        plane = np.repeat(np.repeat(obs[0, -1], SCALE, 0), SCALE, 1)
        return np.stack([plane] * 3, -1), SEEN_RATE
    array, rate = np.asarray(rendered[0]), rendered[1]
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise UserError(f"{option}: render() gave {array.dtype} {list(array.shape)}; it must give uint8 [H, W, 3]")
    return array, rate


DRIVER = "SDL_VIDEODRIVER"  # environment variable with the video driver of pygame, which draws many environments


def write_gif(film: Path, out: Path) -> None:
    """Write the first seconds of the video file `film` as a GIF."""
    import av

    with av.open(str(film)) as read, av.open(str(out), "w", format="gif") as written:
        shown, rate = read.streams.video[0], float(read.streams.video[0].average_rate or SEEN_RATE)
        graph, stride = av.filter.Graph(), max(round(rate / GIF_RATE), 1)
        begin, sink = graph.add_buffer(template=shown), graph.add("buffersink")
        split, palette, use = (graph.add(name) for name in ("split", "palettegen", "paletteuse"))
        for a, b, pads in ((begin, split, (0, 0)), (split, use, (0, 0)), (split, palette, (1, 0))):
            a.link_to(b, *pads)
        palette.link_to(use, 0, 1)
        use.link_to(sink)
        graph.configure()
        for i, frame in enumerate(read.decode(shown)):
            if i < rate * GIF_SECONDS and i % stride == 0:
                graph.vpush(frame)
        graph.vpush(None)
        speed = max(round(rate / stride), 1)
        stream = written.add_stream("gif", rate=speed)
        stream.width, stream.height, stream.pix_fmt = shown.width, shown.height, "pal8"
        with contextlib.suppress(av.error.EOFError, av.error.BlockingIOError):
            number = 0
            while True:
                frame = graph.vpull()
                frame.pts, frame.time_base, number = number, fractions.Fraction(1, speed), number + 1
                written.mux(stream.encode(frame))
        written.mux(stream.encode())


class Film:
    """Recorder of a video (H.264) of the first environment's first game, and of a GIF of its first seconds. After an
    error, it prints the error, keeps the text in `fault`, and writes no file. The games continue.
    """

    option = "--video"

    def __init__(self, path: Path):
        self.path, self.fault, self._done = path, "", False
        self._part = path.with_name(f".partial-{path.name}")
        self._gif = self._part.with_suffix(".gif")
        self._out: Any = None
        self._stream: Any = None

    def shown(self, envs: Envs) -> Envs:
        """Return `envs` set up to give a picture of each step, or unchanged `envs` after an error."""
        with self._guarded():
            return with_pictures(envs, self.option)
        return envs

    def __call__(self, step: Batch, pool: Pool) -> None:
        if not self._done:
            with self._guarded():
                self._write(*picture(step, pool, self.option))
                self._done = bool(step["over"][0])

    def close(self) -> None:
        """Move the files to their final names, if the video has pictures and no error. Further calls have no effect."""
        out, self._out, self._done = self._out, None, True
        with self._guarded():
            if out is not None:
                with closing(out):
                    out.mux(self._stream.encode())
                if not self.fault:
                    write_gif(self._part, self._gif)
                    platform.replace(self._gif, self.path.with_suffix(".gif"))
                    platform.replace(self._part, self.path)
        for part in (self._part, self._gif):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _write(self, shown: np.ndarray, rate: float) -> None:
        try:
            import av
        except ImportError:
            raise UserError(f"--video: needs the package av; `{machine.install_command('video')}`") from None
        shown = shown[: len(shown) // 2 * 2, : shown.shape[1] // 2 * 2]  # yuv420p needs even sides
        if self._out is None:
            self._out = av.open(str(self._part), "w")
            self._stream = self._out.add_stream("libx264", rate=round(rate))
            self._stream.height, self._stream.width = shown.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")
        self._out.mux(self._stream.encode(frame))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Within this context, print the first error, and stop recording the video."""
        try:
            yield
        except Exception as e:
            why = str(e) if isinstance(e, UserError) else f"{self.option}: {type(e).__name__}: {e}"
            if not self.fault:
                self.fault, self._done = " ".join(why.split()), True
                print(f"polyplay: {self.fault}; there is no video, but the games are scored", file=sys.stderr)


@contextlib.contextmanager
def without_a_screen() -> Iterator[None]:
    """Within this context, prevent pygame from looking for a screen."""
    before = os.environ.get(DRIVER)
    os.environ[DRIVER] = before or "dummy"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DRIVER)


UNSEEN = ("dummy", "offscreen")  # drivers of SDL without a screen


class Window:
    """Window that shows the first environment's games at normal speed. The games continue if it is closed or fails."""

    option = "--render"

    def __init__(self, title: str):
        try:
            import pygame
        except ImportError:
            raise UserError(f"--render: needs the package pygame; `{machine.install_command('render')}`") from None
        self._pygame, self._title = pygame, title
        self._clock, self._open, why = pygame.time.Clock(), True, ""
        try:
            pygame.display.init()
            driver = pygame.display.get_driver()
            if driver in UNSEEN and os.environ.get(DRIVER) != driver:
                why = f"SDL found only its driver {driver!r}"
        except pygame.error as e:
            why = str(e)
        if why:
            raise UserError(f"--render: no window can be opened here ({why}); --video writes a file instead")

    def shown(self, envs: Envs) -> Envs:
        """Return `envs` set up to give a picture of each step. Raises UserError."""
        return with_pictures(envs, self.option)

    def __call__(self, step: Batch, pool: Pool) -> None:
        """Show a step in the window, unless the window was closed. Raises UserError if the first picture fails."""
        try:
            if self._open:
                self._show(step, pool)
        except (UserError, self._pygame.error) as e:
            if self._pygame.display.get_surface() is None:
                raise UserError(f"--render: {e}") from None
            print(f"polyplay: {' '.join(str(e).split())}; the games continue without a window", file=sys.stderr)
            self.close()

    def _show(self, step: Batch, pool: Pool) -> None:
        shown, rate = picture(step, pool, self.option)
        size, surface = (shown.shape[1], shown.shape[0]), self._pygame.display.get_surface()
        if surface is None or surface.get_size() != size:
            surface = self._pygame.display.set_mode(size)
            self._pygame.display.set_caption(self._title)
        self._pygame.surfarray.blit_array(surface, shown.swapaxes(0, 1))
        self._pygame.display.flip()
        self._clock.tick(rate)
        if any(event.type == self._pygame.QUIT for event in self._pygame.event.get()):
            self.close()

    def close(self) -> None:
        self._open = False
        self._pygame.display.quit()


def check_board_options(options: EvaluateOptions) -> None:
    """Raise UserError if options do not fit the protocol. This check is fast, because it imports nothing large."""
    name, board = options.protocol, atari.protocol(options.protocol).board
    given = {"--against": options.against, "--opening-plies": options.opening_plies}
    if wrong := [f"{flag} {value}" for flag, value in given.items() if value is not None and name != "versus"]:
        raise UserError(f"{wrong[0]} is for --protocol versus, but {name} is set: leave it out")
    if wrong := [f"--{flag}" for flag in ("video", "render") if vars(options)[flag] and board]:
        raise UserError(f"{wrong[0]} is not for --protocol {name}: use --protocol run")
    if name != "versus":
        return
    if options.against is None:
        allowed = "random, mcts:N, perfect, gtp:COMMAND, or the directory of a run"
        raise UserError(f"--protocol versus needs --against: {allowed}")
    if options.episodes and options.episodes > MATCH:
        raise UserError(f"--episodes {options.episodes} given, but a match has at most {MATCH:,} games: lower it")
    if options.episodes and options.episodes % 2:
        why = "both colors play every opening: give an even number"
        raise UserError(f"--episodes {options.episodes} given, but {why}")


SCHEMA = 1
LONGEST_SLUG = 120  # most letters of a protocol in a file name


@dataclass(frozen=True)
class EvaluateOptions:
    """Plays full games, measures undiscounted and unclipped returns, and writes them to the run's directory."""

    protocol: Literal["run", "null-op", "null-op-30min", "null-op-1-30", "human-starts", "sticky", "versus"] = "run"
    # how games start and end. run: as in training. null-op: 0-30 no-ops and at most 18,000 frames. null-op-30min: 0-30
    # no-ops and 108,000 frames. null-op-1-30: 1-30 no-ops and 108,000 frames. human-starts: from the start states of a
    # file. sticky: sticky actions of 0.25. versus: a match with --against
    episodes: Count | None = None  # number of full games (none: the protocol's, 30 or 100)
    seed: Seed = 0  # seed of environments and actions
    epsilon: Fraction | None = None  # probability of a uniform random action (none: the system's value, mostly 0)
    video: bool = False  # write the first game to the run's directory as MP4, and its first seconds as GIF
    render: bool = False  # show the games in a window, at normal speed
    checkpoint: str | None = None  # checkpoint to load: best, or the number its name begins with (none: the newest)
    greedy: bool = False  # take the most probable action instead of a sampled one
    agent: str | None = None  # agent of a league: best (by its Elo), or its number (none: the first)
    task: str | None = None  # task to play, if the run has several (none: each in turn)
    against: str | None = None
    # opponent in --protocol versus: random, mcts:N, in connect four perfect, in Go a program (gtp:COMMAND), or the
    # directory of a run or of a checkpoint
    starts: str | None = None  # file of start states, for --protocol human-starts
    simulations: Simulations | None = None
    # simulations of the search per move, also for a run in --against; 0: the network alone (none: the run's own number)
    opening_plies: Whole | None = None  # random moves before a game of --protocol versus (none: 2)
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where the network computes (auto: on CUDA if there is a GPU)
    max_steps: Count | None = None
    # stop after this many agent steps, summed over all parallel games, with the score of the games that have ended
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def evaluate(directory: Path, options: EvaluateOptions | None = None, watch: GamesWatch | None = None) -> Row:
    """Play full games with the weights of a checkpoint. Write the evaluation to the run's directory, and return it.

    If the evaluation ends early, it is not written, and its entry `ended` has the reason. If the run's directory is
    read-only, no evaluation is written, and a video goes to the current folder.
    `watch`: shows progress and handles signals.
    """
    options = options or EvaluateOptions()
    protocol = atari.protocol(options.protocol)
    check_board_options(options)
    page, settings, run_options, config = load.load_run(directory, options.trust)
    found = load.choose_checkpoint(directory, options.checkpoint)
    wired = page.build(settings, load.crew_of(replace(run_options, device="cpu")))
    load.check_spaces(directory, wired.envs)
    if (tasks := wired.envs.spec.tasks) and options.task is None:
        same = replace(options, checkpoint=found.name if found.parent.name == "checkpoints" else options.checkpoint)
        return join_tasks(directory, same, tasks, watch)
    envs, starts = atari.apply(protocol, choose_task(wired.envs, options.task), options.starts)
    label, against = atari.label(protocol, starts), options.against or ""
    label += f" {against if against.startswith('gtp:') else Path(against).name}" if against else ""
    label += "" if options.simulations is None else f", {options.simulations} simulations"
    name = file_name(options, found.name, label)
    read_only = run_files.is_read_only(directory)
    video = (Path() if read_only else directory) / f"{name}.mp4" if options.video else None
    played = play_and_score(wired, envs, found, options, video, watch)
    result = {**_origin(directory, wired, found, config, starts, played.get("agent", 0)), **played, "label": label}
    result |= {} if options.task is None else {"task": options.task, "game": atari.game(envs)}
    result |= {"environment": dict(envs.spec.describe)}
    if "ended" not in result and read_only:
        why = f"which is read-only ({run_files.READ_ONLY})"
        print(f"polyplay: nothing is written to {directory}, {why}", file=sys.stderr)
    elif "ended" not in result:
        result |= {"signature": signed} if (signed := run_files.program_signature(result)) else {}
        write_json(directory / f"{name}.json", result)
    return result


def choose_task(envs: Envs, task: str | None) -> Envs:
    """Return `envs` with `task` in all lanes (parallel environments), or unchanged for None. Raises UserError."""
    if task is None:
        return envs
    if task not in (names := envs.spec.tasks):
        raise UserError(f"--task: {task} given{closest_names(task, names)}; allowed: {', '.join(names) or 'none here'}")
    return envs.share(only=names.index(task))


def join_tasks(directory: Path, options: EvaluateOptions, names: tuple[str, ...], watch: GamesWatch | None) -> Row:
    """Evaluate each task into a separate file, and join the results. The joined score is the mean of the tasks'
    human-normalized scores. If a task has no human baseline, it is the mean of the returns. If the evaluation ends
    early, the remaining tasks are missing.
    """
    rows, returns = list[Row](), TaskReturns(names, fewest=1, window=None)
    for name in names:
        own = None if watch is None else GamesWatch()
        try:
            row = evaluate(directory, replace(options, task=name), own)
        except UserError:
            if not rows or own is None or not own.ended:
                raise
            rows[-1]["ended"] = own.ended
        else:
            rows.append(row)
            returns.add(name, *row["returns"])
        if watch is not None and own is not None:
            watch.signal = own.signal
        if "ended" in rows[-1]:
            break
    of_all = {k: rows[0][k] for k in ("protocol", "label", "checkpoint", "frames_trained", "actions", "epsilon")}
    shown = ("episodes", "episodic_return_mean", "interval", "game")
    tasks = {row["task"]: {k: row[k] for k in shown} for row in rows}
    ended = {"ended": rows[-1]["ended"]} if "ended" in rows[-1] else {}
    return {**of_all, "tasks": tasks, **returns.row(), "episodic_return_mean": returns.score(), **ended}


def play_and_score(
    wired: System,
    envs: Envs,
    found: Path,
    options: EvaluateOptions,
    video: Path | None = None,
    watch: GamesWatch | None = None,
) -> Row:
    """Play games. Return scores, and all entries needed to repeat the games. Raises UserError if no game has ended."""
    from polyplay.acting import play

    policy, where, about = _load(wired, found, options)
    protocol, mine, film = atari.protocol(options.protocol), watch or GamesWatch(), Film(video) if video else None
    episodes, mine.max_steps = options.episodes or protocol.episodes, options.max_steps
    epsilon = float(wired.test_epsilon if options.epsilon is None else options.epsilon)
    how = play.PlayOptions(episodes, options.seed, options.greedy, epsilon)
    before, name = time.monotonic(), found.parents[1].name
    viewers: list[Film | Window] = []
    with ExitStack() as stack:
        stack.enter_context(mine.on_screen(episodes) if watch else nullcontext())
        if protocol.board:
            from polyplay.evaluation.matches import play_versus

            result = play_versus(wired, policy, name, options, where, episodes, mine.step)
        else:
            viewers += [stack.enter_context(closing(film))] if film else []
            if options.render:
                viewers.append(stack.enter_context(closing(Window(f"polyplay {wired.envs.title}"))))
            stack.enter_context(nullcontext() if options.render else without_a_screen())
            for viewer in viewers:
                envs = viewer.shown(envs)
            games = play.play_games(envs, policy, how, viewers, mine.step)
            result = play.summarize_games(games, envs.spec.frames_per_step) if games else {"returns": []}
    if not result["returns"]:
        raise UserError(f"{mine.ended}: no game has finished, so there is no score")
    return {
        "protocol": options.protocol,
        "seed": options.seed,
        "lanes": episodes if protocol.board else play.lanes_of(envs, episodes),
        **about,
        "epsilon": how.epsilon,
        "actions": "greedy" if options.greedy else "sampled",
        **result,
        "seconds": round(time.monotonic() - before, 3),
        "interval": mean_interval(result["returns"]),
        **({"ended": mine.ended, "asked": episodes} if result["episodes"] < episodes else {}),
        **({"video": None if film.fault else str(film.path)} if film else {}),
        **({"pipeline": "plain"} if viewers and atari.plays_games(envs) else {}),
    }


def _load(wired: System, found: Path, options: EvaluateOptions) -> tuple[Player, str, Row]:
    """Return the policy, its device, and entries about both for a record. Raises UserError."""
    import torch

    from polyplay.acting import play
    from polyplay.nets import device

    process.tune(1)  # the environments' threads have the other cores; more compute threads would only wait
    torch.manual_seed(options.seed)
    where = device.choose_devices(options.device)[0]
    if wired.player is None and options.simulations is not None:
        given = f"--simulations {options.simulations} given"
        raise UserError(f"{given}, but this run's policy does not search: leave it out")
    whose = load.choose_agent(found.parents[1], found, options.agent)
    policy = play.load_player(wired, found, where, options.simulations, whose)
    about: Row = {"device": where if where == "cpu" else device.device_name(where)}
    about |= {} if options.agent is None else {"agent": whose}
    if wired.player is not None:
        from polyplay.search.search import SearchPolicy

        about["simulations"] = policy.simulations if isinstance(policy, SearchPolicy) else None
    return policy, where, about


def file_name(options: EvaluateOptions, found: str, label: str) -> str:
    """Return an evaluation's file name without extension: checkpoint, label, task, agent, epsilon, seed, greedy."""
    slug = re.sub(r"[^\w.]+", "-", label).strip("-")
    if len(slug) > LONGEST_SLUG:  # from a long command of a Go program
        slug = f"{slug[:LONGEST_SLUG]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    parts = ["evaluation", found] + ([] if slug == "run" else [slug])
    parts += [] if options.task is None else [re.sub(r"[^\w.]+", "-", options.task)]
    parts += [] if options.agent is None else [f"agent-{options.agent}"]
    parts += [] if options.epsilon is None else [f"eps{options.epsilon:g}"]
    return "-".join([*parts, f"seed{options.seed}", *(["greedy"] if options.greedy else [])])


def _origin(directory: Path, wired: System, found: Path, config: Row, starts: atari.Starts | None, agent: int) -> Row:
    """Return where a score comes from: run, checkpoint, start states, versions and machine."""
    stamp, counters = machine.stamp(), checkpoint.manifest(found)["counters"]
    chosen = {checkpoint.BEST: "evaluation", checkpoint.CHAMPION: "match"}
    by = next((by for prefix, by in chosen.items() if found.name.startswith(prefix)), "training return")
    files = None if starts is None else {k: vars(starts)[k] for k in ("path", "digest", "kind", "source")}
    return {
        "schema": SCHEMA,
        "chosen_by": by if found == checkpoint.best(directory) else None,
        "system": config["system"],
        "env": config["config"]["env"],
        "game": atari.game(wired.envs),
        "trained_seed": config["seed"],
        "checkpoint": found.name,
        "checkpoint_sha256": load.weights_digest(found, agent),
        "frames_trained": counters.get("frames"),
        "config_hash": run_files.config_hash(config),
        "starts": files,
        **{k: stamp[k] for k in ("versions", "commit", "machine")},
        "finished": stamp["started"],
    }
