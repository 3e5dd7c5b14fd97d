"""What a referee makes of its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyplay.population.league import League
from polyplay.population.league_log import LOG, SUMMARY, LeagueState, MatchLog
from polyplay.population.referee import ELO, TRUESKILL, Referee, restore
from tests.population.leagues import employ, everything, play, small


def played(directory: Path, turns: int = 30) -> tuple[League, Referee]:
    """A league with everything in it, whose referee is not closed."""
    league = small(agents=2, actors=2, past=2)
    office = employ(directory, league, rule="past:0.5", matches=3)
    rng = np.random.default_rng(1)
    for i in range(turns):
        office.turn()
        if i % 4 == 0:
            league.post(i // 4 % 2, i)
        for actor in range(2):
            play(league, actor, rng.permuted([(1, 0), (0.5, 0.5), (0, 1)], axis=0))
    office.turn()
    return league, office


def rebuilt(directory: Path) -> LeagueState:
    return restore(MatchLog(directory, lambda kind, text: None), lambda: LeagueState(small(past=2), ELO, TRUESKILL))


def test_the_log_alone_and_with_a_summary_make_the_same_state(tmp_path):
    league, office = played(tmp_path)
    whole = office.state.save()
    (tmp_path / SUMMARY).unlink(missing_ok=True)
    assert rebuilt(tmp_path).save() == whole
    office.close()
    assert json.loads((tmp_path / SUMMARY).read_text())["lines"] == office.log.lines
    assert json.loads(json.dumps(rebuilt(tmp_path).save())) == json.loads(json.dumps(whole))
    with (tmp_path / LOG).open("a") as file:
        file.write('{"actor": 0, "draw": 1, "of": [[["0", "1"], [1, 0]]], "played": [0]}\n')
    more = rebuilt(tmp_path)
    assert more.ratings.games[0, 1] == league.games[0, 1] + 1


@pytest.mark.parametrize("damage", ["{", '{"schema": 0}', "[]", "\x00", '{"schema": 1, "lines": 3}'])
def test_a_damaged_summary_is_made_again_from_the_log(damage, tmp_path):
    _, office = played(tmp_path)
    office.close()
    (tmp_path / SUMMARY).write_text(damage)
    assert rebuilt(tmp_path).save() == office.state.save()


def test_a_torn_line_is_left_out_with_a_remark(tmp_path):
    league, _ = played(tmp_path)
    before = everything(league)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"actor": 0, "dr')
    heard: list[tuple[str, str]] = []
    again = small(past=2)
    employ(tmp_path, again, heard=heard)
    assert heard == [("remark", f"{LOG}: its last 16 bytes were no whole line, and are left out")]
    assert everything(again) == before


def test_a_log_that_is_gone_costs_no_rating(tmp_path):
    league, office = played(tmp_path)
    office.close()
    before, heard = everything(league), list[tuple[str, str]]()
    (tmp_path / LOG).unlink()
    for _ in range(2):
        again = small(past=2)
        employ(tmp_path, again, heard=heard).close()
        assert everything(again) == before
    assert len(heard) == 1
    assert "lacks" in heard[0][1]


def test_fewer_actors_may_go_on(tmp_path):
    played(tmp_path)[1].close()
    again = small(past=2, actors=1)
    office = employ(tmp_path, again)
    assert list(office.state.tables) == [0]
    assert again.table(0)[0] > 0
    office.turn()


def test_the_same_results_draw_the_same_tables(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        played(tmp_path / name)
    assert (tmp_path / "a" / LOG).read_bytes() == (tmp_path / "b" / LOG).read_bytes()
