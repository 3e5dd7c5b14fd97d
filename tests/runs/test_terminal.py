"""A run as a terminal shows it, and as a log has it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.runs import terminal
from polyplay.runs.directory import RunDescription
from polyplay.runs.options import parse, to_json
from polyplay.runs.reporter import Reporter, Snapshot
from tests.fakepage import page
from tests.reports import Clock, plain

ESCAPE = "\x1b"
ENVIRONMENT = {"frame skip": "4", "sticky": "0"}


def describe(flags: list[str], **changes: Any) -> RunDescription:
    settings, options, sources = parse(page(), flags)
    return {
        "system": "fake",
        "config": to_json(settings),
        "options": to_json(options) | changes,
        "sources": sources,
        "environment": ENVIRONMENT,
    }


class Case:
    """A terminal on a recording console, the reporter behind it and their clock."""

    def __init__(self, directory: Path, live: bool, width: int = 100, file: Any = None, frames: Any = 1_000_000):
        self.out = file or io.StringIO()
        self.clock = Clock()
        console = Console(file=self.out, force_terminal=live, width=width, height=40, highlight=False, _environ={})
        self.reporter = Reporter(directory, tensorboard=False, clock=self.clock)
        self.terminal = terminal.Terminal(
            self.reporter, total_frames=frames, live=live, console=console, clock=self.clock
        )
        self.frames = 0

    def begin(self, flags: str = "", **options: Any) -> None:
        self.terminal.begin(describe(flags.split(), **options), "runs/x")

    def report(self, frames: int = 20_000, roles: tuple[str, ...] = ("actor", "learner"), **more: Any) -> None:
        self.frames += frames
        self.clock.now += 5
        spent = {"env": self.clock.now, "infer": self.clock.now, "wait": self.clock.now}
        snapshot = {"frames": self.frames, "steps": self.frames // 4, "updates": 7, "memory_mb": 512.0, **more}
        times = {"time": dict.fromkeys(roles, spent), "workers": dict.fromkeys(roles, 2)}
        self.terminal.report(self.reporter.report(Snapshot(**snapshot | times)))

    @property
    def text(self) -> str:
        return self.out.getvalue()


def test_without_a_terminal_one_aligned_line_per_report(tmp_path: Path):
    case = Case(tmp_path, live=False)
    case.begin("--lanes 3 --preset quick")
    before = len(case.text.splitlines())
    case.report(lag_sum=3, lag_count=2, queue_depth=4)
    case.reporter.episode(-20.5, 900, 1, 1, lane=0)
    case.report(800_000, lag_sum=9, lag_count=8)
    for _ in range(50):
        case.clock.now += 1
        case.terminal.refresh(case.frames)
    lines = case.text.splitlines()[before:]
    assert len(lines) == 2
    assert ESCAPE not in case.text
    assert [lines[0].index(w) for w in ("frames/s", "steps/s", "return", "lag", "queue")] == [
        lines[1].index(w) for w in ("frames/s", "steps/s", "return", "lag", "queue")
    ]
    assert "0:00:05         20,000 frames    2.0 %  eta  0:04:05" in lines[0]
    assert re.search(r"4,000 frames/s +1,000 steps/s +return +- +best +- +lag +1\.50 +queue +4", lines[0])
    assert re.search(r"return +-20\.50 +best +- +lag +1\.00", lines[1])


def test_the_first_lines_show_every_value_with_its_source(tmp_path: Path):
    case = Case(tmp_path, live=False)
    case.begin("--preset quick --entropy-cost 0.02 --frames 5M --no-tensorboard --verbose")
    text = case.text
    assert "polyplay fake  in runs/x" in text
    for words in (
        r"\* entropy_cost +0\.02",
        r"\+ lanes +32",
        r"\+ learning_rate +0\.001",
        r" clip +40",
        r"sizes +64 64",
    ):
        assert re.search(words, text), words
    for words in (r"\* frames +5,000,000", r"\* tensorboard +false", r" seed +0", r"lstm +false", r"env +ALE/Pong-v5"):
        assert re.search(words, text), words
    assert "checkpoint_every" not in text  # a run option nobody set
    assert "unmarked: the default  + preset quick  * given" in text
    assert "\nplaying  frame skip 4 · sticky 0\n" in text


WHOLE = [
    ("settings", "preset tuned: measured"),
    ("workers", "replica ×1 with 8 lanes each (2 environment processes); 1 compute thread each; networks in float32"),
    ("network", "mlp, chosen by --network auto; inputs raw; 9,155 parameters"),
    ("cores", "measured: acting 1 ms a row"),
    ("memory", "at least 520 MB of 8 GB; processes 500 MB, weights 20 MB"),
    ("disk", "1 MB per checkpoint"),
    ("length", "150,000 agent steps"),
    ("repeat", "bitwise reproducible"),
    ("resume", "restores all"),
]


@pytest.mark.parametrize("live", [False, True])
def test_a_first_run_begins_with_five_lines(tmp_path: Path, live: bool):
    case = Case(tmp_path, live=live, width=90)
    case.terminal.begin(describe(["--preset", "quick", "--entropy-cost", "0.02", "--run", "x"]), "runs/x", WHOLE)
    lines = [line.rstrip() for line in plain(case.text).splitlines()]
    case.terminal.close()
    assert lines == [
        "polyplay fake on ALE/Pong-v5  in runs/x",
        "settings preset quick; entropy_cost 0.02",
        "workers  replica ×1 with 8 lanes each (2 environment processes); networks in float32",
        "network  mlp, chosen by --network auto; inputs raw",
        "length   150,000 agent steps; memory at least 520 MB of 8 GB (--verbose: the whole plan)",
    ]


def test_what_was_chosen_and_what_was_asked_for_is_told_too(tmp_path: Path):
    case = Case(tmp_path, live=False)
    told = describe([])
    told["sources"] = {**told["sources"], "lanes": "chosen", "seed": "resume"}
    case.terminal.begin(told, "runs/x", [*WHOLE, ("evaluation", "every 10 frames; ε 0")])
    lines = case.text.splitlines()
    assert lines[1] == "settings preset paper; seed 0; chosen for this machine: lanes 16"
    assert lines[-1] == "evaluation every 10 frames; ε 0"


def test_where_a_frame_is_a_step_they_are_told_once(tmp_path: Path):
    for name in ("same", "apart"):
        (tmp_path / name).mkdir()
    same, apart = (Case(tmp_path / name, live=True) for name in ("same", "apart"))
    for case, steps in ((same, 20_000), (apart, 5_000)):
        case.begin()
        case.report(steps=steps)
    line = terminal.report_line(same.reporter.row, terminal.RunGoal(40_000), None, 4000.0)
    assert "20,000 steps" in line
    assert line.count("steps/s") == 1
    assert "frames" not in line
    assert "frames" in terminal.report_line(apart.reporter.row, terminal.RunGoal(40_000), None, 4000.0)
    for case, words in ((same, ["steps  20,000", "speed  4,000 steps/s"]), (apart, ["frames 20,000   steps 5,000"])):
        case.terminal.refresh()
        summary = case.reporter.close("done", 0)
        case.terminal.end(summary)
        assert all(text in plain(case.text) for text in words)
        assert ("frames" in terminal.closing_line(summary)) == (case is apart)
    assert "frames" not in plain(same.text)


def test_the_plan_is_a_line_each_in_a_log_and_folded_on_a_terminal(tmp_path: Path):
    plan = [("memory", "enough " * 30), ("length", "9 frames")]
    log, screen = Case(tmp_path, live=False, width=80), Case(tmp_path, live=True, width=80)
    for case in (log, screen):
        case.terminal.begin(describe(["--verbose"]), "runs/x", plan)
    assert f"\nmemory   {'enough ' * 30}\nlength   9 frames\n" in log.text
    lines = plain(screen.text).splitlines()
    assert max(map(len, lines)) <= 80
    assert [w for w in lines if w.startswith(("memory", "length"))] == [lines[-4], lines[-1]]
    assert lines[-2].startswith("         enough")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_settings_fit_any_width(width: int):
    out = io.StringIO()
    Console(file=out, width=width).print(terminal.settings_lines({"a": 1, "long_name": "x" * 30}, {}, {}))
    assert max(map(len, out.getvalue().splitlines())) <= width


def test_frames_are_not_shown_where_another_length_was_given():
    for options, shown in (({}, True), ({"minutes": 1.0}, True), ({"steps": 9}, False)):
        out = io.StringIO()
        Console(file=out, width=80).print(terminal.settings_lines({"env": "x", "frames": 5}, options, {}))
        assert ("frames" in out.getvalue()) is shown


def test_what_is_below_a_warning_is_printed_once_in_lines_of_its_own(tmp_path: Path):
    case = Case(tmp_path, live=False)
    for lane in (3, 4):
        case.terminal.warn(f"lane {lane}: it fell\n  File env.py, line 9\n    fall()\n")
    assert case.text == "warning lane 3: it fell\n  File env.py, line 9\n    fall()\nwarning lane 4: it fell\n"
    case.terminal.close()


def test_the_lag_that_passes_make_is_said(tmp_path: Path):
    case = Case(tmp_path, live=True)
    case.terminal.passes = 12
    case.report(lag_sum=3, lag_count=2, lag_max=11)
    case.terminal.refresh()
    case.terminal.close()
    assert "lag    1.50 mean, 11 most (within a rollout: 0 to 11)" in plain(case.text)


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_the_panel_is_at_most_12_lines_whatever_comes(tmp_path: Path, width: int):
    case = Case(tmp_path, live=True, width=width)
    case.begin()
    case.report(roles=("actor", "learner", "predictor", "trainer", "serve_parameters"))
    case.terminal.warn("something long " * 30)
    with case.terminal.console.capture() as captured:
        case.terminal.console.print(case.terminal.panel())
    lines = plain(captured.get()).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= width


def test_on_a_terminal_a_panel_tells_how_it_goes(tmp_path: Path):
    case = Case(tmp_path, live=True)
    case.begin("--seed 3")
    case.terminal.refresh()
    assert "starting, 0:00:00" in plain(case.text)
    for i in range(100):
        case.reporter.episode(float(i), 700, 1, 1, lane=0)
    case.report(lag_sum=3, lag_count=2, lag_max=9, queue_depth=4, restarts=1)
    case.terminal.warn("lane 3  restarted")
    case.clock.now += 1
    case.terminal.refresh(24_000)
    text = plain(case.text)
    case.terminal.close()
    assert ESCAPE in case.text
    for words in ("fake · ALE/Pong-v5 · seed 3", "2.4 %", "0:00:06", "eta 0:04:04", "frames 24,000", "steps 6,000"):
        assert words in text, words
    for words in ("4,000 frames/s", "1,000 steps/s", "512 MB", "return 49.50 (last 100 games)", "best 49.50"):
        assert words in text, words
    for words in ("lag    1.50 mean, 9 most", "queue 4", "restarts 1", "warning: lane 3 restarted", "games 100"):
        assert words in text, words
    assert re.search(r"actor ×2 +█+ +env +33% +infer +33% +learn +0% +wait +33%", text)


def test_the_panel_is_drawn_4_times_a_second_at_most(tmp_path: Path):
    case = Case(tmp_path, live=True)
    case.begin()
    case.report()
    drawn = []
    case.terminal.screen.live.update = lambda *_, **__: drawn.append(case.clock.now)  # type: ignore[union-attr, method-assign]
    for _ in range(1000):
        case.clock.now += 0.001
        case.terminal.refresh()
    assert 4 <= len(drawn) <= 5


def test_the_end_gives_the_terminal_back_and_the_next_command(tmp_path: Path):
    (tmp_path / "a b").mkdir()
    case = Case(tmp_path / "a b", live=True)
    case.begin()
    case.report()
    case.terminal.refresh()
    case.terminal.end(case.reporter.close("the frames were reached", 0, checkpoint="0"))
    last = plain(case.text).splitlines()[-2:]
    assert case.text.rindex("\x1b[?25h") > case.text.rindex("\x1b[?25l")
    assert last == ["the frames were reached · 20,000 frames in 0:00:05", f"next: polyplay evaluate '{tmp_path}/a b'"]
    case.terminal.close()


def test_closing_says_how_to_go_on_after_a_stop():
    summary = {"reason": "Ctrl-C", "exit_code": 130, "directory": "runs/x", "frames": 5, "wall_seconds": 1.0}
    bare = terminal.closing_line({**summary, "episodic_return_mean": None, "checkpoint": None})
    assert bare == "Ctrl-C · 5 frames in 0:00:01"  # nothing was saved: there is nothing to resume
    text = terminal.closing_line({**summary, "episodic_return_mean": 3.0, "checkpoint": "000000000007"})
    assert text == "Ctrl-C · 5 frames in 0:00:01 · return 3.00 (last 100 games) · next: polyplay resume runs/x"
    failed = terminal.closing_line({**summary, "episodic_return_mean": None, "checkpoint": "000000000007"}, failed=True)
    assert failed == "failed · 5 frames in 0:00:01"  # the exception says why, and how to go on


def test_games_beside_training_are_one_line():
    row = {"frames": 2_000_000, "episodic_return_mean": 17.25, "episodes": 10, "protocol": "null-op", "best": True}
    text = "evaluation at 2,000,000 frames: 17.25 over 10 games (null-op)"
    assert terminal.evaluation_line(row) == f"{text}, the best so far"
    assert terminal.evaluation_line({**row, "best": False}) == text


def test_serial_runs_have_no_panel_for_the_debuggers_sake(tmp_path: Path):
    case = Case(tmp_path, live=True)
    case.begin("--serial")
    case.report()
    case.terminal.refresh()
    assert "╭" not in case.text
    assert "frames/s" in case.text


def test_a_reader_that_leaves_does_not_change_the_exit_status(tmp_path: Path):
    code = (
        "import sys, time; from polyplay.runs.reporter import Reporter, Snapshot\n"
        "from polyplay.runs.terminal import Terminal\n"
        "r = Reporter(sys.argv[1], tensorboard=False); t = Terminal(r)\n"
        "row = r.report(Snapshot(1, 1, 1))\n"
        "while not t.screen.output.gone: t.report(row); time.sleep(0.01)\n"
        "t.end(r.close('done', 0)); print('to nobody'); sys.exit(7)"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"steps/s" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=150) == 7
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_broken_pipe_ends_the_output_not_the_run(tmp_path: Path):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        case = Case(tmp_path, live=False, file=file)
        case.begin()
        assert b"polyplay fake" in os.read(reading, 10_000)
        os.close(reading)
        case.report()
        assert case.terminal.screen.output.gone
        case.report()
        case.terminal.warn("x")
        case.terminal.end(case.reporter.close("done", 0))


@pytest.mark.parametrize(
    ("goal", "done", "eta"),
    [
        (terminal.RunGoal(1000), 0.25, 75.0),
        (terminal.RunGoal(minutes=1.0), 0.5, 30.0),
        (terminal.RunGoal(1000, minutes=1.0), 0.5, 30.0),
        (terminal.RunGoal(100), 1.0, 0.0),
        (terminal.RunGoal(until_return=18.0), None, None),
        (terminal.RunGoal(), None, None),
    ],
)
def test_goal(goal: terminal.RunGoal, done: float | None, eta: float | None):
    assert (goal.done(250, 30.0), goal.eta(250, 30.0, 10.0)) == (done, eta)


@pytest.mark.parametrize(("until", "says"), [(18.0, "until the return reaches 18"), (None, "until Ctrl-C")])
def test_a_run_without_a_length_says_when_it_ends(tmp_path: Path, until: float | None, says: str):
    case = Case(tmp_path, live=True, frames=None)
    case.begin(until_return=until)
    case.report()
    case.terminal.refresh()
    assert says in plain(case.text)
    assert "eta" not in plain(case.text)
    assert "%  eta" not in terminal.report_line(case.reporter.row, terminal.RunGoal(), None, None)


def test_other_machines_are_counted_and_their_links_summed(tmp_path: Path):
    link, case = {"workers": 2, "mb_in": 8.5, "mb_out": 30.25, "round_trip_ms": 0.25}, Case(tmp_path, live=True)
    case.begin()
    case.report(hosts={"red": link, "blue": {**link, "round_trip_ms": 3.0}})
    case.terminal.refresh()
    assert "machines 2 others   4 workers there   17.0 MB/s in   60.5 MB/s out   round trip 3.0 ms" in plain(case.text)
    assert terminal.report_line(case.reporter.row, terminal.RunGoal(), None, None).endswith("machines 2")


def test_quiet_shows_warnings_and_the_last_line_only(tmp_path: Path):
    case = Case(tmp_path, live=False)
    case.begin(quiet=True)
    case.report()
    case.terminal.note("an evaluation")
    assert case.text == ""
    case.terminal.warn("a warning")
    case.terminal.end(case.reporter.close("done", 0))
    assert [line.split(" ")[0] for line in case.text.splitlines()] == ["warning", "done"]


def test_a_log_file_is_wide_plain_and_keeps_its_encoding(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = terminal.default_console()
    console.print("×█×", style="bold")
    console.file.flush()
    assert "×?×".encode("latin-1") in raw.getvalue()
    monkeypatch.delenv("FORCE_COLOR")
    assert terminal.default_console().width == 120
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal.default_console().width == 70


def test_forced_colours_do_not_make_a_log_file_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(file=io.StringIO())
    assert console.is_terminal
    assert terminal.Terminal(Reporter(tmp_path, tensorboard=False), console=console).screen.live is None


def test_a_recording_may_be_closed():
    file = io.StringIO()
    output = terminal.Output(file)
    output.write("x")
    assert (file.getvalue(), output.isatty()) == ("x", False)
    file.close()
    output.write("y")
    assert output.gone
