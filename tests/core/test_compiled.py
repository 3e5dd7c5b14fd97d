"""A compiled loop is compiled anew when the file of a loop inside it changes, or a number that it imported."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from polyplay.core.compiled import UNCACHED, source_stamp
from polyplay.games import board_rules
from polyplay.search import tree_kernels

ROOT = Path(__file__).parents[2]
DECORATOR = "from polyplay.core.compiled import cached_njit\ncompiled = cached_njit()\n"
INNER = DECORATOR + "@compiled\ndef inner(x):\n    return x + {}\n"
MIDDLE = DECORATOR + "from inner import inner\n@compiled\ndef middle(x):\n    return inner(x)\n"
NUMBERS = "STEP = {}\n"
OUTER = (
    DECORATOR + "from middle import middle\nfrom numbers_of import STEP\n"
    "@compiled\ndef outer(x):\n    return middle(x) + STEP\n"
    "from polyplay.core import processes\ncompiles = []\nprocesses.on_compile.append(lambda: compiles.append(1))\n"
    "print(outer(1), sum(outer.stats.cache_hits.values()), len(compiles) > 0)\n"
)


@pytest.fixture
def answer(tmp_path: Path):
    """What outer(1) is and how often its machine code came from disk, for loops of these numbers; a process each."""
    (tmp_path / "middle.py").write_text(MIDDLE)
    (tmp_path / "outer.py").write_text(OUTER)

    def run(inner: int, step: int) -> list[int]:
        for name, text in (("inner", INNER.format(inner)), ("numbers_of", NUMBERS.format(step))):
            (tmp_path / f"{name}.py").write_text(text)
            os.utime(tmp_path / f"{name}.py", (inner * 1_000, inner * 1_000))  # so Python's own cache is no matter
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "outer.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        answer, from_disk, compiled = done.stdout.split()
        assert compiled == str(from_disk == "0"), "said where it compiles, and only there"
        return [int(answer), int(from_disk)]

    return run


def test_a_change_of_what_is_inside_compiles_anew(answer):
    assert answer(10, 100) == [111, 0]
    assert answer(10, 100) == [111, 1], "from disk"
    assert answer(20, 100) == [121, 0], "a loop that a loop inside it calls"
    assert answer(20, 200) == [221, 0], "an imported number"
    assert answer(20, 200) == [221, 1]


TWO = "from outer import compiled, outer\n@compiled\ndef more(x):\n    return outer(x)\nprint(more(2))\n"


@pytest.mark.parametrize("how", ["no folder", "no room"])
def test_without_a_place_for_its_cache_it_compiles_without_and_says_so_once(how: str, tmp_path: Path):
    """A read-only installation and home; a full disk."""
    for name, text in (("inner", INNER.format(10)), ("middle", MIDDLE), ("numbers_of", NUMBERS.format(100))):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "two.py").write_text(TWO)
    if how == "no folder":
        (tmp_path / "__pycache__").touch()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": "/dev/null/none"}
    env.pop("NUMBA_CACHE_DIR", None)

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [sys.executable, "two.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=no_room if how == "no room" else None,
    )
    assert done.stdout == "111 0 True\n112\n", done.stderr
    assert done.stderr == f"polyplay: {UNCACHED}\n"


@pytest.mark.parametrize(
    "loop", [board_rules.legal, board_rules.play, board_rules.write_planes, tree_kernels.gather_leaves]
)
def test_loops_that_are_called_as_a_modules_attributes_count(loop, monkeypatch):
    """A change of Go's rules compiles anew what can reach them."""
    read, before = Path.read_bytes, source_stamp(loop.py_func)
    assert source_stamp(loop.py_func) == before
    for name in ("go.py", "records.py", "board_rules.py"):
        monkeypatch.setattr(Path, "read_bytes", lambda path, n=name: read(path) + b"#" * (path.name == n))
        assert source_stamp(loop.py_func) != before, name


SLOW = (
    DECORATOR + "import time\n@compiled\ndef slow(x):\n    return x + 1\n"
    "from polyplay.core import processes\ncompiles = []\n"
    "processes.on_compile += [lambda: compiles.append(1), lambda: time.sleep(0.3)]\nprint(slow(1), len(compiles))\n"
)


def test_of_processes_that_need_a_loop_at_once_one_compiles_it(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    at_once = [
        subprocess.Popen([sys.executable, "slow.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(process.communicate()[0] for process in at_once) == ["2 0\n", "2 1\n"]
