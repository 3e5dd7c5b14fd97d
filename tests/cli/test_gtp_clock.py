"""The clock of a GTP engine: what a move may take, and what is left after it."""

from __future__ import annotations

import io
import time

import pytest

from polyplay.cli.gtp import Clock, GtpEngine, main
from tests.cli.test_gtp_engine import engine_of, said


def test_time_is_heeded():
    engine = engine_of(9, simulations=100_000)
    said(engine, "time_settings 0 1 1", "time_left b 1 1")
    begun = time.monotonic()
    said(engine, "genmove b")
    assert 0.5 < time.monotonic() - begun < 30  # all simulations would take minutes
    assert Clock(limited=False).per_move(None) is None
    assert Clock(60, 0, 0, True).per_move((40.0, 0)) == pytest.approx(0.9)
    assert Clock(60, 30, 10, True).per_move((20.0, 4)) == pytest.approx(4.5)
    assert Clock(0, 30, 10, True).per_move(None) == pytest.approx(2.7)
    assert Clock(60, 30, 10, True).per_move((0.5, 0)) == pytest.approx(2.7), "byo-yomi is what comes next"


@pytest.mark.parametrize(
    ("clock", "left", "used", "then"),
    [
        (Clock(10, 30, 5, True), None, 4.0, (6.0, 0)),
        (Clock(10, 30, 5, True), (3.0, 0), 5.0, (28.0, 4)),
        (Clock(10, 30, 5, True), (28.0, 4), 6.0, (22.0, 3)),
        (Clock(10, 30, 5, True), (2.0, 1), 1.0, (30.0, 5)),
        (Clock(10, 30, 1, True), (3.0, 0), 5.0, (30.0, 1)),
        (Clock(0, 30, 5, True), None, 20.0, (10.0, 4)),
        (Clock(0, 30, 5, True), (1.0, 2), 2.0, (0.0, 1)),
        (Clock(10, 0, 0, True), (3.0, 0), 5.0, (0.0, 0)),
    ],
)
def test_a_move_uses_up_time(clock: Clock, left: tuple[float, int] | None, used: float, then: tuple[float, int]):
    assert clock.after(left, used) == then


def test_its_own_time_is_subtracted_where_nobody_says_what_is_left(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    def think(engine: GtpEngine, colour: int) -> int:
        now[0] += engine.clock.per_move(engine.left.get(colour)) or 0.0
        return engine.game.board.cells

    monkeypatch.setattr(GtpEngine, "_choose", think)
    monkeypatch.setattr("polyplay.cli.gtp.time.monotonic", lambda: now[0])
    engine = engine_of()
    said(engine, "time_settings 600 0 0", *["genmove b"] * 60)
    assert 400 < now[0] < 600
    assert engine.left[1] == pytest.approx((600 - now[0], 0))
    assert engine.clock.per_move(engine.left.get(2)) == pytest.approx(13.5), "the other colour has a clock of its own"
    said(engine, "time_left b 100 0", "genmove b")
    assert engine.left[1] == pytest.approx((97.75, 0))
    said(engine, "clear_board")
    assert engine.clock.per_move(engine.left.get(1)) == pytest.approx(13.5)
    said(engine, "genmove b", "time_settings 20 0 0")
    assert engine.clock.per_move(engine.left.get(1)) == pytest.approx(0.45)


def test_the_clock_takes_parts_of_a_second():
    engine = engine_of()
    assert said(engine, "time_settings 5.5 2.5 1", "time_left b 4.25 0", "time_left w 0.5 1") == ["="] * 3
    assert (engine.clock.main, engine.clock.byo, engine.clock.byo_stones) == (5.5, 2.5, 1)
    assert engine.left == {1: (4.25, 0), 2: (0.5, 1)}
    assert said(engine, "time_left b -0.2 0") == ["="], "a controller that counts on: nothing is left"
    assert engine.left[1] == (0.0, 0)
    assert said(engine, "time_left b 1e3 0", "time_left b 99999999 0") == ["=", "="]


def test_the_search_is_compiled_before_the_first_answer(monkeypatch: pytest.MonkeyPatch):
    happened = list[str]()

    class Source(io.StringIO):
        def __next__(self) -> str:
            happened.append("read")
            return super().__next__()

    engine, warm = engine_of(5), GtpEngine.warm

    def warmed(self: GtpEngine) -> None:
        warm(self)
        assert self.policy._searching is not None, "what genmove will use"
        happened.append(f"warm with {self.policy.simulations}")

    monkeypatch.setattr(GtpEngine, "warm", warmed)
    monkeypatch.setattr("sys.stdin", Source("name\n"))
    main(lambda: engine)
    assert happened[:2] == ["warm with 8", "read"]
    assert not engine.game.moves


def test_to_warm_up_changes_no_move():
    cold, warm = engine_of(5), engine_of(5)
    warm.warm()
    assert said(cold, *["genmove b", "genmove w"] * 3) == said(warm, *["genmove b", "genmove w"] * 3)
