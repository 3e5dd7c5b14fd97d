"""What ends a command before a run has begun, and what does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from polyplay.core import processes
from tests.envs.faulty import gone

EARLY = """
import subprocess, sys, time
from polyplay.core import processes as signals
signals.install(signals.end_at_once)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print(child.pid, flush=True)
try:
    time.sleep(1000)
finally:
    print("not reached")
"""


@pytest.mark.parametrize("number", processes.ENDING)
def test_before_a_run_begins_a_command_ends_at_once_with_all_it_started(number):
    main = subprocess.Popen([sys.executable, "-c", EARLY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert main.stdout is not None
    child = int(main.stdout.readline())
    main.send_signal(number)
    out, err = main.communicate(timeout=30)
    assert (main.returncode, out, err) == (
        128 + number,
        "",
        f"polyplay: {number.name}: ended before anything had begun\n",
    )
    assert gone([child])


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.handled(processes.stop):
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(processes.Stopped) as raised:
                signal.raise_signal(signal.SIGTERM)
        assert raised.value.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_held_signals_come_later():
    came = []
    with processes.handled(lambda number, frame: came.append(number)):
        with processes.blocked():
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]


IMPORTING = """
import builtins, os, sys
from polyplay.core import processes as signals
signals.install(getattr(signals, sys.argv[1]))
real = builtins.__import__
def hook(name, *args, **more):
    if name == sys.argv[2] and sys.argv[3] in sys.modules:
        builtins.__import__ = real
        os.kill(os.getpid(), int(sys.argv[4]))
    return real(name, *args, **more)
assert sys.argv[3] not in sys.modules
builtins.__import__ = hook
try:
    __import__(sys.argv[3])
except BaseException as e:  # as a library that takes whatever is wrong with an import for its absence
    print("caught", type(e).__name__)
print("went on")
"""


@pytest.mark.parametrize("handler", ["end_at_once", "stop"])
@pytest.mark.parametrize(
    ("inner", "module"), [("struct", "ctypes"), ("xml.parsers.expat", "plistlib"), ("_decimal", "decimal")]
)
def test_a_signal_while_a_module_is_imported_ends_the_command_with_one_line(handler, inner, module):
    words = [sys.executable, "-c", IMPORTING, handler, inner, module, str(int(signal.SIGTERM))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    line = {"end_at_once": "SIGTERM: ended before anything had begun", "stop": "ended by SIGTERM"}[handler]
    assert (done.returncode, done.stdout, done.stderr) == (143, "", f"polyplay: {line}\n")


FIRST = """
import builtins, os, signal
real = builtins.__import__
def hook(name, *args, **more):
    if name == "polyplay.core":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *args, **more)
builtins.__import__ = hook
import polyplay.__main__
"""


def test_ctrl_c_before_a_command_has_loaded_anything_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
