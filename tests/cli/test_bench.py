"""`polyplay bench`: shares of core time, the option to try, the document and its table, the rate of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.cli import bench, main
from polyplay.cli.bench import MEASURED, BenchOptions, change, settings_of, split_core_time
from polyplay.core import machine
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.tree import Field
from polyplay.envs import Envs
from tests.verbs import refused

TIMES = {"env": 0.5, "infer": 0.2, "learn": 0.2, "wait": 0.1}
PONG = "ALE/Pong-v5"


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("infer", {"lanes": 32, "unroll": 5, "groups": 1}, "try --lanes 64 (larger acting batches; it changes what"),
        ("learn", {"lanes": 32, "unroll": 5}, "try --unroll 10 (larger updates"),
        ("overhead", {"lanes": 32, "unroll": 5}, "try --lanes 64 (more lanes share what a call costs"),
        ("idle", {"lanes": 32, "groups": 1}, "try --groups 2 (one group steps while the other is served"),
        ("learn", {"lanes": 16, "unroll": 128, "epochs": 3}, "try --epochs 2 (fewer passes over a rollout"),
        ("learn", {"epochs": 1, "min_batch": 40}, "try --min-batch 80 "),
        ("idle", {"actors": 2, "lanes": 16}, "try --actors 3 (more actors, while others wait"),
        ("infer", {"workers": 2, "unroll": 20}, "a smaller --network, or more cores; this system has no setting"),
        ("idle", {"workers": 2}, "no option reduces it; this system has no setting for it"),
        ("env", {"env": PONG, "kind": "ale"}, "the emulator has no cheaper setting here; more cores make it faster"),
        ("env", {"env": PONG, "kind": "inline"}, "try --atari baselines, where ale-py makes the images itself; else"),
        ("env", {"env": "CartPole-v1", "kind": "processes"}, "`polyplay check CartPole-v1` measures it; make its step"),
    ],
)
def test_an_option_that_the_page_has(name: str, values: dict[str, Any], says: str):
    assert change(name, values, values.get("env", PONG), values.get("kind", "ale")).startswith(says)


@pytest.mark.parametrize(
    ("times", "own", "others", "workers", "pooled", "expected"),
    [
        # as many workers as cores are busy for 90 % of their time
        (TIMES, 0.9, 0.04, 1.0, False, {"env": 0.5, "infer": 0.2, "learn": 0.2, "overhead": 0.0, "idle": 0.06}),
        # half as many, busy for 0.45 of all core time: the rest is overhead, or of environments in processes
        (TIMES, 0.9, 0.0, 0.5, False, {"env": 0.25, "infer": 0.1, "learn": 0.1, "overhead": 0.45, "idle": 0.1}),
        (TIMES, 0.9, 0.0, 0.5, True, {"env": 0.7, "infer": 0.1, "learn": 0.1, "overhead": 0.0, "idle": 0.1}),
        # a replay is overhead, and more workers than cores share these
        (
            {"env": 0.2, "infer": 0.1, "learn": 0.3, "replay": 0.4},
            *(0.5, 0.0, 4.0, True),
            {"env": 0.1, "infer": 0.05, "learn": 0.15, "overhead": 0.2, "idle": 0.5},
        ),
    ],
)
def test_where_the_core_time_goes(times, own, others, workers, pooled, expected):
    assert split_core_time(times, own, others, workers, pooled) == pytest.approx({**expected, "others": others})


@pytest.mark.parametrize(("own", "others"), [(1.3, 0.2), (0.9, 0.5), (0.0, 0.0)])
def test_shares_are_of_all_the_core_time_there_is(own: float, others: float):
    for times, pooled in ((TIMES, False), ({"wait": 1.0}, True)):
        assert sum(split_core_time(times, own, others, 1.0, pooled).values()) == pytest.approx(1.0)


def test_pictures_keep_what_the_preset_says_of_them():
    assert bench.pictures(Field((4, 84, 84), "uint8"))
    assert not bench.pictures(Field((4, 84, 84), "float32"))
    assert not bench.pictures({"a": Field((4, 84, 84), "uint8")})
    still, catch = (settings_of("a2c", Envs(name, 1).spec, 3) for name in ("toy:tests.toys:Still", "toy:catch"))
    assert still == {"preset": "quick", "lanes": 48, "replicas": 3}
    assert catch == {**still, "inputs": "raw"}


# The document and the table, with the same numbers for every system; ga3c fails.


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Systems that were measured."""
    found = list[str]()

    def watched(system: str, given: Any, seconds: float) -> dict[str, Any]:
        found.append(system)
        if system == "ga3c":
            raise WorkerLost("ga3c: its run gave no reports (exit status 1):\nTraceback")
        files = {"config": {"config": {**given, "groups": 1, "epochs": 1 + 2 * (system == "ppo")}}}
        files["wiring"] = {"pool": "toy", "roles": [{"n": 2}]}
        return {"sps": 2000.0, "own_cores": 1.0, "others_cores": 0.25, "time": TIMES, **files}

    monkeypatch.setattr(bench, "watch_run", watched)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    return found


def document_of(*names: str, **options: Any) -> dict[str, Any]:
    return bench.measure(names, BenchOptions(**{"env": "toy:catch", "precision": "float32", **options}))


