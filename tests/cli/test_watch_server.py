from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyplay.runs.session import lock_holder, take_save_request
from tests.cli.watch_runs import make_run

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


def client(*runs: Path, host: str = "127.0.0.1:8765"):
    return testclient.TestClient(server.application(list(runs), "secret", 8765), base_url=f"http://{host}")


@pytest.fixture
def pretend(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen]]:
    """A run's directory and a process that holds its lock."""
    run = make_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", PRETEND, str(run)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield run, process
        finally:
            process.kill()


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
    "host", ["example.com:8765", "example.com", "127.0.0.1:80", "127.0.0.1", "127.0.0.1.example.com:8765"]
)
def test_a_foreign_host_is_refused(tmp_path: Path, host: str):
    page = client(make_run(tmp_path), host=host)
    for path in ("/", "/state", "/nothing"):
        assert page.get(path).status_code == 403
    assert page.post("/runs/0/stop", headers=TOKEN).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765"])
def test_names_of_this_machine_are_allowed(tmp_path: Path, host: str):
    assert client(make_run(tmp_path)).get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"X-Polyplay-Token": "wrong"}, {"X-Polyplay-Token": ""}])
@pytest.mark.parametrize("what", ["stop", "checkpoint"])
def test_without_the_token_nothing_happens(pretend, headers: dict[str, str], what: str):
    run, process = pretend
    assert client(run).post(f"/runs/0/{what}", headers=headers).status_code == 403
    assert not take_save_request(run)
    assert process.poll() is None


def test_stop_interrupts_who_holds_the_lock(pretend):
    run, process = pretend
    assert lock_holder(run) == process.pid
    assert client(run).get("/state").json()[0]["standing"] == "running"
    assert client(run).post("/runs/0/stop", headers=TOKEN).status_code == 200
    assert process.wait(timeout=20) == 7


def test_checkpoint_leaves_a_request_that_is_taken_once(pretend):
    run, _ = pretend
    assert client(run).post("/runs/0/checkpoint", headers=TOKEN).status_code == 200
    assert take_save_request(run)
    assert not take_save_request(run)


def test_a_process_that_only_the_file_names_is_left_alone(tmp_path: Path):
    run = make_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        try:
            text = f'{{"pid": {process.pid}, "host": "{socket.gethostname()}"}}'
            (run / ".lock").write_text(text)
            for what in ("stop", "checkpoint"):
                assert client(run).post(f"/runs/0/{what}", headers=TOKEN).status_code == 409
            time.sleep(0.2)
            assert process.poll() is None
            assert not take_save_request(run)
        finally:
            process.send_signal(signal.SIGKILL)


def test_there_is_no_other_run_and_no_other_file(tmp_path: Path):
    page = client(make_run(tmp_path))
    assert page.post("/runs/1/stop", headers=TOKEN).status_code == 404
    assert page.get("/..%2fmain.py").status_code == 404
    assert page.get("/runs/0/stop").status_code == 405
