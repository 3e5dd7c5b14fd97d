"""A run of self-play warns once when positions are drawn often, and when its network overfits."""

from __future__ import annotations

from polyplay.runs.crew_metrics import REPORTS, SelfPlayAlarms


def told(*reports: dict[str, float | None]) -> list[str]:
    alarms = SelfPlayAlarms()
    return [line for row in reports for line in alarms.look(row)]


def report(learnt: float | None, fresh: float | None, ratio: float | None = 2.0) -> dict[str, float | None]:
    return {"value_loss": learnt, "fresh_value_loss": fresh, "replay_ratio": ratio}


def test_reuse_above_four_is_told_once():
    assert told(*[report(0.5, 0.5, 4.0)] * 3) == []
    lines = told(report(0.5, 0.5, None), *[report(0.5, 0.5, 6.0)] * 3)
    assert lines == ["each position is drawn 6.0 times in the mean; above 4 the network may overfit: lower --ratio"]


def test_a_value_loss_far_below_that_of_fresh_games_is_told_once():
    assert told(*[report(0.36, 0.5)] * 3 * REPORTS) == []
    assert told(*[report(0.1, 0.5)] * (REPORTS - 1)) == []
    (line,) = told(*[report(0.1, 0.5)] * 3 * REPORTS)
    assert line.startswith("value loss 0.1 on the replay, 0.5 on fresh games: the network overfits")
    assert "--ratio" in line


def test_reports_without_a_loss_or_a_game_count_for_nothing():
    assert told(*[report(None, 0.5)] * 2 * REPORTS, *[report(0.1, None)] * 2 * REPORTS) == []


def test_other_systems_may_draw_more_often():
    assert told({"value_loss": 0.1, "replay_ratio": 8.0}) == []
