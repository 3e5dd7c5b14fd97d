from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from polyplay.cli import main
from tests.cli.watch_runs import make_run


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = str(make_run(tmp_path))
    for words, line in (
        ([], "error: watch takes the directory of a run first"),
        (["nowhere"], "error: no run at nowhere"),
        ([run, "--port", "70000"], "error: --port: 70000 given, allowed: 1 to 65535"),
    ):
        assert main.main(["watch", *words]) == 2
        assert line in capsys.readouterr().err


def test_a_missing_extra_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main.main(["watch", str(make_run(tmp_path))]) == 2
    assert "watch needs starlette and uvicorn: pip install 'polyplay[watch]'" in capsys.readouterr().err


def test_it_serves_until_ctrl_c_and_ends_with_130(tmp_path: Path):
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = [sys.executable, "-m", "polyplay", "watch", str(make_run(tmp_path)), "--port", str(port)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/#token=" in process.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as reply:
            assert reply.status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "polyplay: ended by SIGINT\n")
