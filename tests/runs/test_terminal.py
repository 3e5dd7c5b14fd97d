"""A run as a terminal shows it, and as a log has it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from polyplay.runs import terminal
from polyplay.runs.directory import RunDescription
from polyplay.runs.options import parse, to_json
from tests.fakepage import page
from tests.reports import KEYS, Clock, plain

ESCAPE = "\x1b"
SUMMARY = {"reason": "done", "exit_code": 0, "directory": "runs/x", "frames": 5, "wall_seconds": 5.0, "checkpoint": "7"}
SUMMARY |= {"steps": 1, "episodic_return_mean": None}
WHOLE = [
    ("settings", "preset tuned: measured"),
    ("workers", "replica ×1 with 8 lanes each (2 environment processes); 1 compute thread each; networks in float32"),
    ("network", "mlp, chosen by --network auto; inputs raw; 9,155 parameters"),
    ("memory", "at least 520 MB of 8 GB; processes 500 MB, weights 20 MB"),
    ("length", "150,000 agent steps"),
    ("resume", "restores all"),
]


def describe(flags: str, **changes: Any) -> RunDescription:
    settings, options, sources = parse(page(), flags.split())
    return {
        "system": "fake",
        "config": to_json(settings),
        "options": to_json(options) | changes,
        "sources": sources,
        "environment": {"frame skip": "4", "sticky": "0"},
    }


class Case:
    """A terminal on a recording console, and the clock of its run."""

    def __init__(self, live: bool, flags: str = "", width: int = 100, **options: Any):
        self.out, self.clock, self.frames = io.StringIO(), Clock(), 0
        console = Console(file=self.out, force_terminal=live, width=width, height=40, highlight=False, _environ={})
        screen = terminal.Screen(console, live, self.clock)
        self.terminal = terminal.Terminal(1_000_000, screen)
        self.terminal.begin(describe(flags, **options), "runs/x")

    def report(self, frames: int = 20_000, roles: tuple[str, ...] = ("actor", "learner"), **more: Any) -> None:
        self.frames += frames
        self.clock.now += 5
        row = dict.fromkeys(KEYS) | {"wall_seconds": self.clock.now - 100, "fps": frames / 5, "sps": frames / 20}
        row |= {"frames": self.frames, "steps": self.frames // 4, "updates": 7, "memory_mb": 512.0, "episodes": 100}
        spent = {"workers": 2, "env": 1 / 3, "infer": 1 / 3, "learn": 0.0, "replay": 0.0, "wait": 1 / 3}
        self.terminal.report(row | {"restarts": 0} | more, dict.fromkeys(roles, spent))

    @property
    def text(self) -> str:
        return plain(self.out.getvalue())


def test_without_a_terminal_one_aligned_line_per_minute():
    case = Case(False, "--lanes 3 --preset quick")
    before = len(case.text.splitlines())
    case.report(lag_mean=1.5, queue_depth=4)
    for _ in range(11):
        case.report(0, lag_mean=9.0)
    case.report(800_000, lag_mean=1.0, episodic_return_mean=-20.5, hosts={"red": {}})
    case.terminal.refresh(case.frames)
    first, second = case.text.splitlines()[before:]
    assert ESCAPE not in case.out.getvalue()
    columns = ("frames/s", "steps/s", "return", "lag", "queue")
    assert [first.index(word) for word in columns] == [second.index(word) for word in columns]
    assert "0:00:05         20,000 frames    2.0 %  eta  0:04:05" in first
    assert re.search(r"4,000 frames/s +1,000 steps/s +return +- +best +- +lag +1\.50 +queue +4", first)
    assert re.search(r"return +-20\.50 +best +- +lag +1\.00 .* machines 1$", second)


@pytest.mark.parametrize("live", [False, True])
def test_a_first_run_begins_with_five_lines(live: bool):
    case, cut = Case(live, width=97), " netwo…" if live else " networks in float32"
    before = len(case.text)
    told = describe("--preset quick --entropy-cost 0.02 --run x")
    told["sources"] = {**told["sources"], "lanes": "chosen", "seed": "resume"}
    case.terminal.begin(told, "runs/x", [*WHOLE, ("evaluation", "every 10 frames; ε 0")])
    assert [" ".join(line.split()) for line in case.text[before:].splitlines()] == [
        "polyplay fake on ALE/Pong-v5, preset quick",
        "settings entropy_cost 0.02, seed 0; chosen for this machine: lanes 32",
        "workers replica ×1 with 8 lanes each; network mlp, chosen by --network auto; inputs raw;" + cut,
        "length 150,000 agent steps; buffers and weights take 520 MB of 8 GB",
        "run runs/x (--verbose: the whole plan)",
    ]
    case.terminal.begin(told, "runs/x", [*WHOLE, ("left out", "core lstm: it needs images " * 9)])
    assert case.text.splitlines()[-2].startswith("left out core lstm"), "a warning stays, and whole"
    assert not case.text.splitlines()[-2].endswith("…")


def test_verbose_shows_every_value_under_its_source_and_the_whole_plan():
    case = Case(False)
    before = len(case.text)
    flags = "--preset quick --entropy-cost 0.02 --frames 5M --no-tensorboard --verbose"
    case.terminal.begin(describe(flags), "runs/x", WHOLE)
    assert case.text[before:].splitlines() == [
        "polyplay fake on ALE/Pong-v5  in runs/x",
        "default  network nature, sizes 64 64, crop 1 0.5, lstm false, clip 40, seed 0",
        "preset quick lanes 32, learning_rate 0.001",
        "given    frames 5,000,000, entropy_cost 0.02, verbose true, tensorboard false",
        "playing  frame skip 4 · sticky 0",
        *(f"{heading:<8} {text}" for heading, text in WHOLE),
    ]
    folded = Case(True, width=60)
    folded.terminal.begin(describe(flags), "runs/x", [("memory", "enough " * 30)])
    assert max(map(len, folded.text.splitlines())) <= 60
    assert "frames" not in terminal.settings_by_source(describe("--steps 9"))["default"]


def test_where_a_frame_is_a_step_they_are_told_once():
    line, panel = Case(False), Case(True)
    for case in (line, panel):
        case.report(steps=20_000, fps=4_000.0, sps=4_000.0)
        case.terminal.refresh()
        case.terminal.end(SUMMARY | {"frames": 20_000, "steps": 20_000})
        assert "frames" not in case.text
    assert "20,000 steps" in line.text
    assert all(text in panel.text for text in ("steps  20,000", "speed  4,000 steps/s"))


def test_what_is_below_a_warning_is_printed_once_in_lines_of_its_own():
    case = Case(False, quiet=True)
    for lane in (3, 4):
        case.terminal.warn(f"lane {lane}: it fell\n  File env.py, line 9\n    fall()\n")
    assert case.text == "warning lane 3: it fell\n  File env.py, line 9\n    fall()\nwarning lane 4: it fell\n"


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_the_panel_is_at_most_12_lines_whatever_comes(width: int):
    case = Case(True, width=width)
    case.report(roles=("actor", "learner", "predictor", "trainer", "serve_parameters"))
    case.terminal.warn("something long " * 30)
    with case.terminal.console.capture() as captured:
        case.terminal.console.print(case.terminal.panel())
    lines = plain(captured.get()).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= width


def test_on_a_terminal_a_panel_tells_how_it_goes():
    case = Case(True, "--seed 3", width=120)
    case.terminal.refresh()
    assert "starting, 0:00:00" in case.text
    best = {"episodic_return_mean": 49.5, "episodic_return_mean_best": 50.25}
    case.report(lag_mean=1.5, lag_max=9, queue_depth=4, restarts=1, **best)
    case.terminal.warn("lane 3  restarted")
    case.clock.now += 1
    case.terminal.refresh(24_000)
    case.terminal.screen.close()
    for words in ("fake · ALE/Pong-v5 · seed 3", "2.4 %", "0:00:06", "eta 0:04:04", "frames 24,000   steps 6,000"):
        assert words in case.text, words
    for words in ("4,000 frames/s", "1,000 steps/s", "512 MB", "return 49.50   best 50.25", "games 100"):
        assert words in case.text, words
    for words in ("lag    1.50 mean, 9 most", "queue 4", "restarts 1", "warning: lane 3 restarted"):
        assert words in case.text, words
    assert re.search(r"actor ×2 +█{21} +env +33% +infer +33% +learn +0% +wait +33%", case.text)


def test_of_several_agents_each_has_its_return_and_of_many_the_extremes():
    several, many = Case(False), Case(False)
    several.report(agent_return_means={"0": 1.5, "1": None}, agent_elo={"0": 1000.0})
    many.report(agent_return_means={str(i): float(-i) for i in range(9)})
    assert "return agent 0 1.50 (Elo 1,000), agent 1 -" in several.text
    assert "return agent 8 -8.00, agent 0 0.00" in many.text


def test_of_several_tasks_scores_are_shown_or_few_returns():
    found = {"ALE/Pong-v5": -3.0, "ALE/Breakout-v5": None}
    normalized = {"median": [50.0, 40.0, 60.0], "iqm": [51.0, 45.0, 58.0]}
    shown = terminal._task_returns(found, normalized)
    assert shown == ["human-normalized median 50.0 % (40.0 … 60.0), iqm 51.0 % (45.0 … 58.0)"]
    assert terminal._task_returns(found, None) == ["return Pong-v5 -3.00, Breakout-v5 -"]
    many = {f"toy:{i}": 1.0 if i else None for i in range(57)}
    assert terminal._task_returns(many, None) == ["return: 56 of 57 tasks have one"]


def test_the_panel_is_drawn_4_times_a_second_at_most():
    case = Case(True)
    case.report()
    drawn = []
    case.terminal.screen.live.update = lambda *_, **__: drawn.append(case.clock.now)  # type: ignore[union-attr, method-assign]
    for _ in range(1000):
        case.clock.now += 0.001
        case.terminal.refresh()
    assert 4 <= len(drawn) <= 5


def test_the_end_gives_the_terminal_back_and_the_next_command():
    case = Case(True)
    case.report()
    case.terminal.refresh()
    case.terminal.end(SUMMARY | {"reason": "the frames were reached " * 3, "directory": "runs/a b"})
    raw = case.out.getvalue()
    assert raw.rindex("\x1b[?25h") > raw.rindex("\x1b[?25l")
    first, last = case.text.splitlines()[-2:]
    assert first.endswith(" · 5 frames in 0:00:05")
    assert last == "next: polyplay evaluate 'runs/a b'"
    case.terminal.screen.close()


@pytest.mark.parametrize(
    ("changes", "failed", "line"),
    [
        ({"checkpoint": None}, False, "Ctrl-C · 5 frames in 0:00:05"),  # nothing was saved, which could be resumed
        ({}, True, "failed · 5 frames in 0:00:05"),  # the exception says why, and how to go on
        (
            {"episodic_return_mean": 3.0},
            False,
            "Ctrl-C · 5 frames in 0:00:05 · return 3.00 (last 100 games) · next: polyplay resume runs/x",
        ),
    ],
)
def test_the_last_line_says_how_to_go_on(changes: dict[str, Any], failed: bool, line: str):
    assert terminal.closing_line(SUMMARY | {"reason": "Ctrl-C", "exit_code": 130} | changes, failed) == line


def test_an_evaluation_is_one_line():
    row = {"frames": 2_000_000, "episodic_return_mean": 17.25, "episodes": 10, "protocol": "null-op", "best": True}
    told = "evaluation at 2,000,000 frames: 17.25 over 10 games (null-op), the best so far"
    assert terminal.evaluation_line(row) == told


def test_minutes_end_a_run_sooner():
    case = Case(False, minutes=1.0)
    case.report()
    assert "8.3 %  eta  0:00:55" in case.text


def test_serial_runs_have_no_panel_and_quiet_ones_warnings_and_the_last_line_only():
    serial, quiet = Case(True, "--serial"), Case(False, quiet=True)
    for case in (serial, quiet):
        case.report()
        case.terminal.refresh()
        case.terminal.note("an evaluation")
        case.terminal.warn("a warning")
        case.terminal.end(SUMMARY)
    assert "╭" not in serial.text
    assert "frames/s" in serial.text
    assert [line.split(" ")[0] for line in quiet.text.splitlines()] == ["warning", "done"]


def test_a_reader_that_leaves_does_not_change_the_exit_status():
    code = (
        "import sys, time; from polyplay.runs.terminal import Screen\n"
        "screen = Screen()\n"
        "for _ in range(80): screen.print('a line'); time.sleep(0.01)\n"
        "print('to nobody'); sys.exit(7)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"a line" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=150) == 7
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_file_that_was_closed_ends_the_output_not_the_run():
    case = Case(False)
    case.out.close()
    case.report()
    case.terminal.end(SUMMARY)
    assert case.out.closed, "nothing was written, and nothing was raised"


def test_a_log_file_is_wide_plain_and_keeps_its_encoding(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = terminal.default_console()
    assert console.is_terminal
    assert terminal.Screen(console).live is None, "forced colors do not make a log file a terminal"
    console.print("×█×", style="bold")
    console.file.flush()
    assert "×?×".encode("latin-1") in raw.getvalue()
    monkeypatch.delenv("FORCE_COLOR")
    assert terminal.default_console().width == 120
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal.default_console().width == 70
