"""A line: who is let in, what travels, silence, and how its ends end."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest

from polyplay.core.errors import Closed
from polyplay.core.shared_memory import Semaphores
from polyplay.core.worker import RunControl
from polyplay.workers.hosts import line as line_module
from polyplay.workers.hosts.line import BEAT, CLOSE, LARGE, WORD, Line, LineEnd, LineLost, accept_lines, connect
from polyplay.workers.hosts.traffic import Traffic
from tests.workers.hosts.by_hand import Wire

KEY, LONG = b"k" * 32, 30.0  # seconds


def sockets() -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    return one, other


def line_of(sock: socket.socket, timeout: float = LONG, key: bytes = KEY, listens: bool = False) -> Line:
    return Line(sock, timeout, key, listens)


def lines(timeout: float = LONG) -> tuple[Line, Line]:
    one, other = sockets()
    with ThreadPoolExecutor() as pool:
        there = pool.submit(line_of, other, timeout, listens=True)
        return line_of(one, timeout), there.result(LONG)


def end_of(line: Line, traffic: Traffic | None = None, **on: Callable[[Any], None]) -> LineEnd:
    return LineEnd(line, traffic or Traffic([], False, 0, None), Semaphores(1)[0], on)


def in_thread(what: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


# Who is let in.


@pytest.mark.parametrize(("home", "away"), [(b"a" * 32, b"b" * 32), (b"", b"b" * 32)])
def test_who_does_not_know_the_key_is_refused_at_both_ends(home, away):
    one, other = sockets()
    with ThreadPoolExecutor() as pool:
        there = pool.submit(line_of, other, key=away, listens=True)
        with pytest.raises(LineLost, match="does not know this run's key"):
            line_of(one, key=home)
        with pytest.raises(LineLost, match="does not know this run's key"):
            there.result(LONG)


@pytest.mark.parametrize("kind", ["silent", "gone", "wrong", "web"])
def test_strangers_do_not_keep_the_main_process_from_its_crew(kind):
    listener, proven = accept_lines("127.0.0.1", KEY, LONG)
    address = listener.getsockname()
    strangers = [socket.create_connection(address) for _ in range(5)]
    for stranger in strangers:
        if kind == "gone":
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            stranger.close()
        elif kind == "wrong":  # what listens proves nothing first that a stranger could send back
            stranger.sendall(stranger.recv(100))
        elif kind == "web":
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    home = connect(address, KEY, LONG)
    away = proven.get(timeout=LONG)
    home.send([("a", [np.arange(3)])])
    [(head, (array,))] = away.receive()
    assert proven.empty()
    assert (head, array.tolist()) == ("a", [0, 1, 2])
    for stranger in strangers:
        stranger.close()
    listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address)


# What travels.


def test_heads_and_arrays_small_and_large_come_as_they_were_and_may_be_written_to():
    one, other = lines()
    rng = np.random.default_rng(0)
    sent = [
        rng.random((3, 4)).astype(np.float32),
        rng.integers(0, 9, (LARGE, 2)),
        np.zeros((0, 5), np.int8),
        rng.random(LARGE)[::2],  # not contiguous
        np.array([True, False]),
    ]
    few = [sent[0], sent[-1]]
    messages = [(1, 2, 3, sent), ("word", {"text": "é\n"}, few), (4, few), (5, sent), (6, few)]
    thread = in_thread(lambda: one.send(messages))
    blocks = [deepcopy(other.receive()) for _ in range(3)]  # the next call may reuse memory of large arrays
    assert [len(block) for block in blocks] == [1, 3, 1]  # a large array ends a block
    for message, found in zip(messages, itertools.chain(*blocks), strict=True):
        assert found[:-1] == message[:-1]
        for x, y in zip(message[-1], found[-1], strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert np.array_equal(x, y)
            assert y.flags.aligned
            y[...] = 0
    thread.join(LONG)
    assert one.sent == other.received > sum(x.nbytes for x in sent)


def test_what_the_other_end_does_not_read_is_given_up():
    one, other = lines(timeout=0.2)
    with pytest.raises(LineLost, match=r"nothing could be sent for 0\.2 s"):
        one.send([("a", [np.zeros(1 << 26, np.uint8)])])
    other.close()


# Silence.


def test_a_silent_end_is_lost_after_the_timeout():
    one, other = lines(timeout=0.2)
    end, began = end_of(one), time.monotonic()
    assert end.run() == "nothing came for 0.2 s"
    assert time.monotonic() - began < 20.0
    other.close()


def test_two_idle_ends_hear_each_other(monkeypatch):
    monkeypatch.setattr(line_module, "BEAT_EVERY", 0.05)
    one, other = lines(timeout=0.4)
    home, away = end_of(one), end_of(other, Traffic([], True, 0, None))
    threads = [in_thread(home.run), in_thread(away.run)]
    time.sleep(0.8)
    assert not home.closed.is_set()
    assert not away.closed.is_set()
    assert 0.0 < home.round_trip < 0.4
    home.end()
    for thread in threads:
        thread.join(LONG)
    assert (home.why, away.why) == ("", "the connection was closed")


# How ends end.


@contextmanager
def running(**on: Callable[[Any], None]) -> Iterator[tuple[LineEnd, Line]]:
    """An end that runs, and the line of who does what a test does."""
    one, other = lines()
    end = end_of(one, **on)
    thread = in_thread(end.run)
    yield end, other
    thread.join(LONG)
    assert not thread.is_alive()
    other.close()


def last(line: Line) -> Any:
    """What came last before the line was closed."""
    head = None
    try:
        while True:
            for *found, _ in line.receive():
                head = head if found[0] == BEAT else found
    except LineLost:
        return head


@pytest.mark.parametrize("why", [None, "its disk is full"])
def test_who_is_told_to_close_knows_why(why):
    with running() as (end, other):
        other.send([(CLOSE, why, [])])
    assert end.why == (why or "")
    assert end.closed.is_set()


@pytest.mark.parametrize("fault", [ValueError("of a flow"), OSError(28, "No space left"), KeyError("number")])
def test_a_thread_that_fails_closes_the_line_at_both_ends_and_both_say_why(fault):
    def fail(*of: object) -> None:
        raise fault

    with running(**{WORD: fail}) as (end, other):
        other.send([(WORD, {}, [])])
        said = last(other)
    assert repr(fault) in end.why
    assert said == [CLOSE, end.why]
    with running() as (end, other):
        end.request(fail)
        said = last(other)
    assert repr(fault) in end.why
    assert said == [CLOSE, end.why]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", struct.pack("!i", 5) + b"hello"])
def test_what_is_no_message_ends_the_line_and_changes_nothing(data):
    control = RunControl()
    one, other = lines()
    end = end_of(one, Wire(control).home)
    thread = in_thread(end.run)
    other._sock.sendall(data)
    other.close()
    thread.join(LONG)
    assert end.why
    assert not control._flags.any()


@pytest.mark.parametrize("head", [[9, 0, 0], ["what", 0], [0, 1]])
def test_a_message_for_nobody_ends_the_line(head):
    with running() as (end, other):
        other.send([(*head, [])])
    assert "a thread of its line failed" in end.why


def test_a_close_that_is_wished_ends_both_ends_without_a_reason():
    one, other = lines()
    ends = end_of(one), end_of(other, Traffic([], True, 0, None))
    threads = [in_thread(end.run) for end in ends]
    ends[0].request(partial(ends[0].end, tell=True))
    for thread in threads:
        thread.join(LONG)
    assert [end.why for end in ends] == ["", ""]


def test_where_everyone_is_told_to_stop_an_end_stops_without_a_reason():
    def stop(_: Any) -> None:
        raise Closed

    with running(**{WORD: stop}) as (end, other):
        other.send([(WORD, None, [])])
    assert end.why == ""


def test_what_the_main_process_writes_comes_over_a_line_while_it_runs():
    control = RunControl()
    wire = Wire(control)
    one, other = lines()
    home, away = LineEnd(one, wire.home, wire.bells[0], {}), LineEnd(other, wire.away, wire.bells[1], {})
    wire.seat("act")
    threads = [in_thread(home.run), in_thread(away.run)]
    control.pause_at(500)
    home.bell.post()
    until = time.monotonic() + LONG
    while wire.twins[0].until != 500 and time.monotonic() < until:
        time.sleep(0.001)
    assert wire.twins[0].until == 500
    home.request(partial(home.end, tell=True))
    for thread in threads:
        thread.join(LONG)


def test_one_look_is_for_all_that_rang_before_it():
    one, other = lines()
    end, looks = end_of(one), list[float]()
    end.traffic.news = lambda now: looks.append(now) or iter(())  # type: ignore[method-assign]
    for _ in range(1000):
        end.bell.post()
    end.request(partial(end.end, tell=True))
    end.run()
    assert len(looks) <= 2
    other.close()
