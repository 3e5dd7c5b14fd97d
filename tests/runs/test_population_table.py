from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from polyplay.population.store import Segment
from polyplay.runs.population_report import decision_line, last_copies, lineage_text, population_report, winning_line
from tests.populations import MadePopulation

COPY = {
    "member": 3,
    "donor": 5,
    "score": 1.2,
    "donor_score": 8.8,
    "steps": 1_500_000,
    "donor_steps": 1_600_000,
    "old": {"learning_rate": 0.01, "lanes": 8},
    "new": {"learning_rate": 0.00361, "lanes": 8},
    "why": "in the bottom 20 %",
}


def test_a_line_is_walked_back_to_its_founder():
    line = [Segment(1, 0, 500_000, {}), Segment(5, 510_000, 1_200_000, {}), Segment(3, 1_500_000, 2_000_000, {})]
    assert lineage_text(line) == "03 ← 05 at 1.5M ← 01 at 510k"
    assert lineage_text(line[:1]) == "01"


def test_a_change_of_values_alone_is_no_ancestor():
    assert lineage_text([Segment(1, 0, 5, {"a": 1}), Segment(1, 5, 9, {"a": 2})]) == "01"


def test_a_member_whose_rows_are_lost_is_its_own_line():
    member = {"member": 2, "steps": 7, "values": {"a": 1}}
    assert winning_line(member, []) == [Segment(2, 0, 7, {"a": 1})]


def test_decisions_for_people():
    assert decision_line(COPY) == (
        "1.5M steps: 03 (1.20) copies 05 (8.80), in the bottom 20 %; learning_rate 0.01 → 0.00361"
    )
    kept = COPY | {"donor": None, "donor_score": None, "score": None, "new": COPY["old"], "why": "no game has ended"}
    assert decision_line(kept) == "1.5M steps: 03 (–) goes on, no game has ended"
    founder = COPY | {"donor": None, "steps": 0, "old": {}}
    assert decision_line(founder) == "03 begins with learning_rate 0.00361, lanes 8"


def test_the_last_copy_of_a_member_counts():
    rows = [COPY, COPY | {"donor": None, "steps": 2e6}, COPY | {"donor": 1, "steps": 2.5e6}, COPY | {"member": 4}]
    assert last_copies(rows) == {3: "01 at 2.5M", 4: "05 at 1.5M"}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_table_keeps_scores_whole_on_any_terminal(width: int, tmp_path: Path):
    made = MadePopulation(8, vary={"learning_rate": "log:1e-05:0.1", "epochs": "1,2,4", "some_other_long_name": "3,4"})
    for _ in range(24):
        made.turn()
    out = io.StringIO()
    console = Console(file=out, width=width)
    report = list(population_report(tmp_path, made.contents(), made.rows))
    console.print(report[0])
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    if width >= 80:
        for member in made.members:
            assert "–" in out.getvalue() if member.score is None else f" {member.score:.2f} " in out.getvalue()
            assert f"{member.values['learning_rate']:.3g}" in out.getvalue()
