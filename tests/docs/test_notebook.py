"""The notebook, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

FILE = Path(__file__).parents[2] / "docs" / "start" / "notebook.ipynb"


@pytest.mark.long
def test_the_notebook_runs_and_learns(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(FILE, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    results = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    ]
    assert float(results[0]) > 60, "CartPole: 20 is chance"
    assert float(results[-1]) > 17, "10 is chance"
    errors = [
        o
        for cell in notebook.cells
        for o in cell.get("outputs", ())
        if o["output_type"] == "stream" and o["name"] == "stderr"
    ]
    assert errors == []


def test_it_is_stored_without_outputs():
    assert all(not cell.get("outputs") for cell in nbformat.read(FILE, as_version=4).cells)
