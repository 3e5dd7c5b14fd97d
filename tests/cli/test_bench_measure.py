"""From runs to a document, with numbers in the place of measurements; and once in earnest, very shortly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli import bench as advice
from polyplay.cli import bench_measure
from polyplay.cli.bench import SCHEMA, BenchOptions, command
from polyplay.cli.bench_measure import Bench
from polyplay.core.errors import UserError
from tests.cli import bench_fakes as fakes

TOY: dict[str, Any] = {"env": "toy:catch", "precision": "float32", "seconds": 8.0}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_measure, "cores", lambda: 2)


def bench(*systems: str, said: list[str] | None = None, **options: Any) -> dict[str, Any]:
    return Bench(systems, BenchOptions(**{**TOY, **options}), fakes.means(said)).run()


def test_a_document_by_hand():
    said: list[str] = []
    document = bench("a2c", "ppo", "ga3c", said=said)
    assert document["schema"] == SCHEMA
    assert {"machine", "versions", "commit", "started"} <= document.keys()
    assert (document["cores"], document["network"], document["env"]) == (2, "mlp", "toy:catch")
    a2c, ppo, ga3c = document["systems"]
    # 1 of 2 cores used; 2 workers are busy for 90 % of it: environments have 5/9 of that core, acting and learning 2/9
    assert a2c["sps"] == 2000.0
    shares = {"env": 5 / 18, "infer": 2 / 18, "learn": 2 / 18, "overhead": 0.0, "others": 0.0, "idle": 0.5}
    assert a2c["shares"] == pytest.approx(shares)
    assert (a2c["bottleneck"], a2c["wait_share"], a2c["acting_batch"]) == ("waiting", 0.1, 16.0)
    assert a2c["change"].startswith("waiting takes 50 % of the core time: try --groups 2 ")
    assert ppo["epochs"] == 3
    assert ga3c["error"].startswith("ga3c: its run gave no reports")
    assert document["notes"] == ["ga3c: ga3c: its run gave no reports (exit status 1):"]
    assert said == [f"{name}: a run of it …" for name in ("a2c", "ppo", "ga3c")]
    assert json.loads(json.dumps(document)) == document


def test_the_network_fits_the_observations():
    assert bench("a2c")["network"] == "mlp"
    assert bench("a2c", env="toy:still")["network"] == "a3c"
    assert bench("a2c", env="toy:still", network="nature")["systems"][0]["keywords"]["network"] == "nature"


def test_others_on_the_machine_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(fakes.RUN, "others_cores", 0.7)
    assert bench("a2c")["notes"] == ["a2c: other programs used 0.7 cores meanwhile; measure again when it is quiet"]


def test_mistakes_come_before_anything_is_measured():
    said: list[str] = []
    for options, says in (
        ({"env": "toy:cacth"}, "unknown toy 'toy:cacth'"),
        ({"network": "nature"}, "'nature' takes one image"),
    ):
        with pytest.raises(UserError, match=says):
            bench("a2c", said=said, **options)
    assert said == []


@pytest.mark.long
def test_a_real_bench_of_a_toy(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A run in processes of its own; no figure is looked at, but that all of them are there."""
    file = tmp_path / "b.json"
    words = ["a3c", "--env", "toy:catch", "--seconds", "0.25", "--precision", "float32", "--json", str(file)]
    said: list[str] = []
    assert command(words, bench_measure.Measures(report=said.append)) == 0
    document = json.loads(file.read_text())
    (row,) = document["systems"]
    assert row["sps"] > 0
    assert sum(row["shares"].values()) == pytest.approx(1.0)
    assert row["bottleneck"] in advice.NAMES.values()
    assert row["run"]["processes"] > 2
    assert "a3c" in capsys.readouterr().out
    assert "a3c: a run of it …" in said


def test_a_run_that_cannot_begin(capsys: pytest.CaptureFixture):
    with pytest.raises(UserError, match="--lanes 3 does not divide"):
        bench_measure.watched("a2c", {**advice.keywords("a2c", "toy:catch", "mlp", "float32", 2), "lanes": 3}, 0.2)
