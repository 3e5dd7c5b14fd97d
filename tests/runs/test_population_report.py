"""A population as a terminal shows it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.population.store import Segment, rank_members
from polyplay.runs import population_report as report_of
from tests.populations import MadePopulation
from tests.reports import Clock, plain


class Watched:
    """A population and its panel on a recording console."""

    def __init__(self, members: int = 8, turns: int = 24, live: bool = True, width: int = 100, quiet: bool = False):
        self.out, self.clock = io.StringIO(), Clock()
        console = Console(file=self.out, force_terminal=live, width=width, height=24, highlight=False, _environ={})
        screen = report_of.Screen(console, live and not quiet, self.clock)
        self.panel = report_of.PopulationPanel(quiet, screen)
        self.made = MadePopulation(members)
        for _ in range(turns):
            self.made.turn()

    def show(self, *training: int, steps: int = 0) -> None:
        self.clock.now += 1
        self.panel.show(self.made.contents(), dict.fromkeys(training, steps))

    def picture(self) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=self.panel.screen.console.width, _environ={}).print(self.panel.panel())
        return out.getvalue().splitlines()

    @property
    def text(self) -> str:
        return plain(self.out.getvalue())


@pytest.mark.parametrize("width", [30, 100])
def test_the_panel_shows_the_best_who_trains_and_the_last_decision_and_warning(width: int):
    case = Watched(width=width)
    best = rank_members(case.made.contents()["members"])[0]
    copy = next(row for row in case.made.rows if row["donor"] is not None)
    case.panel.decision(case.made.rows[0])
    case.panel.decision(copy)
    case.show(3, 0, steps=10)
    case.panel.screen.warn("a trainer\nwas lost")
    picture = case.picture()
    assert (len(picture), max(map(len, picture)) <= width) == (6, True)
    said = f"{copy['member']:02} ({copy['score']:.2f}) copies {copy['donor']:02} ({copy['donor_score']:.2f})"
    lines = (
        f"best {best['member']:02} {best['score']:.2f}  training 00 03",
        f"500k steps: {said}",
        "warning: a trainer was",
    )
    for shown, line in zip(picture[2:], lines, strict=False):
        assert shown.startswith(f"│ {line[: width - 12]}")
    assert "warning a trainer was lost" in case.text


def test_progress_counts_what_is_being_trained_and_tells_the_end():
    case = Watched(members=2, turns=2)  # of 8 turns each
    case.show()
    before = sum(member.steps for member in case.made.members)
    assert "of 8M steps" in case.picture()[1]
    case.clock.now += 98
    case.show(0, steps=case.made.members[0].steps + 1_000_000)
    share = (before + 1e6) / (2 * case.made.total)
    left = int((2 * case.made.total - before - 1e6) * 99 / 1e6)
    bar = case.picture()[1]
    assert f"{100 * share:.1f} %" in bar
    assert f"0:01:40  eta 0:{left // 60:02}:{left % 60:02}" in bar


def test_without_a_terminal_there_is_a_line_for_each_decision_and_a_summary_now_and_then():
    case = Watched(members=3, turns=9, live=False, width=120)
    case.panel.begin([("members", "3 runs of a2c"), ("vary", "learning_rate")])
    for row in case.made.rows:
        case.panel.decision(row)
    before = case.text.count("\n")
    assert before == 2 + len(case.made.rows)
    for _ in range(int(2 * report_of.PACE)):
        case.show(1, 0, steps=0)
    assert "\x1b" not in case.out.getvalue()
    first, second = case.text.splitlines()[before:]
    best = rank_members(case.made.contents()["members"])[0]
    done = f"4.5M of 12M steps  37.5 %  best {best['member']:02} {best['score']:.2f}  training 00 01"
    assert first == f"0:01:00  eta -:--:--  {done}"
    assert second.startswith("0:02:00")


@pytest.mark.parametrize("quiet", [False, True])
def test_the_end_is_the_table_and_the_next_command(quiet: bool, tmp_path: Path):
    case = Watched(quiet=quiet)
    directory = case.made.write(tmp_path / "a b")
    case.show()
    case.panel.decision(case.made.rows[-1])
    case.panel.screen.warn("a warning")
    summary = {"reason": "done", "exit_code": 0, "wall_seconds": 65.0, "failed": 2, "directory": str(directory)}
    case.panel.end(summary)
    last = f"done · 12M steps in 0:01:05 · 2 of 8 members failed · next: polyplay runs '{directory}'"
    if quiet:
        assert case.text.splitlines() == ["warning a warning", last]
        return
    best = rank_members(case.made.contents()["members"])[0]["member"]
    *_, winner, weights, end = case.text.splitlines()
    assert winner.startswith(f"winner   {best:02}")
    assert (weights, end) == (f"next     polyplay evaluate '{directory}/members/{best:02}'", last)
    shown = case.out.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_one_that_was_stopped_says_how_to_go_on(tmp_path: Path):
    case = Watched(members=2, turns=0, live=False)
    case.clock.now += report_of.PACE
    case.show()
    summary = {"reason": "stopped by SIGINT", "exit_code": 130, "wall_seconds": 1.0, "failed": 0}
    case.panel.end({**summary, "directory": str(case.made.write(tmp_path / "run"))})
    first, *_, last = case.text.splitlines()
    assert first == "0:01:01  eta -:--:--  0 of 8M steps  0.0 %", "without a score"
    assert last == f"stopped by SIGINT · 0 steps in 0:00:01 · next: polyplay resume {tmp_path / 'run'}"


def test_a_line_is_walked_back_to_its_founder():
    line = [Segment(1, 0, 500_000, {}), Segment(5, 510_000, 1_200_000, {}), Segment(3, 1_500_000, 2_000_000, {})]
    assert report_of.lineage_text(line) == "03 ← 05 at 1.5M ← 01 at 510k"
    assert report_of.lineage_text([Segment(1, 0, 5, {"a": 1}), Segment(1, 5, 9, {"a": 2})]) == "01"  # by its values
    member = {"member": 2, "steps": 7, "values": {"a": 1}}
    assert report_of.winning_line(member, []) == [Segment(2, 0, 7, {"a": 1})], "its rows are lost"


OLD = {"learning_rate": 0.01, "lanes": 8}
COPY = {"member": 3, "donor": 5, "score": 1.2, "donor_score": 8.8, "steps": 1_500_000, "why": "in the bottom 20 %"}
COPY |= {"old": OLD, "new": {"learning_rate": 0.00361, "lanes": 8}}
KEPT = {"donor": None, "donor_score": None, "score": None, "new": OLD, "why": "no game has ended"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "1.5M steps: 03 (1.20) copies 05 (8.80), in the bottom 20 %; learning_rate 0.01 → 0.00361"),
        (KEPT, "1.5M steps: 03 (–) continues, no game has ended"),
        ({"donor": None, "steps": 0, "old": {}}, "03 begins with learning_rate 0.00361, lanes 8"),
    ],
)
def test_decisions_for_people(changes: dict[str, Any], line: str):
    assert report_of.decision_line(COPY | changes) == line


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_keeps_scores_whole_on_any_terminal(width: int, tmp_path: Path):
    made = MadePopulation(8, vary={"learning_rate": "log:1e-05:0.1", "epochs": "1,2,4", "some_other_long_name": "3,4"})
    for _ in range(24):
        made.turn()
    out = io.StringIO()
    table, *_ = report_of.population_report(tmp_path, made.contents(), made.rows)
    Console(file=out, width=width).print(table)
    assert max(map(len, out.getvalue().splitlines())) <= width
    for member in made.members if width >= 80 else ():
        assert member.score is None or f" {member.score:.2f} " in out.getvalue()
