"""TensorBoard's event files. Imports no torch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from polyplay.common.files import AppendFile


class TensorBoardWriter:
    """A TensorBoard event file: one record per call, written at once, without a thread."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        self.event, self.summary = Event, Summary
        self.writer = RecordWriter(AppendFile(directory / name))
        self.writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Raises OSError."""
        values = [self.summary.Value(tag=k, simple_value=v) for k, v in scalars.items() if v is not None]
        event = self.event(wall_time=time.time(), step=step, summary=self.summary(value=values))
        self.writer.write(event.SerializeToString())

    def close(self) -> None:
        self.writer.close()
