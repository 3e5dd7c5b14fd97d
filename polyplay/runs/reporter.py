"""Write the reports of a run: metrics.jsonl, episodes.jsonl and other logs, tensorboard/, and summary.json.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from polyplay.core.errors import UserError
from polyplay.core.files import AppendFile, JsonLines, LogWrites, Row, read_lines, to_plain, write_json
from polyplay.core.machine import install_command, now
from polyplay.envs.tasks import TaskReturns
from polyplay.runs.directory import GAME, METRICS, read_config
from polyplay.runs.options import RunOptions

# Names of metrics in TensorBoard and W&B: Polyplay's, CleanRL's or Stable-Baselines3's.
#
# metrics.jsonl always has Polyplay's names. Styles differ only in names, not in values, except that SB3's entropy_loss
# has the opposite sign (docs/guides/wandb.md). The x axis is agent steps in every style, as in the other libraries.


# Polyplay's name → the other library's name; a metric that is in no table becomes polyplay/NAME
CLEANRL = {
    **{k: f"charts/{k}" for k in ("learning_rate", "episodic_return", "episodic_length")},
    **{k: f"losses/{k}" for k in ("policy_loss", "value_loss", "entropy", "approx_kl")},
    **{k: f"losses/{k}" for k in ("explained_variance", "td_loss", "q_values")},
    **{"sps": "charts/SPS", "clip_fraction": "losses/clipfrac"},
}
SB3 = {
    **{"episodic_return_mean": "rollout/ep_rew_mean", "episodic_length_mean": "rollout/ep_len_mean"},
    **{"sps": "time/fps", "wall_seconds": "time/time_elapsed", "steps": "time/total_timesteps"},
    **{"updates": "train/n_updates", "entropy": "train/entropy_loss"},
    **{k: f"train/{k}" for k in ("learning_rate", "loss", "policy_loss", "value_loss")},
    **{k: f"train/{k}" for k in ("approx_kl", "clip_fraction", "explained_variance")},
}
KINDS = ("env", "infer", "learn", "replay", "wait")
RATES = ("pps", "tps", "predict_batch", "train_batch", "prediction_queue", "agent_wait_ms", "cpu")
BEST = "episodic_return_mean_best"
GROUPS = {
    "charts": ("episodic_return_mean", "episodic_length_mean", "frames", "episodes", "learning_rate", BEST),
    "run": ("lag_mean", "lag_max", "queue_depth", "restarts", "memory_mb"),
    "service": (*RATES, "agents", "predictors", "trainers"),
}
POLYPLAY = {"sps": "charts/SPS", "fps": "charts/FPS", **{f"time_{k}": f"time/{k}" for k in KINDS}}
POLYPLAY |= {name: f"{group}/{name}" for group, names in GROUPS.items() for name in names}
OTHERS = ("steps", "updates", "wall_seconds")  # columns of a report that only the styles cleanrl and sb3 show

Scalars = Mapping[str, float | None]


def of_report(style: str, row: Scalars, losses: Collection[str]) -> Scalars:
    """Return the metrics of a metrics.jsonl line that TensorBoard and W&B show, under the names that they have in
    `style`.

    `style`: "polyplay", "cleanrl" or "sb3".
    `losses`: names of the learners' metrics.
    """
    if style == "polyplay":
        return {POLYPLAY.get(k, f"losses/{k}"): v for k, v in row.items() if k in POLYPLAY or k in losses}
    names = CLEANRL if style == "cleanrl" else SB3
    shown = {k: v for k, v in row.items() if k in POLYPLAY or k in OTHERS or k in losses}
    entropy = shown.get("entropy")
    if style == "sb3" and entropy is not None:
        shown["entropy"] = -entropy  # SB3 reports the entropy loss, −H
    return {names.get(k, f"polyplay/{k}"): v for k, v in shown.items()}


def of_episode(style: str, game: Mapping[str, float]) -> Scalars:
    """Return the return and length of a finished game, as in `of_report`. For the style "sb3", return {}."""
    return {} if style == "sb3" else {f"charts/{k}": game[k] for k in ("episodic_return", "episodic_length")}


def of_evaluation(style: str, row: Scalars) -> Scalars:
    """Return the mean return and length of an evaluation during training, as in `of_report`."""
    means = {k: row[f"episodic_{k}_mean"] for k in ("return", "length")}
    if style == "sb3":
        return {"eval/mean_reward": means["return"], "eval/mean_ep_length": means["length"]}
    return {f"eval/episodic_{k}_mean": v for k, v in means.items()}


# Weights & Biases (W&B): sending metrics there neither delays nor ends a run.
#
# A thread sends the metrics, so the run never waits for the network. After a failure, the run warns once and sends no
# more; its directory has all metrics. Without an API key, W&B stores the metrics in RUN/wandb, for `wandb sync`.


Send = Callable[[Any], None]  # function that calls a method of W&B's run object
# entries of config.json that are sent to W&B
WANDB = ("system", "seed", "config", "options", "environment", "versions", "machine")
LAST = 20.0  # seconds that the end of a run waits for unsent metrics
BACKLOG = 10_000  # most unsent calls; if more calls wait, sending stops


def check_wandb(project: str | None) -> None:
    """Raise UserError if the user wants to send metrics to W&B, but the package is not installed."""
    found = importlib.util.find_spec("wandb") if project else None
    if project and (found is None or found.origin is None):  # a mere directory wandb has no origin
        raise UserError(f"--wandb: needs the package wandb; `{install_command('wandb')}`, or leave --wandb out")


class WandbLogger:
    """Sends reports to Weights & Biases (W&B). Call `write` for each report, then `close`."""

    def __init__(self, project: str, directory: Path, warn: Callable[[str], None]):
        self.project, self.directory, self.warn = project, directory, warn
        self.due: queue.Queue[Send | None] = queue.Queue(BACKLOG)
        self.failure = ""
        self.thread = threading.Thread(target=self._pass_on, name="polyplay-wandb", daemon=True)
        self.thread.start()

    def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Send the metrics at agent step `step`. Metrics without a value are left out."""
        row = {"global_step": step, **{k: v for k, v in scalars.items() if v is not None}}
        self._put(lambda run: run.log(row))

    def close(self, summary: Mapping[str, object]) -> None:
        """Send the run's summary, and report its end. Wait at most LAST seconds for metrics that are not sent yet."""
        self._put(lambda run: run.summary.update(dict(summary)))
        self._put(lambda run: run.finish(exit_code=summary["exit_code"]))
        self._put(None)
        self.thread.join(LAST)
        if self.thread.is_alive() and not self.failure:
            self.failure = f"some metrics were not sent in {LAST:.0f} s; `wandb sync {self.directory}/wandb/…` does it"
        self._warn_once()

    def _put(self, send: Send | None) -> None:
        self._warn_once()
        if not self.failure:
            try:
                self.due.put_nowait(send)
            except queue.Full:
                self.failure = "it does not respond"

    def _warn_once(self) -> None:
        """Warn once about a failure, in the main thread, because other threads must not write to the terminal."""
        if self.failure:
            self.warn(f"W&B: {self.failure}; the run continues without it; its directory has all metrics")
            self.warn = lambda text: None

    def _pass_on(self) -> None:
        try:
            run = self._begin()
            while (send := self.due.get()) is not None:
                send(run)
        except BaseException as e:  # also W&B's SystemExit and KeyboardInterrupt
            self.failure = " ".join(f"{type(e).__name__}: {e}".split())

    def _begin(self) -> Any:
        wandb, config = importlib.import_module("wandb"), read_config(self.directory)
        name = hashlib.sha256(f"{config['started']} {self.directory.name}".encode()).hexdigest()[:12]
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        run = wandb.init(
            project=self.project,
            name=self.directory.name,
            id=name,  # a resumed run keeps this id
            resume="allow",
            dir=str(self.directory),
            mode=mode,
            config={k: config[k] for k in WANDB},
            settings=wandb.Settings(console="off", silent=True),
        )
        run.define_metric("*", step_metric="global_step")
        return run


