from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli.population import WINNER, ValueAxis, draw_population
from polyplay.core.errors import UserError
from polyplay.population.store import best_member, read_lineage
from polyplay.runs.directory import read_population
from polyplay.runs.population_report import winning_line
from tests.populations import make_population


def draw(run: Path) -> Any:
    return draw_population(run, read_population(run), read_lineage(run))


def of_winner(axes: Any) -> list[Any]:
    return [
        line for line in axes.lines if line.get_color() == WINNER and line.get_linewidth() > 2 and len(line.get_xdata())
    ]


def test_a_panel_of_scores_and_one_for_each_hyperparameter(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=60, env="toy:chain")
    figure = draw(run)
    scores, rate, cost = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "score (running mean of games)",
        "learning_rate",
        "entropy_cost",
    ]
    assert (rate.get_yscale(), cost.get_yscale(), scores.get_yscale()) == ("log", "log", "linear")
    assert scores.get_title(loc="left") == "a2c · population of 8 · truncation, perturb every 500k steps · toy:chain"
    labels = [text.get_text() for text in scores.get_legend().get_texts()]
    assert labels[1] == "other members"
    assert labels[2].startswith("copies another's weights (dots: ")
    assert labels[0].endswith(", the winner, through its ancestors")


def test_the_winners_line_leads_through_its_ancestors(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=60)
    rows, population = read_lineage(run), read_population(run)
    line = winning_line(best_member(population["members"]), rows)
    assert len({segment.member for segment in line}) > 1
    scores, rate, _ = draw(run).axes
    found = [(list(part.get_xdata()), list(part.get_ydata())) for part in of_winner(rate)]
    assert found == [([s.begin, s.end], [s.values["learning_rate"]] * 2) for s in line]
    assert {text.get_text() for text in scores.texts} == {f"{segment.member:02}" for segment in line}
    for part in of_winner(scores):
        assert any(s.begin <= min(part.get_xdata()) and max(part.get_xdata()) <= s.end for s in line)


def test_every_copy_has_its_arrow(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=60)
    copies = [row for row in read_lineage(run) if row["donor"] is not None]
    scores = draw(run).axes[0]
    heads = [line for line in scores.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert sorted((float(h.get_xdata()[0]), float(h.get_ydata()[0])) for h in heads) == sorted(
        (row["steps"], row["donor_score"]) for row in copies
    )


def test_values_that_never_change_are_drawn_against_the_score(tmp_path: Path):
    vary = {"learning_rate": "log:1e-05:0.1", "core": "none,lstm"}
    run = make_population(tmp_path / "run", turns=16, members=8, exploit="none", vary=vary)
    population = read_population(run)
    _, rate, core = draw(run).axes
    points = sorted((float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in rate.lines)
    assert points == sorted((m["values"]["learning_rate"], m["score"]) for m in population["members"])
    assert (rate.get_xscale(), rate.get_xlabel(), core.get_xlabel()) == ("log", "learning_rate", "core")
    assert [label.get_text() for label in core.get_xticklabels()] == ["none", "lstm"]


def test_entries_of_a_list_keep_the_order_in_which_they_were_given():
    rows = [{"new": {"lanes": 64}}, {"new": {"lanes": 8}}, {"new": {"lanes": 16}}]
    axis = ValueAxis({"vary": {"lanes": "8,16,32,64"}}, rows, "lanes")
    assert (axis.entries, [axis.place(n) for n in (8, 16, 64)]) == (["8", "16", "64"], [0, 1, 2])
    assert ValueAxis({"vary": {"lanes": "uniform:8:64"}}, rows, "lanes").place(16) == 16.0


def test_many_members_and_many_decisions_are_drawn(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=96, members=32, explore="both")
    figure = draw(run)
    figure.savefig(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_lost_lineage_leaves_the_winner_its_own_line(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=12, members=4)
    (run / "lineage.jsonl").unlink()
    scores = draw(run).axes[0]
    assert len(of_winner(scores)) == 1


def test_what_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_population(tmp_path / "run", turns=0, members=2)
    with pytest.raises(UserError, match=r"--picture: no member of .*run has a score yet: let the population go on"):
        draw(run)
    contents = json.loads((run / "population.json").read_text())
    contents["members"][0] |= {"score": 1.0}
    (run / "population.json").write_text(json.dumps(contents))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"--picture needs matplotlib.*pip install 'polyplay\[plots\]'"):
        draw(run)
