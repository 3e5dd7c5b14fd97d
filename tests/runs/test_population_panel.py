from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.population.store import rank_members
from polyplay.runs.population_report import SUMMARY, PopulationPanel
from tests.populations import MadePopulation

ESCAPE = "\x1b"


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A population and its panel on a recording console."""

    def __init__(self, members: int = 8, turns: int = 24, live: bool = True, width: int = 100, quiet: bool = False):
        self.out, self.clock = io.StringIO(), Clock()
        console = Console(file=self.out, force_terminal=live, width=width, height=24, highlight=False, _environ={})
        self.panel = PopulationPanel(console, quiet, live=None if quiet else live, clock=self.clock)
        self.made = MadePopulation(members)
        for _ in range(turns):
            self.made.turn()

    def show(self, *training: int, **report: Any) -> None:
        self.clock.now += 1
        self.panel.show(self.made.contents(), dict.fromkeys(training, report))

    def picture(self) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=self.panel.screen.console.width, _environ={}).print(self.panel.panel())
        return out.getvalue().splitlines()

    @property
    def text(self) -> str:
        return plain(self.out.getvalue())


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def members_of(picture: list[str]) -> list[str]:
    return [line.split()[1] for line in picture if re.match(r"│ \d\d (?!more)", line)]


def test_members_are_shown_best_first_with_who_trains(tmp_path: Path):
    case = Watched()
    ranked = [m["member"] for m in rank_members(case.made.contents()["members"])]
    steps = case.made.members[3].steps + 1_000_000
    case.show(3, steps=steps, sps=2345.6, episodic_return_mean=12.5)
    picture = case.picture()
    assert members_of(picture) == [f"{i:02}" for i in ranked]
    (line,) = [line for line in picture if line.startswith("│ 03 ")]
    assert re.search(rf"training +{steps / 1e6:.3g}M .* 12\.50 +2,346", line)
    assert sum("training" in line for line in picture) == 1
    assert "learning_rate" in picture[2]


def test_a_member_that_trains_and_has_no_report_yet(tmp_path: Path):
    case = Watched(members=2, turns=2)
    case.show(0)
    assert any(re.match(r"│ 00 +training", line) for line in case.picture())


def test_progress_counts_what_is_being_trained_and_tells_the_end():
    case = Watched(members=2, turns=2)  # of 8 turns each
    case.show()
    before = sum(member.steps for member in case.made.members)
    assert "of 8M steps" in case.picture()[1]
    case.clock.now += 98
    case.show(0, steps=case.made.members[0].steps + 1_000_000)
    bar = case.picture()[1]
    share = (before + 1e6) / (2 * case.made.total)
    assert f"{100 * share:.1f} %" in bar
    left = (2 * case.made.total - before - 1e6) * 99 / 1e6
    assert f"0:01:40  eta 0:{int(left) // 60:02}:{int(left) % 60:02}" in bar


def test_a_member_that_failed_makes_no_more_steps():
    case = Watched(members=2, turns=2)
    contents = case.made.contents()
    contents["members"][0]["state"] = "failed"
    case.panel.show(contents, {})
    steps = sum(member.steps for member in case.made.members)
    assert case.panel._steps() == (steps, case.made.total + case.made.members[0].steps)


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_32_members_fit_24_lines_the_best_and_those_that_train(width: int):
    case = Watched(members=32, turns=70, width=width)
    worst = [m["member"] for m in rank_members(case.made.contents()["members"])][-2:]
    case.show(*worst, steps=1)
    case.panel.decision(case.made.rows[-1])
    case.panel.warn("something long " * 30)
    picture = case.picture()
    assert len(picture) <= 23  # and the cursor's
    assert max(map(len, picture)) <= width
    shown = members_of(picture)
    assert [int(name) for name in shown[-2:]] == worst
    assert len(shown) == 16
    assert any(line.startswith("│ 16 more: 16 waiting") for line in picture)


def test_how_many_more_there_are_is_said_with_their_scores():
    case = Watched(members=32, turns=70)
    case.show()
    hidden = rank_members(case.made.contents()["members"])[17:]
    scores = [m["score"] for m in hidden if m["score"] is not None]
    (line,) = [line for line in case.picture() if " more: " in line]
    assert f"{len(hidden)} more: {len(hidden)} waiting; scores {min(scores):.2f} to {max(scores):.2f}" in line


def test_the_last_decision_and_warning_stay_in_view():
    case = Watched()
    copy = next(row for row in case.made.rows if row["donor"] is not None)
    case.show()
    case.panel.decision(case.made.rows[0])
    case.panel.decision(copy)
    case.panel.warn("a trainer\nwas lost")
    text = "\n".join(case.picture())
    said = f"{copy['member']:02} ({copy['score']:.2f}) copies {copy['donor']:02} ({copy['donor_score']:.2f})"
    assert f"last: 500k steps: {said}" in text
    assert "begins with" not in text
    assert "warning: a trainer was lost" in text
    assert "warning a trainer was lost" in case.text
    assert "copies" not in case.text


def test_it_is_drawn_4_times_a_second_at_most():
    case = Watched(members=2, turns=2)
    drawn: list[float] = []
    case.panel.screen.draw = lambda picture: drawn.append(case.clock.now)  # type: ignore[method-assign]
    contents = case.made.contents()
    for _ in range(1000):
        case.clock.now += 0.001
        case.panel.show(contents, {})
    assert 3 <= len(drawn) <= 4


def test_without_a_terminal_there_is_a_line_for_each_decision_and_a_summary_now_and_then():
    case = Watched(members=3, turns=9, live=False, width=120)
    case.panel.begin([("members", "3 runs of a2c"), ("vary", "learning_rate")])
    for row in case.made.rows:
        case.panel.decision(row)
    before = case.text.count("\n")
    assert before == 2 + len(case.made.rows)
    for _ in range(int(2 * SUMMARY)):
        case.show(1, 0, steps=0)
    assert ESCAPE not in case.out.getvalue()
    first, second = case.text.splitlines()[before:]
    best = rank_members(case.made.contents()["members"])[0]
    words = rf"0:01:00  eta -:--:--  4\.5M of 12M steps  37\.5 %  best {best['member']:02} {best['score']:.2f}  median "
    assert re.match(words, first)
    assert second.startswith("0:02:00")
    assert first.endswith("training 00 01")


def test_a_summary_without_a_score():
    case = Watched(members=2, turns=0, live=False)
    case.clock.now += SUMMARY
    case.show()
    assert case.text == "0:01:01  eta -:--:--  0 of 8M steps  0.0 %\n"


def test_the_end_is_the_table_and_the_next_command(tmp_path: Path):
    case = Watched()
    directory = case.made.write(tmp_path / "a b")
    case.show()
    case.panel.end({"reason": "done", "exit_code": 0, "wall_seconds": 65.0, "failed": 2, "directory": str(directory)})
    *_, winner, weights, last = case.text.splitlines()
    best = rank_members(case.made.contents()["members"])[0]["member"]
    assert winner.startswith(f"winner   {best:02}")
    assert weights == f"next     polyplay evaluate '{directory}/members/{best:02}'"
    assert last == f"done · 12M steps in 0:01:05 · 2 of 8 members failed · next: polyplay population '{directory}'"
    shown = case.out.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_one_that_was_stopped_says_how_to_go_on(tmp_path: Path):
    case = Watched(members=2, turns=0, live=False)
    summary = {"reason": "stopped by SIGINT", "exit_code": 130, "wall_seconds": 1.0, "failed": 0, "directory": tmp_path}
    case.panel.end(summary)
    assert case.text == f"stopped by SIGINT · 0 steps in 0:00:01 · next: polyplay resume {tmp_path}\n"


def test_quiet_shows_warnings_and_the_last_line_only(tmp_path: Path):
    case = Watched(quiet=True)
    directory = case.made.write(tmp_path / "run")
    case.panel.begin([("members", "8")])
    case.panel.decision(case.made.rows[-1])
    for _ in range(int(SUMMARY) + 2):
        case.show()
    assert case.text == ""
    case.panel.warn("a warning")
    case.panel.end({"reason": "done", "exit_code": 0, "wall_seconds": 1.0, "failed": 0, "directory": str(directory)})
    assert [line.split()[0] for line in case.text.splitlines()] == ["warning", "done"]
