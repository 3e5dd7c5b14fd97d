"""Who knows of other machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polyplay

PACKAGE = Path(polyplay.__file__).parent


def test_one_file_knows_ray():
    files = [p for p in PACKAGE.rglob("*.py") if "import ray" in p.read_text()]
    assert [str(p.relative_to(PACKAGE)) for p in files] == ["workers/hosts/engines.py"]


def test_no_page_and_no_loop_names_machines():
    for room in ("systems", "acting", "learning", "buffers", "nets", "weights", "envs"):
        for path in (PACKAGE / room).rglob("*.py"):
            text = path.read_text()
            assert "workers.hosts" not in text, path
            assert "fleet" not in text, path


def test_a_run_without_hosts_loads_nothing_of_them():
    code = "import polyplay, polyplay.runs.run, polyplay.systems, sys; polyplay.systems.load('impala')\n"
    code += "assert not {m for m in sys.modules if m == 'ray' or m.startswith('polyplay.workers.hosts.')}"
    code += " - {'polyplay.workers.hosts.engines'}"
    subprocess.run([sys.executable, "-c", code], check=True)
