from __future__ import annotations

import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from polyplay.runs import directory


def write(path: Path) -> Path:
    rows = [(100, {}), (200, {"loss": 1.0}), (150, {"loss": 2.0})]  # resumed from frame 100
    path.write_text("".join(json.dumps({"frames": n, "wall_seconds": 1.0, **more}) + "\n" for n, more in rows))
    return path


def test_columns_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory.importlib.util, "find_spec", lambda name: None)
    table = directory.read_table(write(tmp_path / "metrics.jsonl"))
    assert table == {"frames": [100, 150], "wall_seconds": [1.0, 1.0], "loss": [None, 2.0]}
    assert directory.read_table(tmp_path / "absent.jsonl") == {}


def test_a_frame_where_pandas_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pandas = types.ModuleType("pandas")
    pandas.__spec__ = ModuleSpec("pandas", None)
    pandas.DataFrame = lambda columns: ("frame", columns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, columns = directory.read_table(write(tmp_path / "metrics.jsonl"))
    assert (kind, columns["frames"]) == ("frame", [100, 150])