WINDOW = 100  # number of last full games in a mean
TOTALS = ("frames", "steps", "updates")


class Reporter:
    """Writes all reports of a run, in the main process. In a resumed run, appends to the existing files.

    `start`: frames, steps, updates, wall_seconds and episodes of the checkpoint to resume from (default: the last
    report). Games that ended after the checkpoint are not counted, because the resumed run plays them again.
    `warn`: called once for each file that cannot be written, as on a full disk. The run then continues without this
    file.
    `tasks`: names of the tasks, if the run has several. The mean return is then the mean of the tasks' scores.

    Attributes to read at any time: episodes, wall_seconds, return_mean, and return_best (the highest return_mean since
    the 100th game, or None before it).
    """

    def __init__(
        self,
        directory: Path,
        options: RunOptions | None = None,
        start: Mapping[str, float] | None = None,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        tasks: tuple[str, ...] = (),
    ) -> None:
        options = options or RunOptions()
        self.tasks = TaskReturns(tasks) if tasks else None
        self.directory, self.clock, self.writes = Path(directory), clock, LogWrites(warn)
        self.files = {name: JsonLines(self.directory / f"{name}.jsonl") for name in ("metrics", "episodes")}
        self.style, self.log_episodes, self.closed = options.metrics_style, options.log_episodes, False
        self.events = TensorBoardWriter(self.directory / "tensorboard") if options.tensorboard else None
        self.tracker = WandbLogger(options.wandb, self.directory, warn) if options.wandb else None
        (self.directory / "summary.json").unlink(missing_ok=True)
        self.listen: Callable[[str, Row], None] = lambda file, row: None  # called with each log and line
        self.episodes = 0
        self.return_best: float | None = None
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.agents: dict[int, deque[float]] = {}  # returns of each agent's games, with several agents
        self.names: set[Any] | None = None  # names of the games in games.jsonl; None: not read yet
        self.row, self.base = self._earlier(start or {})
        self.begun = clock()

    def _earlier(self, start: Mapping[str, float]) -> tuple[Row, float]:
        """Read the counters and the wall seconds at which a resumed run continues."""
        last: Row = {}
        for row in read_lines(self.directory / "metrics.jsonl", *METRICS):
            last = row
        row = {k: start.get(k, last.get(k, 0)) for k in TOTALS}
        self.return_best = last.get(BEST)
        wall = max(last.get("wall_seconds", 0.0), start.get("wall_seconds", 0.0))
        for game in read_lines(self.directory / "episodes.jsonl", *GAME):
            wall = max(wall, game["wall_seconds"])
            if game["frames"] <= row["frames"]:
                self._count(game)
        self.episodes = max(self.episodes, int(start.get("episodes", 0)))
        return row, wall

    @property
    def wall_seconds(self) -> float:
        """Seconds that this run has taken, earlier sessions included."""
        return self.base + self.clock() - self.begun

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 full games, or the mean of several tasks' scores. None before the first game."""
        return _mean(self.returns) if self.tasks is None else self.tasks.score()

    def _means(self) -> Row:
        agents = {str(agent): _mean(self.agents[agent]) for agent in sorted(self.agents)}
        return {
            "episodes": self.episodes,
            "episodic_return_mean": self.return_mean,
            BEST: self.return_best,
            "episodic_length_mean": _mean(self.lengths),
            **({"agent_return_means": agents} if agents else {}),
            **(self.tasks.row() if self.tasks is not None else {}),
        }

    def reached(self, target: float) -> bool:
        """Tell whether 100 games have finished, and the mean return of the last 100 games is at least `target`."""
        mean = self.return_mean
        return len(self.returns) == WINDOW and mean is not None and mean >= target

    def episode(self, *games: Row) -> None:
        """Write full games that have ended.

        Each game has the run's frames and steps at its end, its unclipped return, its length in agent steps, the index
        of its lane (parallel environment) and, with several agents, its agent.
        """
        rows = [self._line(game) for game in games]
        if self.log_episodes and rows:
            self._write("episodes", *rows)
        for game, row in zip(games, rows, strict=True):
            self._count(game)
            if self.log_episodes:
                self._event(game["steps"], of_episode(self.style, game))
            self.listen("episodes", row)

    def decision(self, decided: Mapping[str, Any], steps: int, updates: int) -> Row:
        """Write a decision about the number of workers (`autoscale.schedule`). Return the line of decisions.jsonl."""
        row = self._append("decisions", {"steps": steps, "updates": updates, **decided})
        chosen = row["to"] if row["kept"] else row["from"]
        self._event(steps, {f"schedule/{name}": n for name, n in chosen.items()})
        return row

    def evaluation(self, evaluated: Mapping[str, Any]) -> Row:
        """Write an evaluation made during training, and return the line of evaluations.jsonl."""
        row = self._append("evaluations", evaluated)
        self._event(row["steps"], of_evaluation(self.style, row))
        return row

    def match(self, played: Mapping[str, Any], steps: int, updates: int) -> Row:
        """Write a match that decides whether new weights are used. Return the line of matches.jsonl."""
        row = self._append("matches", {"steps": steps, "updates": updates, **played})
        self._event(steps, {"gate/points": row["points"] / row["games"], "gate/champion": row["champion"]})
        return row

    def game(self, played: Mapping[str, Any], steps: int, updates: int) -> None:
        """Write a game of self-play by search. A resumed run may repeat a game, which is then ignored."""
        if self.names is None:
            self.names = {row.get("name") for row in read_lines(self.directory / "games.jsonl")}
        if played["name"] not in self.names:
            self.names.add(played["name"])
            self._append("games", {"steps": steps, "updates": updates, **played})

    def report(self, numbers: Row, losses: Scalars | None = None) -> Row:
        """Write a report: numbers of all workers, and metrics of the learners. Return the line of metrics.jsonl."""
        losses = losses or {}
        self.row = self._append("metrics", {**numbers, **self._means(), **losses})
        self._event(self.row["steps"], of_report(self.style, self.row, losses))
        return self.row

    def restore(self) -> None:
        """Write the open files again if they were deleted."""
        files = {f"{name}.jsonl": lines.file for name, lines in self.files.items()}
        for name, file in (files | ({"tensorboard/": self.events.file} if self.events else {})).items():
            self.writes.attempt(name, file.restore)

    def close(self, reason: str, exit_code: int, **extra: object) -> Row:
        """Write summary.json (once), close the files, and return the summary."""
        summary: Row = to_plain(
            {
                "reason": reason,
                "exit_code": exit_code,
                "directory": str(self.directory),
                "wall_seconds": round(self.wall_seconds, 3),
                **{k: self.row[k] for k in TOTALS},
                **self._means(),
                **({"agent_elo": self.row["agent_elo"]} if "agent_elo" in self.row else {}),
                "restarts": self.row.get("restarts", 0),
                "finished": now(),
                **extra,
            }
        )
        if not self.closed:
            self.closed = True
            self.writes.attempt("summary.json", lambda: write_json(self.directory / "summary.json", summary))
            for file in self.files.values():
                file.close()
            if self.events:
                self.events.close()
            if self.tracker:
                self.tracker.close(summary)
        return summary

    def _count(self, game: Row) -> None:
        self.episodes += 1
        if "agent" in game:
            self.agents.setdefault(game["agent"], deque(maxlen=WINDOW)).append(game["episodic_return"])
        self.returns.append(game["episodic_return"])
        self.lengths.append(game["episodic_length"])
        if self.tasks is not None and game.get("task") in self.tasks.returns:
            self.tasks.add(game["task"], game["episodic_return"])
        mean = self.return_mean
        if len(self.returns) == WINDOW and mean is not None:
            self.return_best = mean if self.return_best is None else max(self.return_best, mean)

    def _append(self, name: str, row: Mapping[str, Any]) -> Row:
        line = self._line(row)
        self._write(name, line)
        self.listen(name, line)
        return line

    def _line(self, row: Mapping[str, Any]) -> Row:
        line: Row = to_plain({"wall_seconds": round(self.wall_seconds, 3), **row})
        return line

    def _write(self, name: str, *lines: Row) -> None:
        def write() -> None:
            if name not in self.files:
                self.files[name] = JsonLines(self.directory / f"{name}.jsonl")
            self.files[name].write(*lines)

        self.writes.attempt(f"{name}.jsonl", write)

    def _event(self, step: int, scalars: Mapping[str, float | None]) -> None:
        if self.tracker and scalars:
            self.tracker.write(step, scalars)
        events = self.events
        if events and scalars:
            self.writes.attempt("tensorboard/", lambda: events.write(step, scalars))


class TensorBoardWriter:
    """Writer of a TensorBoard event file. Each call writes one record at once, without a thread."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        self.event, self.summary = Event, Summary
        self.file = AppendFile(directory / name)
        self.writer = RecordWriter(self.file)
        self.writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Write numbers at an agent step. Raises OSError."""
        values = [self.summary.Value(tag=k, simple_value=v) for k, v in scalars.items() if v is not None]
        event = self.event(wall_time=time.time(), step=step, summary=self.summary(value=values))
        self.writer.write(event.SerializeToString())

    def close(self) -> None:
        self.writer.close()


def _mean(values: deque[float] | deque[int]) -> float | None:
    return math.fsum(values) / len(values) if values else None
