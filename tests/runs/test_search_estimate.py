"""What self-play by a search would take here, said before anybody waits for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from polyplay import systems
from polyplay.cli import main
from polyplay.core import machine
from polyplay.runs import plan
from polyplay.runs.plan import estimate_lines, moves_per_second, search_role, searching
from polyplay.workers.crew import Crew

SMALL: Any = {"env": "game:go+size=9", "blocks": 1, "filters": 8, "players": 3, "games": 2, "learners": 1}


def wired(**more: Any) -> Crew:
    crew, page = Crew(0), systems.load("alphago_zero")
    page.build(page.Config(**{**SMALL, **more}), crew)
    return crew


def test_who_plays_with_itself_is_found_not_the_judge():
    crew = wired()
    assert search_role(crew).name == "self_play"
    crew.roles.clear()
    assert search_role(crew) is None


def test_moves_are_what_the_network_allows_on_the_cores_there_are(monkeypatch):
    crew = wired(simulations=100)
    monkeypatch.setattr(plan, "cores", lambda: 2)
    moves, evaluations = moves_per_second(crew, search_role(crew))
    assert evaluations > 100
    assert moves == pytest.approx(2 * evaluations / 100)


def test_the_lines_follow_from_the_board_and_the_rate():
    role = search_role(wired(simulations=1600))
    lines = dict(estimate_lines(role, 0.01, 8.0, 4_900_000 * 45))
    assert searching(role).startswith("1,600 evaluations of a move at most, 72,000 of a game of 45 moves; ")
    assert lines["measured"] == "8.0 evaluations/s of one player, by the network alone; 0.80 games/hour"
    assert lines["eta"] == "699 years for 4,900,000 games of self-play on this machine"


def test_capped_searches_make_more_moves_of_which_a_quarter_counts():
    role = search_role(wired(simulations=100, cheap=20))
    moves, evaluations = moves_per_second(wired(), role)
    assert moves == pytest.approx(min(3, machine.cores()) * evaluations / 40)
    assert "for 4,000 games" in dict(estimate_lines(role, 0.01, 8.0, 1_000 * 45))["eta"]


def test_a_dry_run_of_what_does_not_fit_says_so_after_the_plan(capsys, tmp_path):
    """The paper's settings with a small network; only their replay is too large for any machine of today."""
    words = ["--preset", "paper", "--blocks", "1", "--filters", "8", "--learners", "2", "--capacity", "10_000_000_000"]
    assert main.main(["train", "alphago_zero", *words, "--dry-run", "--run", str(tmp_path / "run")]) == 2
    out, err = capsys.readouterr()
    assert re.search(r"^search +1,600 evaluations of a move at most, 318,400 of a game of 199 moves; ", out, re.M)
    assert re.search(r"^memory +at least [\d,.e+]+ GB of", out, re.M)
    assert "measured" not in out, "a network was run for a plan that can't be"
    assert re.search(r"error: memory: this takes at least .* what fits: --capacity \d+$", err, re.M)
    assert not (tmp_path / "run").exists()
