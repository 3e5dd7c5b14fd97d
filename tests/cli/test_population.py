from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.population.store import rank_members
from polyplay.runs.directory import read_population
from tests.populations import make_population, write_run


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")


def table(out: str) -> list[list[str]]:
    """The words of each member's line."""
    return [line.split() for line in out.splitlines() if line.strip()[:2].isdigit()]


def test_members_are_listed_best_first(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=60)
    assert main.main(["population", str(run)]) == 0
    out = capsys.readouterr().out
    ranked = rank_members(read_population(run)["members"])
    assert [words[0] for words in table(out)] == [f"{m['member']:02}" for m in ranked]
    best = ranked[0]
    words = table(out)[0]
    assert words[1:4] == ["waiting", f"{best['steps'] / 1e6:.3g}M", f"{best['score']:.2f}"]
    assert words[4:6] == [f"{v:.3g}" for v in best["values"].values()]
    assert float(words[6]) == round(best["wall_seconds"] / 60, 1)
    assert out.startswith("a2c · population of 8 · truncation, perturb every 500k steps\n")


def test_the_winners_ancestors_and_weights_come_last(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "a b", turns=60)
    assert main.main(["population", str(run)]) == 0
    winner, weights = capsys.readouterr().out.splitlines()[-2:]
    number = rank_members(read_population(run)["members"])[0]["member"]
    assert winner.startswith(f"winner   {number:02} ← ")
    assert " at " in winner
    assert weights == f"next     polyplay evaluate '{run}/members/{number:02}'"


def test_a_search_is_a_plain_ranking(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=12, members=6, exploit="none")
    assert main.main(["population", str(run)]) == 0
    out = capsys.readouterr().out
    assert "copied" not in out
    assert "←" not in out
    assert out.startswith("a2c · population of 6 · no copies\n")
    scores = [float(words[3]) for words in table(out)]
    assert scores == sorted(scores, reverse=True)


def test_one_that_has_just_begun_has_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=0, members=3, state="training")
    assert main.main(["population", str(run)]) == 0
    out = capsys.readouterr().out
    assert [words[1:4] for words in table(out)] == [["training", "0", "–"]] * 3
    assert out.splitlines()[-1] == "no member has a score yet"


def test_why_a_member_failed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=12, members=4)
    contents = json.loads((run / "population.json").read_text())
    best = rank_members(contents["members"])[0]
    best |= {"state": "failed", "why": "the loss\nis NaN"}
    (run / "population.json").write_text(json.dumps(contents))
    assert main.main(["population", str(run)]) == 0
    out = capsys.readouterr().out
    assert table(out)[-2][:2] == [f"{best['member']:02}", "failed"]
    assert f"\n{best['member']:02} failed: the loss is NaN\n" in out
    assert f"winner   {best['member']:02}" not in out


def test_the_picture_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, picture = make_population(tmp_path / "run", turns=12, members=4), tmp_path / "p.svg"
    assert main.main(["population", str(run), "--picture", str(picture)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(picture)
    assert "<svg" in picture.read_text()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=12, members=4)
    plain = write_run(tmp_path / "plain", "a2c", {"env": "toy:catch"})
    for words, says in (
        ([], "population takes the directory of a run first"),
        ([str(tmp_path / "rum")], f"did you mean {run}?"),
        ([str(plain)], "plain is a run of a2c, no population: name one that `polyplay train pbt` made"),
        ([str(run / "members" / "01")], f"is a member of a population: name the population, {run}"),
        ([str(run), "--picture", "p.gif"], "--picture: p.gif given, allowed: a file .png, .svg, .pdf"),
        ([str(run), "--picture", str(tmp_path / "no" / "p.png")], "--picture: "),
    ):
        assert main.main(["population", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
