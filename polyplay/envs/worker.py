"""One environment process: single Gymnasium environments, stepped in place into memory that the pool shares.

Orders come as lane numbers on one pipe, answers go as lane numbers on another (`~lane`: read the lane's
note first). Pipes are all that the two processes wait on, so a killed worker leaves no lock behind. A
lane that is asked after `terminated | truncated` is reset instead of stepped: that row is the first of
its next episode.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import Any

import gymnasium
import numpy as np

from polyplay.envs import spaces
from polyplay.envs.board import BROKEN, HOPELESS, NOTE, RESTARTED, UNBUILT, Board
from polyplay.envs.pool import EnvSpec, lane_seeds
from polyplay.errors import UserError
from polyplay.shared import Block

TRACE = 8192  # bytes for the traceback of a process that hangs or crashes
START = 60.0  # seconds that starting a process and building an environment may take at least


@dataclass(frozen=True)
class Job:
    """What a worker has to know; `maker` is cloudpickled (name, options)."""

    maker: bytes
    title: str
    spec: EnvSpec
    seed: int
    lane: int  # number of the pool's first lane in the run
    step_timeout: float
    max_restarts: int


# -------------------------------------------------------------------------------- one environment


def build(make: Callable[[], Any], title: str) -> gymnasium.Env:
    """One environment, or the vector environment that `make` makes. Raises UserError on one line: it can't be built, or
    is no gymnasium.Env.
    """
    from polyplay.envs.modes import alone

    try:
        env = alone(make, title)
    except UserError:
        raise
    except BaseException as e:
        raise UserError(f"{title}: could not be built: {one_line(e)}") from e
    if not all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
        raise UserError(f"{title}: gave {type(env).__name__}, which is no gymnasium.Env")
    return env


def inspect(env: gymnasium.Env, title: str) -> EnvSpec:
    """The description of an environment. Raises UserError: a space that is not supported."""
    obs = spaces.observation(env.observation_space, title)
    action = spaces.action(env.action_space, title)
    limit = getattr(env.spec, "max_episode_steps", None)
    text = {
        "environment": title,
        "observation": spaces.show(obs),
        "actions": str(action),
        "time limit": f"{limit} steps" if limit else "the environment's own",
    }
    return EnvSpec(obs, action, describe=text, classes=spaces.classes(env.observation_space))


def describe(name: str | Callable, options: Mapping[str, Any]) -> EnvSpec:
    """Build one environment, look, close it. Raises UserError."""
    from polyplay.envs.make import factory

    title = name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))
    make = factory(name, options)
    env = build(make, title)
    try:
        if isinstance(env, gymnasium.vector.VectorEnv):
            from polyplay.envs.modes import describe as of_vector

            return of_vector(env, make, title)
        return inspect(env, title)
    finally:
        with contextlib.suppress(Exception):
            env.close()


def one_line(e: BaseException) -> str:
    """'ValueError: text (file.py:12)' of the innermost frame."""
    text = " ".join(str(e).split())
    frames = traceback.extract_tb(e.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}{': ' if text else ''}{text}{where}"


class Fatal(Exception):
    """The pool cannot go on: a kind of note, and its text."""

    def __init__(self, kind: int, text: str):
        super().__init__(text)
        self.kind = kind


class Lane:
    """One environment and its place on the board."""

    def __init__(self, job: Job, make: Callable[[], Any], board: Board, lane: int, allow: Callable[[float], None]):
        self.job, self.make, self.board, self.lane, self.allow = job, make, board, lane, allow
        self.env: gymnasium.Env | None = None
        self.over = True  # reset at the next turn
        self.seeded = False
        self.last: Any = None

    def turn(self) -> int:
        """Make the lane's next row: its number, or `~number` with a note on the board."""
        try:
            try:
                self._advance()
                return self.lane
            except (spaces.Breach, Fatal):
                raise
            except BaseException as e:
                self._repair(e)
        except Fatal as e:
            self.board.note(self.lane, e.kind, str(e))
        except spaces.Breach as e:
            who = f"{self.job.title}, lane {self.job.lane + self.lane}"
            text = f"{who}: observation breaks its declared space: {e}"
            self.board.note(self.lane, BROKEN, text)
        return ~self.lane

    def _advance(self) -> None:
        if self.over:
            self._reset()
            return
        self.allow(self.job.step_timeout)
        action = self.board.action[self.lane]
        self.last = action
        obs, reward, terminated, truncated, _ = self.env.step(self.act(action))  # type: ignore[union-attr]
        self.write(obs)
        self._flags(float(reward), bool(terminated), bool(truncated), False)

    def _reset(self) -> None:
        if self.env is None:
            self._build()
        self.allow(self.job.step_timeout)
        seed = None if self.seeded else self.seed()
        obs, _ = self.env.reset(seed=seed)  # type: ignore[union-attr]
        self.seeded = True
        self.write(obs)
        space = self.env.observation_space  # type: ignore[union-attr]
        if not space.contains(obs):
            raise spaces.Breach(f"the reset observation is not in {space}: values beyond its bounds, or other keys")
        self._flags(0.0, False, False, True)

    def _build(self) -> None:
        self.allow(max(START, self.job.step_timeout))
        try:
            env = self.env = build(self.make, self.job.title)
        except UserError as e:
            if self.board.faults[self.lane] == 0:
                raise Fatal(UNBUILT, str(e)) from e
            raise
        spec = inspect(env, self.job.title)
        if spec.obs != self.job.spec.obs or spec.action != self.job.spec.action:
            raise spaces.Breach(
                f"declared {spaces.show(self.job.spec.obs)} / {self.job.spec.action} by the first "
                f"environment, given {spaces.show(spec.obs)} / {spec.action} by this one"
            )
        self.act = spaces.actor(env.action_space)
        self.write = spaces.writer(env.observation_space, self.board.rows["obs"], self.lane)

    def seed(self) -> int:
        """Of the lane's first reset; another one after every restart, so that it doesn't run into
        the same fault.
        """
        again = int(self.board.faults[self.lane])
        return int(lane_seeds(self.job.seed + 1_000_003 * again, self.job.lane + self.lane, 1)[0])

    def _flags(self, reward: float, terminated: bool, truncated: bool, first: bool) -> None:
        rows, lane = self.board.rows, self.lane
        self.over = terminated or truncated
        rows["reward"][lane] = reward
        rows["terminated"][lane], rows["truncated"][lane] = terminated, truncated
        rows["first"][lane], rows["over"][lane] = first, self.over

    def _repair(self, e: BaseException) -> None:
        """Close, build and reset until that works; leaves a note. Raises Fatal (too often), Breach."""
        while True:
            text = self._report(e)
            self.board.faults[self.lane] += 1
            if self.board.faults[self.lane] > self.job.max_restarts:
                raise Fatal(HOPELESS, text) from e
            self.close()
            try:
                self._reset()
            except (spaces.Breach, Fatal):
                raise
            except BaseException as again:
                e = again
                continue
            self.board.note(self.lane, RESTARTED, text)
            return

    def _report(self, e: BaseException) -> str:
        """One clear line, then the end of the environment's own traceback."""
        e = e.__cause__ if isinstance(e, UserError) and e.__cause__ is not None else e
        number = self.job.lane + self.lane
        seed = self.seed() if self.board.faults[self.lane] else int(lane_seeds(self.job.seed, number, 1)[0])
        frames = traceback.extract_tb(e.__traceback__)
        own = [f for f in frames if f.filename != __file__] or frames
        trace = "".join(traceback.format_list(own[-12:]))[-(NOTE - 1024) :]
        last = None if self.last is None else np.asarray(self.last).tolist()
        head = f"{self.job.title}, lane {number} (seed {seed}, last action {last}): "
        end = "".join(traceback.format_exception_only(e))[:500].strip()
        return f"{(head + one_line(e))[:480]}\n{trace}{end}"

    def close(self) -> None:
        """Close the environment, whatever it says to that."""
        env, self.env = self.env, None
        self.over, self.seeded, self.last = True, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()


