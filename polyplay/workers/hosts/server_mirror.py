"""A parameter server's shards are at home: gradients of learners elsewhere come, and the newest parts go out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from polyplay.common.shared_memory import memory_barrier
from polyplay.weights.parameter_server import BASE, TAKEN, VERSION, WRITTEN, ParameterServer
from polyplay.workers.hosts.mirrors import Frame, FrameError, ObjectMirror, RemoteSeat

CELLS = 0


class ServerMirror(ObjectMirror):
    """away → home: of a learner there its gradient's slices, each before the mark that it is written, and its counts.
    home → away: parts that have a new version, each the newest; then the header, everyone's counts, and which slices
    were taken. So a learner whose slot is free finds its gradient in what it pulls, there as here.

    Items: the cells; parts' versions, then parts; slices by learner and part; learners' counts; what a learner begins
    with.
    """

    def __init__(self, server: ParameterServer):
        self.server, n, each = server, server.shards, server.workers
        self.readers, self.learners = False, list[int]()  # whether someone is away, and those of them who learn
        self._cells = [np.zeros_like(server.head), np.zeros_like(server.counters), np.zeros((each, n), np.int64)]
        self._sent_cells = b""
        self._versions = np.full(n, -1)  # sent, or received
        self._written = np.zeros((each, n), np.int64)  # sent
        self._counts: dict[int, bytes] = {}
        self._version, self._mark, self._rate = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1)
        self.of_versions = 1
        self.of_parts = self.of_versions + n
        self.of_slices = self.of_parts + n
        self.of_counts = self.of_slices + each * n
        self.of_seats = self.of_counts + each

    # ---- a seat

    def begin(self, seat: RemoteSeat) -> Iterator[Frame]:
        if seat.end == "update":
            yield self.of_seats + seat.index, [np.array(x) for x in self._seat_cells(seat.index)]

    def _seat_cells(self, w: int) -> list[np.ndarray]:
        return [self.server.slot[w], self.server.counters[w]]

    def sit(self, seat: RemoteSeat) -> None:
        server, w = self.server, seat.index
        self.readers = True
        if seat.end != "update":
            return
        server.reply(w).relay(None if self.away else self.relay)
        if self.away:
            self._written[w] = server.slot[w, :, WRITTEN]
            for k in range(server.shards):
                server.bell(k).relay(self.relay)
        if w not in self.learners:
            self.learners.append(w)

    # ---- this side's changes

    def changes(self, now: float) -> Iterator[Frame]:
        if self.away:
            for w in self.learners:
                yield from self._slices(w)
        elif self.readers and self.server.ready:
            yield from self._news()

    def _slices(self, w: int) -> Iterator[Frame]:
        server = self.server
        written, counts = np.array(server.slot[w, :, WRITTEN]), np.array(server.counters[w])
        memory_barrier()
        for k in np.flatnonzero(written != self._written[w]).tolist():
            self._written[w, k] = written[k]
            mark = np.array([written[k], server.slot[w, k, BASE]])
            yield self._slice(w, k), [server.gradient[w, server.parts[k]], mark, np.array([server.rate[w, k]])]
        if counts.tobytes() != self._counts.get(w):
            self._counts[w] = counts.tobytes()
            yield self.of_counts + w, [counts]

    def _slice(self, w: int, k: int) -> int:
        return self.of_slices + w * self.server.shards + k

    def _news(self) -> Iterator[Frame]:
        server = self.server
        cells = [np.array(server.head), np.array(server.counters), np.array(server.slot[:, :, TAKEN])]
        memory_barrier()
        for k in np.flatnonzero(server.shard[:, VERSION] != self._versions).tolist():
            part = torch.empty(server.parts[k].stop - server.parts[k].start)
            self._versions[k] = server.newest[k].read(part, server.check)
            yield self.of_versions + k, [self._versions[k : k + 1]]
            yield self.of_parts + k, [part.numpy()]
        if (whole := b"".join(x.tobytes() for x in cells)) != self._sent_cells:
            self._sent_cells = whole
            yield CELLS, cells

    # ---- the other side's

    def places(self, item: int) -> list[np.ndarray]:
        server = self.server
        if self.of_slices <= item < self.of_counts and not self.away:
            w, k = divmod(item - self.of_slices, server.shards)
            if w in self.learners and server.slot[w, k, WRITTEN] == server.slot[w, k, TAKEN]:
                return [server.gradient[w, server.parts[k]], self._mark, self._rate]
        elif item - self.of_counts in self.learners and not self.away:
            return [server.counters[item - self.of_counts]]
        elif self.away:
            return self._places_away(item)
        raise FrameError(f"item {item} of a parameter server")

    def _places_away(self, item: int) -> list[np.ndarray]:
        server = self.server
        if item == CELLS:
            return self._cells
        if item < self.of_parts:
            return [self._version]
        if item < self.of_slices:
            k = item - self.of_parts
            server.newest[k].begin(int(self._version[0]))
            return [server.copies[1 - server.newest[k].active, server.parts[k]]]
        if item >= self.of_seats and item - self.of_seats < server.workers:
            return self._seat_cells(item - self.of_seats)
        raise FrameError(f"item {item} of a parameter server")

    def arrived(self, item: int) -> None:
        server = self.server
        if item == CELLS:
            self._cells_arrived()
        elif self.of_parts <= item < self.of_slices:
            k, version = item - self.of_parts, int(self._version[0])
            server.newest[k].end(version)
            memory_barrier()
            server.shard[k, VERSION] = version
        elif self.of_slices <= item < self.of_counts:
            w, k = divmod(item - self.of_slices, server.shards)
            marks, (written, base) = server.slot[w, k], self._mark.tolist()
            if written != marks[WRITTEN] + 1:
                raise FrameError(f"slice {written} of learner {w} after {marks[WRITTEN]}")
            marks[BASE], server.rate[w, k] = base, self._rate[0]
            memory_barrier()
            marks[WRITTEN] = written
            server.bell(k).post()

    def _cells_arrived(self) -> None:
        server, (head, counters, taken) = self.server, self._cells
        others = [w for w in range(server.workers) if w not in self.learners]
        server.counters[others] = counters[others]
        server.slot[self.learners, :, TAKEN] = taken[self.learners]
        memory_barrier()
        server.head[:] = head
        for w in self.learners:
            server.reply(w).post()

    def close(self) -> None:
        self.server.close()
