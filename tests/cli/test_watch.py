"""Run directories as a run writes them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.cli import watch
from polyplay.cli.watch import RunReader
from polyplay.core.machine import install_command
from polyplay.runs.directory import lock_holder, take_request
from tests.verbs import free_port, refused


def report(steps: int, **more: Any) -> dict[str, Any]:
    times = {"time_env": 0.5, "time_infer": 0.2, "time_learn": 0.1, "time_replay": 0.0, "time_wait": 0.2}
    numbers = {"wall_seconds": steps / 10, "frames": steps, "steps": steps, "updates": steps // 5, "sps": 10.0}
    return {**numbers, **times, "cpu": 0.9, "episodic_return_mean": steps / 100, **more}


def write_lines(path: Path, rows: list[dict[str, Any]], how: str = "w") -> None:
    with path.open(how) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def make_run(root: Path, name: str = "run", rows: int = 3) -> Path:
    run = root / name
    run.mkdir()
    config = {"env": "toy:catch", "actors": 2, "lanes": 8}
    contents = {"schema": 1, "system": "impala", "config": config, "sources": {"actors": "command"}}
    (run / "config.json").write_text(json.dumps(contents))
    if rows:
        write_lines(run / "metrics.jsonl", [report(100 * (i + 1)) for i in range(rows)])
    return run


JUNK = [b'{"steps": 350}\n', b"[1]\n", b"\xff\xfe\n", b'{"ste\n\n', b"x" * 5000 + b"\n"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["lines", "junk", "begun", "cut", "anew"]), st.integers(0, 4)), max_size=12))
def test_what_is_read_bit_by_bit_is_what_is_read_at_once(changes: list[tuple[str, int]]):
    """Of a file that grows by lines, some damaged or not whole yet, is cut by a resumption, or made anew."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "POINTS", 2)
        run = make_run(Path(place))
        log, watched, steps, begun = run / "metrics.jsonl", RunReader(run), 300, b""
        for what, n in changes:
            steps, line = steps + 100, json.dumps(report(steps + 100)).encode() + b"\n"
            with log.open("ab") as file:
                if what in ("lines", "junk"):
                    file.write(begun + (line if what == "lines" else JUNK[n]))
                    begun = b""
                elif what == "begun" and not begun:
                    file.write(line[:30])
                    begun = line[30:]
            if what in ("cut", "anew"):
                kept, begun = b"".join(log.read_bytes().splitlines(keepends=True)[:n]), b""
                (log if what == "cut" else run / "new").write_bytes(kept)
                if what == "anew":
                    os.replace(run / "new", log)
            assert watched.state() == RunReader(run).state()
            assert watched.reports.offset == len(log.read_bytes().rpartition(b"\n")[0]) + bool(watched.reports.offset)


def test_curves_are_thinned_and_end_with_the_newest_report():
    curve = list[tuple[int, ...]]()
    for i in range(30_001):
        watch.add_point(curve, (i, 0.0))
    steps = [row[0] for row in curve]
    assert watch.POINTS <= len(steps) <= 2 * watch.POINTS
    assert (steps[0], steps[-1]) == (0, 30_000)
    assert max(b - a for a, b in itertools.pairwise(steps)) <= 4 * 30_000 / watch.POINTS


def test_a_run_that_has_not_begun_and_one_that_has_ended(tmp_path: Path):
    run = make_run(tmp_path, rows=0)
    found = RunReader(run).state()
    assert (found["curve"], found["now"], found["episodes"], found["checkpoints"]) == ([], {}, [], [])
    assert (found["standing"], found["limit"], found["wiring"]) == ("stopped", "", {})
    (run / "summary.json").write_text(json.dumps({"exit_code": 0, "reason": "done"}))
    games = [{"wall_seconds": 1.0, "steps": i, "episodic_return": 1.0, "episodic_length": 9} for i in range(500)]
    write_lines(run / "episodes.jsonl", games)
    for name in ("000000000007", "000000000020", ".partial-000000000030"):
        (run / "checkpoints" / name).mkdir(parents=True)
    found = RunReader(run).state()
    assert (found["standing"], found["reason"], found["running"], found["limit"]) == ("done", "done", False, "")
    assert [e["steps"] for e in found["episodes"]] == list(range(499, 489, -1))
    assert [c["update"] for c in found["checkpoints"]] == [20, 7]
    assert {"name": "actors", "value": "2", "source": "command"} in found["settings"]


