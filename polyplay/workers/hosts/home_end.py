"""The main machine's end of a link: a process of its own, which the main process commands by a pipe."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from polyplay.common.semaphores import Semaphores
from polyplay.workers.hosts.engine import OPENING
from polyplay.workers.hosts.link import CLOSE, ENDED, LOAD, SIGNAL, WORD, Link, LinkLost, prove
from polyplay.workers.hosts.mirrors import ObjectMirror, seat_of


def run_home_end(
    pipe: Connection,
    about: dict[str, Any],
    secret: bytes,
    timeout: float,
    mirrors: Sequence[ObjectMirror],
    bells: Semaphores,
    number: int,
    root: Path | None,
) -> None:
    """pipe: commands come; what the other side says goes, as (kind, value). number: of this link."""
    for mirror in mirrors:
        mirror.prepare()
        mirror.relay = number
    try:
        sock = socket.create_connection((about["address"], about["port"]), OPENING)
        prove(sock, secret, away=False)
    except (OSError, LinkLost) as e:
        pipe.send(("lost", str(e)))
        return
    pipe.send(("open", {}))
    link, lock = Link(sock, mirrors, bells[number], timeout, root), threading.Lock()

    def say(kind: str, value: object) -> None:
        """In any thread of the link."""
        with lock:
            pipe.send((kind, value))

    link.on = {WORD: partial(say, "word"), ENDED: partial(say, "ended")}
    link.dropped = partial(say, "dropped")
    load: dict[str, Any] = {}
    link.on[LOAD] = load.update

    def tell() -> None:
        counts = {"sent": link.sent, "received": link.received, "round_trip": link.round_trip}
        say("stats", {**load, **counts})

    link.each_beat = tell
    threading.Thread(target=_obey, args=(link, pipe), daemon=True).start()
    why = link.run()
    with contextlib.suppress(OSError):
        say("lost", why)


def _obey(link: Link, pipe: Connection) -> None:
    try:
        while True:
            kind, value = pipe.recv()
            if kind == "seat":
                link.request(partial(_seat, link, value))
            elif kind == "signal":
                link.send_json(SIGNAL, value)
            elif kind == "close":
                link.send(CLOSE)
                return
    except (EOFError, OSError, LinkLost):
        return
    except Exception as e:
        link.end(f"its commanding thread failed: {e!r}")
    finally:
        link.end("")


def _seat(link: Link, value: dict[str, Any]) -> None:
    """In the sending thread."""
    for name, path in value["files"]:
        link.send_file(f"resume/{name}", path)
    link.seat(seat_of(value), value["mirrors"], value["fresh"], value["number"])
