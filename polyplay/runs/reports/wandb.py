"""Metrics to Weights & Biases, which neither delay nor end a run.

A thread passes metrics on, so the run waits for no network. Whatever fails there is one warning, and the rest is left
out; the run's directory has it all. Without a key W&B stores them in RUN/wandb, for `wandb sync`.
Imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from polyplay.common.errors import UserError
from polyplay.runs.directory import read_config

Send = Callable[[Any], None]  # a call of a W&B run
LAST = 20.0  # seconds that the end of a run waits for what is on its way
BACKLOG = 10_000  # reports on their way at once; further ones are left out


def check_wandb(project: str | None) -> None:
    """UserError if W&B is asked for and not installed."""
    found = importlib.util.find_spec("wandb") if project else None
    if project and (found is None or found.origin is None):  # a directory `wandb` here is not the package
        raise UserError("--wandb: needs the package wandb; `pip install 'polyplay[wandb]'`, or leave --wandb out")


class WandbLogger:
    """`write` reports, then `close`. module: what `import wandb` gives, for tests."""

    def __init__(self, project: str, directory: Path, warn: Callable[[str], None], module: ModuleType | None = None):
        self.project, self.directory, self.warn, self.module = project, Path(directory), warn, module
        self.due: queue.Queue[Send | None] = queue.Queue(BACKLOG)
        self.failure, self.warned = "", False
        self.thread = threading.Thread(target=self._pass_on, name="polyplay-wandb", daemon=True)
        self.thread.start()

    def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Metrics at an agent step; those without a value are left out."""
        row = {"global_step": step, **{k: v for k, v in scalars.items() if v is not None}}
        self._put(lambda run: run.log(row))

    def close(self, summary: Mapping[str, object]) -> None:
        """The run's summary, its end, and a wait of some seconds until all is passed on."""
        self._put(lambda run: run.summary.update(dict(summary)))
        self._put(lambda run: run.finish(exit_code=summary["exit_code"]))
        self._put(None)
        self.thread.join(LAST)
        if self.thread.is_alive() and not self.failure:
            self.failure = f"not all was passed on within {LAST:.0f} s; `wandb sync {self.directory}/wandb/…` does that"
        self._warn_once()

    def _put(self, send: Send | None) -> None:
        self._warn_once()
        if not self.failure:
            try:
                self.due.put_nowait(send)
            except queue.Full:
                self.failure = "it does not respond"

    def _warn_once(self) -> None:
        """One warning, by the thread that may write to the terminal."""
        if self.failure and not self.warned:
            self.warned = True
            self.warn(f"W&B: {self.failure}; the run continues without it; its directory has all metrics")

    def _pass_on(self) -> None:
        try:
            run = self._begin()
            while (send := self.due.get()) is not None:
                send(run)
        except BaseException as e:  # its own SystemExit and KeyboardInterrupt too
            self.failure = " ".join(f"{type(e).__name__}: {e}".split())

    def _begin(self) -> Any:
        wandb = self.module or importlib.import_module("wandb")
        config = read_config(self.directory)
        name = hashlib.sha256(f"{config['started']} {self.directory.name}".encode()).hexdigest()[:12]
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        run = wandb.init(
            project=self.project,
            name=self.directory.name,
            id=name,  # the same when the run is resumed
            resume="allow",
            dir=str(self.directory),
            mode=mode,
            config={
                k: config[k] for k in ("system", "seed", "config", "options", "environment", "versions", "machine")
            },
            settings=wandb.Settings(console="off", silent=True),
        )
        run.define_metric("*", step_metric="global_step")
        return run
