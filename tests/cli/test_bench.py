"""Options and table of `polyplay bench`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyplay.cli import bench, bench_measure, main
from polyplay.cli.bench import BenchOptions
from polyplay.cli.bench_measure import Bench
from polyplay.core.errors import UserError
from tests.cli import bench_fakes as fakes


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(bench_measure, "cores", lambda: 2)
    asked = BenchOptions(env="toy:catch", precision="float32")
    monkeypatch.setitem(fakes.RUN, "others_cores", 0.25)
    return Bench(["a2c", "ga3c", "ppo"], asked, fakes.means()).run()


def shown(document: dict[str, Any], width: int) -> list[str]:
    file = io.StringIO()
    bench.print_table(document, Console(file=file, width=width, highlight=False))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits(document: dict[str, Any], width: int):
    lines = shown(document, width)
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "\n".join(lines)
    (a2c,) = [x.split() for x in lines if x.split()[:2] == ["a2c", "2,000"]]
    #     steps/s            env   act   learn over idle others waits
    assert a2c == ["a2c", "2,000", "28", "11", "11", "0", "38", "12", "10%"]
    assert any(x.split() == ["ga3c", "failed"] for x in lines)
    text = " ".join(" ".join(lines).split())
    assert "waiting takes 38 % of the core time: try --groups 2" in text
    assert "--preset quick --lanes 32 --replicas 2 --inputs raw; acts for 16 at once, learns from 128" in text
    assert "in 3 passes" in text
    assert "note a2c: other programs used 0.2 cores meanwhile" in text


def test_without_systems_all_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    asked: list[Any] = []

    class Listening:
        def __init__(self, names: Any, options: Any, means: Any):
            asked.append((list(names), options))

        def run(self) -> Any:
            raise UserError("heard")

    monkeypatch.setattr(bench_measure, "Bench", Listening)
    assert main.main(["bench"]) == main.main(["bench", "ppo", "a2c", "--network", "a3c"]) == 2
    assert asked[0] == (bench.MEASURED, BenchOptions())
    assert asked[1] == (["ppo", "a2c"], BenchOptions(network="a3c"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bench a2d", "SYSTEM: 'a2d' given, allowed: "),
        ("bench dqn", "bench: dqn given, which learns from a replay: not measured yet; allowed: a2c, a3c, "),
        ("bench league", "bench: league given, which trains several agents: not measured yet; allowed: a2c, a3c, "),
        ("bench a2c a2c", "bench takes each system once, a2c a2c given"),
        ("bench --seconds x", "--seconds: 'x' given, allowed: a number above 0, at most 1e9"),
        ("bench --precision half", "--precision: 'half' given, allowed: float32, bfloat16, auto"),
        ("bench --json nowhere/b.json", "--json: nowhere/b.json given, but there is no directory nowhere"),
        ("bench --secs 3", "unknown option --secs for polyplay bench"),
        ("bench --env toy:cacth a2c", "unexpected 'a2c' for polyplay bench"),
        ("bench --env toy:cacth", "unknown toy 'toy:cacth'"),
    ],
)
def test_mistakes_are_one_line(line: str, says: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main.main(line.split()) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.startswith("polyplay: error: ")
    assert told.count("\n") == 1


def test_the_documentation_has_the_table_as_it_is_printed():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "performance.md").read_text()
    for heading in (*bench.HEADS.values(), "waits", "others"):
        assert heading in text