# ------------------------------------------------------------------------------------ the process


def serve(
    orders: Connection,
    answers: Connection,
    board: Board,
    job: Job,
    me: int,
    lanes: list[int],
    each: bool,
    trace: Block,
) -> None:
    """Step `lanes` as ordered until the pool hangs up. `each`: answer lane by lane (whoever is ready
    is served).
    """
    settle(trace)
    start = int(lane_seeds(job.seed, job.lane + lanes[0], 1)[0])
    random.seed(start)  # environments that use the global generators must differ between processes
    np.random.seed(start)
    work = _lanes(job, board, me, lanes)
    source, sink = orders.fileno(), answers.fileno()
    board.deadline[me] = 0.0  # started
    with contextlib.suppress(BrokenPipeError):
        while order := os.read(source, 1 << 16):
            said = []
            for lane in np.frombuffer(order, np.int32).tolist():
                board.busy[me] = lane
                said.append(work[lane].turn())
                board.deadline[me] = 0.0
                if each:
                    os.write(sink, np.array(said, np.int32).tobytes())
                    said.clear()
            if said:
                os.write(sink, np.array(said, np.int32).tobytes())
    for one in work.values():
        one.close()


def _lanes(job: Job, board: Board, me: int, lanes: list[int]) -> dict[int, Lane]:
    def allow(seconds: float) -> None:
        board.deadline[me] = time.monotonic() + seconds

    def fail() -> Any:
        raise failure

    failure: BaseException = UserError("")
    try:
        from polyplay.envs.make import factory

        make = factory(*pickle.loads(job.maker))
    except BaseException as e:
        failure = e if isinstance(e, UserError) else UserError(f"{job.title}: {one_line(e)}")
        return {lane: Lane(job, fail, board, lane, allow) for lane in lanes}
    return {lane: Lane(job, make, board, lane, allow) for lane in lanes}


def probe(answer: Connection, maker: bytes, title: str) -> None:
    """Describe one environment to the pool's process: an EnvSpec, or the text of a UserError."""
    trace = Block(TRACE)  # its descriptor must live as long as we do
    settle(trace)
    try:
        answer.send(describe(*pickle.loads(maker)))
    except UserError as e:
        answer.send(str(e))
    except BaseException as e:
        answer.send(f"{title}: {one_line(e)}")


def settle(trace: Block) -> None:
    """Become a well-behaved environment process: its own group, ended with its parent, deaf to Ctrl-C
    and SIGTERM.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # for libraries that environments load: one process, one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when the run ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that what an environment starts can be killed with it
    faulthandler.enable(trace.fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace.fd, all_threads=False)
    parent = parent_process()
    if parent is not None:
        _die_with(parent.sentinel)


def _die_with(sentinel: int) -> None:
    """Be killed when the other end of `sentinel` closes: by a thread, and on Linux by the kernel too (an
    environment may hold the GIL for ever)."""

    def watch() -> None:
        wait([sentinel])
        _end()

    if sys.platform == "linux":
        import fcntl

        set_signal = 10  # F_SETSIG
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp() if os.getpgrp() == os.getpid() else os.getpid())
        fcntl.fcntl(sentinel, set_signal, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