def test_a_document_by_hand(measured: list[str], capsys: pytest.CaptureFixture):
    document = document_of("a2c", "ppo", "ga3c")
    assert {"machine", "versions", "commit", "started"} <= document.keys()
    assert (document["cores"], document["network"], document["env"]) == (2, "mlp", "toy:catch")
    a2c, ppo, ga3c = document["systems"]
    # 1 of 2 cores used; 2 workers are busy for 90 % of it: environments have 5/9 of that core, acting and learning 2/9
    shares = {"env": 5 / 18, "infer": 2 / 18, "learn": 2 / 18, "overhead": 0.0, "others": 0.125, "idle": 0.375}
    assert a2c["shares"] == pytest.approx(shares)
    assert (a2c["sps"], a2c["bottleneck"], a2c["wait_share"], a2c["frames_per_step"]) == (2000.0, "waiting", 0.1, 1)
    assert a2c["change"].startswith("waiting takes 38 % of the core time: try --groups 2 ")
    assert (a2c["epochs"], ppo["epochs"]) == (1, 3)
    assert ga3c["error"].startswith("ga3c: its run gave no reports")
    assert capsys.readouterr().err.splitlines() == [f"bench: {name}: running …" for name in measured]
    assert json.loads(json.dumps(document)) == document


def test_the_network_fits_the_observations(measured: list[str]):
    assert document_of("a2c", env="toy:tests.toys:Still")["network"] == "a3c"
    with pytest.raises(UserError, match="'nature' takes one image"):
        document_of("a2c", network="nature")
    assert len(measured) == 1, "mistakes come before anything is measured"


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits(measured: list[str], width: int):
    file = io.StringIO()
    bench.print_table(document_of("a2c", "ga3c"), Console(file=file, width=width, highlight=False))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (a2c,) = [x.split() for x in lines if x.split()[:2] == ["a2c", "2,000"]]
    #     steps/s            env   act   learn over idle others waits
    assert a2c == ["a2c", "2,000", "28", "11", "11", "0", "38", "12", "10%"]
    assert any(x.split() == ["ga3c", "failed"] for x in lines)
    text = " ".join(" ".join(lines).split())
    assert "waiting takes 38 % of the core time: try --groups 2" in text
    assert "--preset quick --lanes 32 --replicas 2 --inputs raw" in text
    assert "note other programs used 0.2 cores; measure again on an idle machine" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bench dqn", f"bench: dqn is not an on-policy system of one agent; choose from {', '.join(MEASURED)}"),
        ("bench --seconds x", "--seconds: 'x' given, allowed: a number above 0, at most 1e9"),
        ("bench --precision half", "--precision: 'half' given, allowed: float32, bfloat16, auto"),
        ("bench --json nowhere/b.json", "--json nowhere/b.json: directory nowhere does not exist"),
        ("bench --secs 3", "unknown option --secs for polyplay bench"),
        ("bench --env toy:cacth", "unknown toy 'toy:cacth'"),
    ],
)
def test_mistakes_are_one_line(line: str, says: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert says in refused(capsys, *line.split())


# A run that is watched: the rate of a window, its end, and once in earnest, very shortly.


def report(wall: float, steps: int, updates: int, busy: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"wall_seconds": wall, "steps": steps, "updates": updates, "busy": busy, **more}


def test_the_rate_of_a_window(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    reports = [
        report(1.0, 0, 0),
        report(2.0, 50, 1),
        report(3.0, 100, 2, 6.0, time_env=1.0, cpu=1.0),
        report(4.0, 1100, 3, 7.75, time_env=0.5, time_wait=0.5, cpu=0.5),
        report(6.0, 3100, 4, 12.0, time_env=0.25, time_wait=0.75, cpu=0.8),
    ]
    assert bench.find_window(reports, 0.0, 60.0) == bench.find_window([], 0.0, 1.0) == []
    window = bench.find_window([*reports, report(7.0, 3100, 4)], 1.0, 2.0)
    assert window == reports[2:]
    found = bench._summary_of(window)
    assert (found["sps"], found["window_s"], found["own_cores"]) == (1000.0, 3.0, pytest.approx(1.4))
    assert found["others_cores"] == pytest.approx(0.6)
    assert found["time"] == pytest.approx({"env": 1 / 3, "infer": 0.0, "learn": 0.0, "replay": 0.0, "wait": 2 / 3})


def test_a_window_is_of_whole_turns_of_acting_and_learning():
    # 2 s of acting at 1,000 steps/s, then 4 updates in 2 s, for ever: 500 steps/s, whatever a window of 5 s would say
    steps = {t: 2000 * (t // 4) + 1000 * min(t % 4, 2) for t in range(1, 18)}
    reports = [report(t, n, 4 * (t // 4) + 2 * max(t % 4 - 2, 0)) for t, n in steps.items()]
    whole = bench.find_window(reports, 1.0, 5.0)
    assert ([whole[i]["wall_seconds"] for i in (0, -1)], bench._summary_of(whole)["sps"]) == ([5, 13], 500.0)


@pytest.mark.long
def test_a_real_bench_of_a_toy(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A run in processes of its own; no figure is looked at, but that all of them are there."""
    file = tmp_path / "b.json"
    words = ["a3c", "--env", "toy:catch", "--seconds", "0.25", "--precision", "float32", "--json", str(file)]
    assert main.main(["bench", *words]) == 0
    (row,) = json.loads(file.read_text())["systems"]
    assert row["sps"] > 0
    assert sum(row["shares"].values()) == pytest.approx(1.0, abs=1e-3)  # a run's reports are rounded
    assert "a3c" in capsys.readouterr().out


def test_a_run_without_reports_says_why():
    given = {"env": "toy:catch", "network": "mlp", "lanes": 3, "replicas": 2, **bench.LITTLE}
    with pytest.raises(WorkerLost, match=r"(?s)no reports \(exit status 2\):.*--lanes 3 does not divide"):
        bench.watch_run("a2c", given, 0.2)
