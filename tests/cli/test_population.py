from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.cli import main
from polyplay.cli.population import (
    GAMES,
    WINNER,
    _first_values,
    draw_league,
    draw_population,
    draw_ratings,
    member_curve,
)
from polyplay.core.errors import UserError
from polyplay.core.files import read_object
from polyplay.population import rules
from polyplay.population.league_log import read_history
from polyplay.population.ratings import RATINGS, REFERENCES, read_rated, read_references
from polyplay.population.store import best_member, rank_members, read_lineage
from polyplay.runs.directory import read_population
from polyplay.runs.population_report import lineage_text, winning_line
from tests import made
from tests.populations import make_population, write_run
from tests.verbs import refused


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")


def table(out: str) -> list[list[str]]:
    """The words of each member's line."""
    return [line.split() for line in out.splitlines() if line.strip()[:2].isdigit()]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population of 8 whose members copied each other."""
    return make_population(tmp_path_factory.mktemp("made") / "a run", turns=60, env="toy:chain")


def printed(run: Path, capsys: pytest.CaptureFixture, *words: str) -> str:
    assert main.main(["runs", str(run), *words]) == 0
    return capsys.readouterr().out


def test_members_are_listed_best_first_then_the_winners_ancestors(copied: Path, capsys: pytest.CaptureFixture):
    out = printed(copied, capsys)
    ranked = rank_members(read_population(copied)["members"])
    assert [words[0] for words in table(out)] == [f"{m['member']:02}" for m in ranked]
    best, words = ranked[0], table(out)[0]
    assert words[1:4] == ["waiting", f"{best['steps'] / 1e6:.3g}M", f"{best['score']:.2f}"]
    assert words[4:6] == [f"{v:.3g}" for v in best["values"].values()]
    assert out.startswith("a2c · population of 8 · truncation, perturb every 500k steps\n")
    winner, weights = out.splitlines()[-2:]
    assert winner.startswith(f"winner   {best['member']:02} ← ")
    assert " at " in winner
    assert weights == f"next     polyplay evaluate '{copied}/members/{best['member']:02}'"


def test_a_search_is_a_plain_ranking(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = printed(make_population(tmp_path / "run", turns=12, members=6, exploit="none"), capsys)
    assert not {"copied", "←"} & set(out.split())
    assert out.startswith("a2c · population of 6 · no copies\n")
    scores = [float(words[3]) for words in table(out)]
    assert scores == sorted(scores, reverse=True)
    out = printed(make_population(tmp_path / "new", turns=0, members=3, state="training"), capsys)
    assert [words[1:4] for words in table(out)] == [["training", "0", "–"]] * 3
    assert out.splitlines()[-1] == "no member has a score yet"


def test_why_a_member_failed_is_said_and_the_picture_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, picture = make_population(tmp_path / "run", turns=12, members=4), tmp_path / "p.svg"
    contents = json.loads((run / "population.json").read_text())
    best = rank_members(contents["members"])[0]
    best |= {"state": "failed", "why": "the loss\nis NaN"}
    (run / "population.json").write_text(json.dumps(contents))
    out = printed(run, capsys, "--picture", str(picture))
    assert table(out)[-2][:2] == [f"{best['member']:02}", "failed"]
    assert f"\n{best['member']:02} failed: the loss is NaN\n" in out
    assert f"winner   {best['member']:02}" not in out
    assert out.splitlines()[-1] == str(picture)
    assert "<svg" in picture.read_text()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = make_population(tmp_path / "run", turns=12, members=4)
    plain = write_run(tmp_path / "plain", "a2c", {"env": "toy:catch"})
    for words, says in (
        ([str(tmp_path / "rum")], "DIR: no directory "),
        ([str(plain), "--picture", "p.png"], "--picture p.png: there is no ranking to draw: name one run of pbt"),
        ([str(run), "--picture", "p.gif"], "--picture p.gif: must end in .png, .svg or .pdf"),
        ([str(run), "--picture", str(tmp_path / "no" / "p.png")], "--picture: "),
    ):
        assert says in refused(capsys, "runs", *words)


def test_a_curve_is_of_games_of_evaluations_or_of_decisions(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=9, members=3, exploit="none")
    rows, population, member = read_lineage(run), read_population(run), run / "members/01"
    games = [json.loads(line) for line in (member / "episodes.jsonl").read_text().splitlines()]
    returns = [game["episodic_return"] for game in games]
    means = {game["steps"]: np.mean(returns[max(0, i - GAMES + 1) : i + 1]) for i, game in enumerate(games)}
    assert member_curve(run, population, rows, 1).tolist() == pytest.approx(np.array(list(means.items())))
    (member / "episodes.jsonl").unlink()
    own = [[row["steps"], row["score"]] for row in rows if row["member"] == 1 and row["score"] is not None]
    assert member_curve(run, population, rows, 1).tolist() == own
    row = {"frames": 4, "wall_seconds": 1.0, "steps": 1, "episodic_return_mean": 7.0}
    (member / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    assert member_curve(run, population | {"score": "evaluations"}, rows, 1).tolist() == [[1.0, 7.0]]


def draw(run: Path) -> Any:
    return draw_population(run, read_population(run), read_lineage(run))


def of_winner(axes: Any) -> list[Any]:
    """Its lines: where they lead."""
    lines = [line for line in axes.lines if line.get_color() == WINNER and line.get_linewidth() > 2]
    return [line.get_xydata().tolist() for line in lines if len(line.get_xdata())]


def test_the_winners_line_leads_through_its_ancestors(copied: Path):
    rows, population = read_lineage(copied), read_population(copied)
    line = winning_line(best_member(population["members"]), rows)
    assert len({segment.member for segment in line}) > 1
    scores, rate, cost = draw(copied).axes
    names = [axes.get_ylabel() for axes in (scores, rate, cost)]
    assert names == ["score (running mean of games)", "learning_rate", "entropy_cost"]
    assert (rate.get_yscale(), cost.get_yscale(), scores.get_yscale()) == ("log", "log", "linear")
    assert scores.get_title(loc="left") == "a2c · population of 8 · truncation, perturb every 500k steps · toy:chain"
    winner, copies = (text.get_text() for text in scores.get_legend().get_texts())
    assert (winner, copies) == (f"the winner: {lineage_text(line)}", "copies another's weights")
    values = [[s.begin, s.values["learning_rate"]] for s in line]
    assert of_winner(rate) == [[*values, [line[-1].end, values[-1][1]]]]
    for part in of_winner(scores):
        assert any(s.begin <= part[0][0] and part[-1][0] <= s.end for s in line)
    assert len(rate.lines) == 1 + len(population["members"])
    arrows = [
        found.get_xydata()[1].tolist() for found in scores.lines if found.get_marker() == "^" and len(found.get_xdata())
    ]
    assert sorted(arrows) == sorted([row["steps"], row["donor_score"]] for row in rows if row["donor"] is not None)


def test_values_that_never_change_are_drawn_against_the_score(tmp_path: Path):
    vary = {"learning_rate": "log:1e-05:0.1", "core": "lstm,none"}
    run = make_population(tmp_path / "run", turns=16, members=8, exploit="none", vary=vary)
    population = read_population(run)
    _, rate, core = draw(run).axes
    points = sorted((float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in rate.lines)
    assert points == sorted((m["values"]["learning_rate"], m["score"]) for m in population["members"])
    assert (rate.get_xscale(), rate.get_xlabel(), core.get_xlabel()) == ("log", "learning_rate", "core")
    assert set(core.xaxis.units._mapping) == {"lstm", "none"}


def test_what_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"--picture: no member of .*new has a score yet; let the population continue"):
        draw(make_population(tmp_path / "new", turns=0, members=2))
    run = make_population(tmp_path / "run", turns=12, members=4)
    (run / "lineage.jsonl").unlink()
    assert len(of_winner(draw(run).axes[0])) == 1, "its own line"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"--picture needs matplotlib.*pip install 'polyplay\[plots\]'"):
        draw(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three agents that copy each other often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "SURE", 0.0)
        given: dict[str, Any] = {"env": "toy:rps", "agents": 3, "exploit_every": 40, "network": "mlp", "lanes": 16}
        given |= {"batch": 8, "games_per_matchup": 10, "steps": 2000, "tensorboard": False}
        directory = tmp_path_factory.mktemp("runs") / "run"
        polyplay.train("league", run=str(directory), serial=True, **given)
    return directory


def test_history_ends_as_the_referees_files_say(run: Path):
    history, saved = read_history(run), read_object(run / "league.json")
    assert history.elo[-1].tolist() == [p["elo"] for p in saved["players"] if p["kind"] == "agent"]
    assert [{k: v for k, v in copy.items() if k != "match"} for copy in history.copies] == saved["copies"]
    assert len(history.copies) >= 2
    assert (np.diff(history.matches) > 0).all()
    assert (history.elo[0] == 1000).all()


def test_table_and_picture(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    history = read_history(run)
    assert f"{len(history.copies)} copies" in printed(run, capsys, "--picture", str(tmp_path / "league.png"))
    assert (tmp_path / "league.png").stat().st_size > 10_000
    figure = draw_league(run, history, _first_values(run, history))
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == ["learning_rate", "entropy_cost"]
    last, end = history.copies[-1], history.matches[-1]
    begins, values = figure.axes[1].lines[last["agent"]].get_xydata().T
    own = [copy["match"] for copy in history.copies if copy["agent"] == last["agent"]]
    assert begins.tolist() == [0, *own, end]
    assert (values[0], values[-1]) == (1e-3, last["values"]["learning_rate"])


def test_a_damaged_log_is_said_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    lines = [json.loads(line) for line in (run / "matches.jsonl").read_text().splitlines()]
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    del lines[0]["agents"]
    (tmp_path / "matches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "matches.jsonl is damaged (KeyError('agents')): put back a copy of it" in refused(capsys, "runs", tmp_path)


@pytest.fixture
def rated_run(tmp_path: Path) -> Path:
    directory = made.run(tmp_path / "run", network="mlp", hidden=(8,))
    known = [{"name": "random", "mu": 0.0, "sigma": 1.0}, {"name": "focus", "mu": 14.5, "sigma": 1.0}]
    (directory / REFERENCES).write_text(json.dumps({"references": known}))
    about = {"wall_seconds": 1.0, "reference": "random", "reference_mu": 0.0, "mu": 0.0, "sigma": 0.0}
    points = [[0.0, 1.0], [1.0, 1.0, 0.5], [1.0, 1.0]]
    rows = [{**about, "version": 10 * i, "steps": 4000 * i, "points": x} for i, x in enumerate(points)]
    (directory / RATINGS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_table_and_picture_of_rated_versions(rated_run, tmp_path, capsys):
    out, rated = printed(rated_run, capsys, "--picture", str(tmp_path / "ratings.png")), read_rated(rated_run)
    mu, sigma = rated[-1].skill
    assert f"TrueSkill {mu:.1f} ± {2 * sigma:.1f} after 20 updates, 8,000 agent steps · 3 versions" in out
    assert [line.split()[:2] for line in out.splitlines() if line.strip().startswith(("focus", "random"))] == [
        ["focus", "14.5"],
        ["random", "0.0"],
    ]
    assert "2 of 2" in out
    assert (tmp_path / "ratings.png").stat().st_size > 10_000
    axes = draw_ratings(rated_run, rated, read_references(rated_run)).axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[version.steps, version.skill[0]] for version in rated]
    assert [text.get_text() for text in axes.texts] == ["random", "focus"]
    assert axes.get_title(loc="left") == "3 versions, 7 matches · toy:catch"
