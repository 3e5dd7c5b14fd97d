"""From runs and parts to a document, with numbers in the place of measurements; and once in earnest, very shortly."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli.bench import SCHEMA, crowd, settings, watched_run
from polyplay.cli.bench import measure as measuring
from polyplay.cli.bench.crowd import MeasureRequest
from polyplay.cli.bench.main import BenchOptions, command
from polyplay.cli.bench.measure import Bench
from polyplay.common.errors import UserError, WorkerLost

from . import fakes

TOY: dict[str, Any] = {"env": "toy:catch", "precision": "float32", "seconds": 8.0}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "cores", lambda: 2)
    monkeypatch.setattr(measuring, "is_half", lambda how: how != "float32")


def bench(*systems: str, said: list[str] | None = None, **options: Any) -> dict[str, Any]:
    return Bench(systems, BenchOptions(**{**TOY, **options}), fakes.means(said)).run()


def test_a_document_by_hand():
    said: list[str] = []
    document = bench("a2c", "ppo", "ga3c", said=said)
    assert document["schema"] == SCHEMA
    assert {"machine", "versions", "commit", "started"} <= document.keys()
    assert (document["cores"], document["network"], document["env"]) == (2, "mlp", "toy:catch")
    a2c, ppo, ga3c = document["systems"]
    assert (a2c["sps"], a2c["costs_us"]) == (2000.0, {"env": 200.0, "infer": 50.0, "learn": 100.0})
    assert a2c["limit"] == pytest.approx(2e6 / 350)
    assert a2c["fraction"] == pytest.approx(0.35)
    assert a2c["whole_us"] == pytest.approx(1000.0)
    # own 500 µs of CPU in 900 µs of busy wall time: acting 0.2 · 1000 · 5/9 = 111.1 µs, 61.1 more than alone
    assert a2c["where_us"]["dearer_infer"] == pytest.approx(100 / 0.9 - 50)
    assert a2c["where_us"]["idle"] == pytest.approx(500.0)
    assert (a2c["bottleneck"], a2c["wait_share"], a2c["acting_batch"]) == ("waiting", 0.1, 16.0)
    assert a2c["change"].startswith("waiting takes 50 % of the core time: try --groups 2 ")
    assert ppo["epochs"] == 3
    assert ga3c["error"].startswith("ga3c: its run gave no reports")
    assert document["notes"] == ["ga3c: ga3c: its run gave no reports (exit status 1):"]
    told = [text for text in said if text.split(":")[0] in ("a2c", "ppo", "ga3c")]
    runs = [f"{name}: {what} …" for name in ("a2c", "ppo") for what in ("a run of it", "its parts alone")]
    assert told == [*runs, "ga3c: a run of it …"]
    assert json.loads(json.dumps(document)) == document


def test_the_machine_is_measured_with_every_network_and_precision():
    found = bench("a2c", network=("mlp", "polyplay.cli.bench.free_network:tiny_network"))["machine_limits"]
    assert [(r["network"], r["precision"]) for r in found["networks"]] == [
        (network, precision)
        for network in ("mlp", "polyplay.cli.bench.free_network:tiny_network")
        for precision in ("float32", "bfloat16")
    ]
    first = found["networks"][0]
    assert (found["env_per_s"], first["infer_per_s"], first["learn_per_s"]) == (10_000.0, 40_000.0, 20_000.0)
    assert first["limit"] == pytest.approx(2e6 / 350)
    assert not any(o.keywords.get("reuse", True) for o in fakes.Crowd.asked[:5])  # forward and backward
    assert measuring.networks(settings.Envs("toy:still", 1).spec.obs) == ["a3c", "nature"]


def test_parts_are_measured_at_the_systems_own_sizes():
    bench("a2c", "a3c")
    orders = {o.system: o for o in fakes.Crowd.asked}
    a2c, a3c = orders["a2c"], orders["a3c"]
    assert (a2c.acting, a2c.rows, a2c.lanes, a2c.seconds) == (16.0, (8, 16), 16, 1.0)
    assert (a3c.acting, a3c.rows, a3c.lanes) == (3.5, (20, 1), 1)  # the batch that was seen


@pytest.mark.parametrize(("what", "removed"), [("env", 190.0), ("network", 100 / 0.9 * (0.8 + 0.9))])
def test_a_bottleneck_is_checked_by_removing_it(what: Any, removed: float):
    (row,) = bench("a2c", without=(what,))["systems"]
    (without,) = row["without"]
    assert (without["what"], without["measured"], without["sps"]) == (what, 2.0, 4000.0)
    # acting and learning as they were in the run: 111.1 µs each, of which 10 of 50 and 10 of 100 are left
    assert without["own_sps"] == [2000.0, 2000.0]
    assert without["removed_us"] == pytest.approx(removed)
    assert without["predicted"] == pytest.approx(500 / (500 - removed))
    freed = [o.keywords for o in fakes.Crowd.asked][-1]
    assert ("still" in freed["env"]) == (what == "env")
    assert ("free_network" in freed["network"]) == (what == "network")


def test_a_freed_run_is_between_two_of_the_systems_own():
    said: list[str] = []
    bench("a2c", said=said, without=("env", "network"))
    again, env, network = (f"a2c{what}: a run of it …" for what in (", again", " without env", " without network"))
    runs = [text for text in said if text.startswith("a2c") and "a run of it" in text]
    assert runs == ["a2c: a run of it …", again, env, again, network, again]


def test_own_runs_that_were_disturbed_or_lost_are_told(monkeypatch: pytest.MonkeyPatch):
    calls, real = itertools.count(), fakes.rate

    def rate(*a: Any) -> dict[str, Any]:  # a2c, again, without env, again; and once more
        number = next(calls)
        if number == 5:
            raise WorkerLost("a2c: its run gave no reports")
        return {**real(*a), **({"others_cores": 0.3} if number == 1 else {})}

    monkeypatch.setattr(fakes, "rate", rate)
    document = bench("a2c", without=("env",))
    assert document["systems"][0]["without"][0]["own_others_cores"] == [0.3, 0.0]
    assert document["notes"] == ["a2c: other programs used 0.3 cores meanwhile; measure again when it is quiet"]
    (row,) = bench("a2c", without=("env",))["systems"]
    assert row["without"] == [{"what": "env", "error": "a2c: its run gave no reports"}]


def test_without_a_run_there_is_nothing_to_remove():
    (row,) = bench("ga3c", without=("env", "network"))["systems"]
    assert "error" in row
    assert "without" not in row


def test_others_on_the_machine_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(fakes.RUN, "others_cores", 0.7)
    assert bench("a2c")["notes"] == ["a2c: other programs used 0.7 cores meanwhile; measure again when it is quiet"]


def test_mistakes_come_before_anything_is_measured():
    said: list[str] = []
    for options, says in (
        ({"env": "toy:cacth"}, "unknown toy 'toy:cacth'"),
        ({"network": ("nature",)}, "'nature' takes one image"),
        ({"env": "toy:pendulum", "without": ("env",)}, "--without env: toy:pendulum shows"),
    ):
        with pytest.raises(UserError, match=says):
            bench("a2c", said=said, **options)
    assert said == []


class Here(fakes.Crowd):
    """Measures in this process."""

    def measure(self, order: MeasureRequest) -> dict[str, float]:
        return crowd.measure_parts(order)


@pytest.mark.long
def test_a_real_bench_of_a_toy(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A run in processes of its own; no figure is looked at, but that all of them are there."""
    file = tmp_path / "b.json"
    words = ["a3c", "--env", "toy:catch", "--seconds", "0.25", "--precision", "float32", "--json", str(file)]
    said: list[str] = []
    assert command(words, measuring.Measures(crowd=Here, report=said.append)) == 0
    document = json.loads(file.read_text())
    (row,) = document["systems"]
    assert row["sps"] > 0
    assert row["fraction"] > 0
    assert sum(row["where_us"].values()) == pytest.approx(row["whole_us"])
    assert row["bottleneck"] in measuring.limits.NAMES.values()
    assert row["run"]["processes"] > 2
    assert "a3c" in capsys.readouterr().out
    assert "a3c: a run of it …" in said


def test_a_process_of_a_crowd():
    keywords = settings.keywords("a2c", "toy:catch", "mlp", "float32", 2)
    with crowd.MeasureProcesses(1) as one:
        (child,) = one.children
        assert one.measure(MeasureRequest("a2c", keywords, 1e-4, lanes=2))["env"] > 0
        with pytest.raises(UserError, match="--lanes 3 does not divide"):
            one.measure(MeasureRequest("a2c", {**keywords, "lanes": 3}, 1e-4, lanes=2))
        child.kill()
        child.join()
        with pytest.raises(WorkerLost, match="a process that measures parts"):
            one.measure(MeasureRequest("a2c", keywords, 1e-4, lanes=2))


def test_a_run_that_cannot_begin(capsys: pytest.CaptureFixture):
    with pytest.raises(UserError, match="--lanes 3 does not divide"):
        watched_run.watched("a2c", {**settings.keywords("a2c", "toy:catch", "mlp", "float32", 2), "lanes": 3}, 0.2)