@pytest.mark.parametrize(
    ("workers", "wait", "cpu", "limit"),
    [
        (1, 0.0, 0.5, "cores are idle for 50 % of the time: try --actors 3 ("),  # a worker too few
        (2, 0.9, 0.1, "cores are idle for 90 % of the time: try --actors 3 ("),
        (2, 0.03, 0.1, "environment takes 61 % of the workers' time: "),  # the cores are full of others' work
        (6, 0.7, 0.95, "environment takes 19 % of the workers' time: "),  # waiting, since there are two cores
        (2, 0.0, None, ""),
    ],
)
def test_what_limits_a_run_is_what_its_cores_do(monkeypatch: pytest.MonkeyPatch, workers, wait, cpu, limit):
    monkeypatch.setattr(watch, "cores", lambda: 2)
    times = {f"time_{kind}": (1 - wait) * n / 0.8 for kind, n in (("env", 0.5), ("infer", 0.2), ("learn", 0.1))}
    row = {**times, "time_replay": 0.0, "time_wait": wait, "cpu": cpu}
    config, wiring = {"env": "toy:catch", "actors": 2, "lanes": 8}, {"roles": [{"name": "act", "n": workers}]}
    assert watch.limit_sentence(row, config, wiring).startswith(limit)
    assert bool(limit) == bool(watch.limit_sentence(row, config, wiring))


def test_shares_are_weighted_by_what_reports_are_over_and_advise_a_run_that_goes_on(tmp_path: Path, monkeypatch):
    """A run's last report is over what is left, in which workers may only have waited; one may lack a number."""
    monkeypatch.setattr(watch.run_files, "is_locked", lambda directory: True)
    run = make_run(tmp_path, rows=6)
    idle = {"time_env": 0.0, "time_infer": 0.0, "time_learn": 0.01, "time_wait": 0.99, "cpu": None}
    write_lines(run / "metrics.jsonl", [report(612, **idle)], "a")
    found = RunReader(run).state()
    assert found["limit"].startswith("environment takes 49 % of the workers' time")
    assert found["shares"]["time_wait"] == pytest.approx((60 * 0.2 + 1.2 * 0.99) / 61.2)
    assert found["shares"]["cpu"] == pytest.approx(0.9)


def game(steps: int, ret: float) -> dict[str, float]:
    return {"wall_seconds": steps / 10, "steps": steps, "episodic_return": ret, "episodic_length": 9}


def test_the_curve_is_of_every_game(tmp_path: Path):
    run = make_run(tmp_path)
    write_lines(run / "episodes.jsonl", [game(i, float(i)) for i in range(1, 301)])
    watched = RunReader(run)
    curve = watched.state()["curve"]
    assert [point[0] for point in curve] == list(range(1, 301))
    assert (curve[0], curve[-1][2]) == ((1, 0.1, 1.0), sum(range(201, 301)) / 100)
    write_lines(run / "episodes.jsonl", [game(300, 0.0), game(310, 0.0)], "a")
    assert [point[0] for point in watched.state()["curve"]][-2:] == [300, 310]
    write_lines(run / "episodes.jsonl", [game(5, 7.0)])  # what a resumption leaves
    assert watched.state()["curve"] == [(5, 0.5, 7.0)]


def test_with_several_tasks_the_curve_is_their_mean_score(tmp_path: Path):
    """Returns of different tasks have no common mean."""
    run = make_run(tmp_path)
    tasks = {"task_return_means": {"a": 1.0, "b": 9.0}, "task_steps": {"a": 50, "b": 50}}
    write_lines(run / "metrics.jsonl", [report(100 * i, episodic_return_mean=5.0 + i, **tasks) for i in (1, 2)])
    write_lines(run / "episodes.jsonl", [game(i, -1.0) for i in range(9)])
    state = RunReader(run).state()
    assert [point[2] for point in state["curve"]] == [6.0, 7.0]
    assert state["now"]["task_return_means"] == {"a": 1.0, "b": 9.0}


def self_play(root: Path, *scores: dict[str, Any]) -> Path:
    run = make_run(root)
    config = {"env": "game:othello+size=6", "simulations": 16}
    (run / "config.json").write_text(json.dumps({"schema": 1, "system": "alphago_zero", "config": config}))
    write_lines(run / "metrics.jsonl", [report(100 * i, value_accuracy=0.5 + i / 10) for i in (1, 2, 3)])
    write_lines(run / "episodes.jsonl", [game(i, -1.0) for i in range(9)])
    for i, score in enumerate(scores):
        (run / f"evaluation-{i}.json").write_text(json.dumps(score))
    return run


def score(points: float, games: int, finished: str, against: str = "random") -> dict[str, Any]:
    mean = {"episodic_return_mean": points / games, "episodes": games}
    return {"protocol": "versus", "against": against, "finished": finished, **mean}


def test_self_play_has_value_accuracy_and_points_against_random_or_how_to_measure_them(tmp_path: Path):
    played = score(90.0, 100, "2026-01-01"), score(47.5, 50, "2026-01-02"), score(9.0, 10, "2026-01-03", "mcts:50")
    run = self_play(tmp_path, *played)
    found = RunReader(run).state()
    assert [point[2] for point in found["curve"]] == pytest.approx([0.6, 0.7, 0.8])
    measure = f"polyplay evaluate {run} --protocol versus --against random"
    known = {"value_accuracy": pytest.approx(0.8), "measure": measure}
    assert found["self_play"] == {**known, "points": 47.5, "games": 50}
    (run / "evaluation-1.json").write_text("{")
    assert RunReader(run).state()["self_play"] == {**known, "points": None, "games": None}
    assert RunReader(make_run(tmp_path, "plain")).state()["self_play"] is None


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    run = str(make_run(tmp_path))
    for words, line in (
        ([], "error: watch takes the directory of a run first"),
        (["nowhere"], "error: no run at nowhere"),
        ([run, "--port", "70000"], "error: --port: '70000' given, allowed: a whole number from 1 to 65535"),
        ([run], f"watch needs starlette and uvicorn: {install_command('watch')}"),
    ):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert line in refused(capsys, "watch", *words)


def test_it_serves_until_ctrl_c_and_ends_with_130(tmp_path: Path):
    pytest.importorskip("uvicorn")
    port = free_port()
    call = [sys.executable, "-m", "polyplay", "watch", str(make_run(tmp_path)), "--port", str(port)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/#token=" in process.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as reply:
            assert reply.status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "polyplay: ended by SIGINT\n")


pytest.importorskip("httpx")
testclient = pytest.importorskip("starlette.testclient")
server = pytest.importorskip("polyplay.cli.pages")
TOKEN = {"X-Polyplay-Token": "secret"}
PRETEND = """
import signal, sys, time
from pathlib import Path
from polyplay.runs.directory import DirectoryLock
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def client(*runs: Path):
    return testclient.TestClient(server.watch_application(list(runs), "secret"), base_url="http://127.0.0.1:8765")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/watch.css", "text/css"), ("/watch.js", "javascript"), ("/base.js", "javascript")],
)
def test_pages_and_their_headers(tmp_path: Path, path: str, kind: str):
    reply = client(make_run(tmp_path)).get(path)
    assert reply.status_code == 200
    assert kind in reply.headers["content-type"]
    assert reply.headers["content-security-policy"].startswith("default-src 'self';")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_the_numbers_come_again_only_when_they_have_changed(tmp_path: Path):
    page = client(make_run(tmp_path, "a"), make_run(tmp_path, "b", rows=1))
    reply = page.get("/state")
    assert [run["now"]["steps"] for run in reply.json()] == [300, 100]
    assert page.get("/state", headers={"If-None-Match": reply.headers["etag"]}).status_code == 304
    (tmp_path / "b" / "summary.json").write_text('{"exit_code": 0, "reason": "done"}')
    assert page.get("/state", headers={"If-None-Match": reply.headers["etag"]}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 400) for host in ("example.com:8765", "example.com", "127.0.0.2:8765")),
        *((host, 400) for host in ("127.0.0.1.example.com:8765", "")),
        *((host, 200) for host in ("localhost:8765", "127.0.0.1:8765")),
    ],
)
def test_a_foreign_host_is_refused(tmp_path: Path, host: str, status: int):
    page, headers = client(make_run(tmp_path)), {"Host": host}
    assert page.get("/", headers=headers).status_code == page.get("/state", headers=headers).status_code == status
    if status == 400:
        assert page.get("/nothing", headers=headers).status_code == 400
        assert page.post("/runs/0/stop", headers=TOKEN | headers).status_code == 400


def test_with_the_token_a_checkpoint_is_asked_for_once_and_stop_interrupts_who_holds_the_lock(tmp_path: Path):
    run = make_run(tmp_path)
    page = client(run)

    def ask(what: str, **headers: str) -> int:
        return page.post(f"/runs/0/{what}", headers=headers).status_code

    with subprocess.Popen([sys.executable, "-c", PRETEND, str(run)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            assert (lock_holder(run), page.get("/state").json()[0]["standing"]) == (process.pid, "running")
            for headers in ({}, {"X-Polyplay-Token": "wrong"}, {"X-Polyplay-Token": ""}):
                assert [ask(what, **headers) for what in ("stop", "checkpoint")] == [403, 403]
            assert (take_request(run), process.poll()) == (False, None)
            assert ask("checkpoint", **TOKEN) == 200
            assert (take_request(run), take_request(run)) == (True, False)
            assert ask("stop", **TOKEN) == 200
            assert process.wait(timeout=20) == 7
        finally:
            process.kill()


def test_a_process_that_only_the_file_names_is_left_alone(tmp_path: Path):
    run = make_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        (run / ".lock").write_text(f'{{"pid": {process.pid}, "host": "{socket.gethostname()}"}}')
        statuses = [client(run).post(f"/runs/0/{what}", headers=TOKEN).status_code for what in ("stop", "checkpoint")]
        time.sleep(0.2)
        found = process.poll()
        process.kill()
    assert (statuses, found, take_request(run)) == ([409, 409], None, False)


def test_there_is_no_other_run_and_no_other_file(tmp_path: Path):
    page = client(make_run(tmp_path))
    assert page.post("/runs/1/stop", headers=TOKEN).status_code == 404
    assert (page.get("/..%2fmain.py").status_code, page.get("/runs/0/stop").status_code) == (404, 405)
