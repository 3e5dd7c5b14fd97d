"""Who copies whom in a league, what the log says of it, and what a referee makes of its files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.buffers.league import CopyOrder, League
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.population import league_log, rules
from polyplay.population.league_log import LOG, SUMMARY, CopyHistory, LeagueAgents, LeagueState
from polyplay.population.referee import Referee
from polyplay.population.rules import Evolution, Prior, around, change_values
from tests.population import leagues
from tests.population.fake_members import Kill, Killed

HYPER = {"learning_rate": 1e-3, "entropy_cost": 0.01}

RULE = Evolution(10, priors=around(HYPER))


def agents_of(matches: list[int], evolution: Evolution = RULE, looks: int = 0) -> LeagueAgents:
    """matches: of every agent since it began."""
    league = League(len(matches), 1, leagues.DUEL, varied=tuple(HYPER))
    league.hyper[:] = list(HYPER.values())
    return LeagueAgents(league, CopyHistory(matches=Counter(dict(enumerate(matches))), looks=looks), evolution)


def look(
    elo: list[float], matches: list[int], looks: int = 0, hyper: Any = None, rule: Evolution = RULE
) -> dict[str, Any]:
    """The line of agent 0. hyper: of every agent."""
    agents = agents_of(matches, rule, looks)
    agents.league.elo[: len(elo)] = elo
    if hyper is not None:
        agents.league.hyper[:] = hyper
    return agents.look(0, seed=3)


@pytest.mark.parametrize(
    ("better", "copied"), [(146, False), (147.18, False), (147.2, True), (148, True), (-400, False)]
)
def test_who_loses_with_probability_seven_tenths_copies(better, copied):
    line = look([1000.0, 1000.0 + better], [10, 10])
    assert line.get("donor") == (1 if copied else None)
    assert line["why"].startswith("agent 1 beats it with probability 0.")


def test_peers_are_drawn_at_random_of_those_who_have_played_enough():
    drawn = Counter(look([1000.0, 1300.0, 1300.0, 1300.0], [10, 10, 9, 10], looks)["donor"] for looks in range(400))
    assert set(drawn) == {1, 3}
    assert abs(drawn[1] - 200) < 50
    assert look([1000.0, 1300.0], [10, 9]) == {"look": 0, "why": "no other agent has played enough"}


def test_hyperparameters_are_the_donors_perturbed_and_stay_in_their_range():
    hyper, elo, found = np.array([[1e-3, 0.01], [2e-3, 0.02]]), [1000.0, 1400.0], set()
    for looks in range(60):
        line = look(elo, [10, 10], looks, hyper)
        assert (line["donor"], line["old"]) == (1, HYPER)
        found.add(tuple(round(line["values"][name] / x, 6) for name, x in zip(HYPER, hyper[1], strict=True)))
    assert found == {(a, b) for a in (0.8, 1.2) for b in (0.8, 1.2)}
    hyper[1, 1] = 0.0
    still = Evolution(10, priors=around({**HYPER, "entropy_cost": 0.0}))
    assert look(elo, [10, 10], 0, hyper, still)["values"]["entropy_cost"] == 0.0


FTW = {"learning_rate": Prior("learning_rate", "log", 1e-5, 5e-3)}
FTW |= {"entropy_cost": Prior("entropy_cost", "log", 5e-4, 1e-2), "captured": Prior("captured", "log", 0.1, 1.0)}
FTW |= {"tagged": Prior("tagged", "log", -1.0, -0.1), "period": Prior("period", "uniform", 5, 19, whole=True)}

AS_FTW = {name: replace(prior, chance=0.05, drawn=name == "period") for name, prior in FTW.items()}


def test_each_value_is_perturbed_as_rarely_as_is_said_and_what_is_drawn_anew_is_all_there_is():
    rng, n, changed = np.random.default_rng(0), 5_000, Counter[str]()
    copied = {"learning_rate": 1e-3, "entropy_cost": 1e-3, "captured": 0.9, "tagged": -0.9, "period": 7.0}
    factors: dict[str, set[float]] = {name: set() for name in copied}
    for _ in range(n):
        values = change_values("mutate", copied, AS_FTW, rng)
        for name in copied:
            if values[name] != copied[name]:
                changed[name] += 1
                factors[name].add(round(values[name] / copied[name], 6))
    for name in [*copied][:4]:
        assert abs(changed[name] - n * 0.05) < 4 * (n * 0.05 * 0.95) ** 0.5, name
    assert factors["learning_rate"] == factors["entropy_cost"] == {0.8, 1.2}
    assert factors["captured"] == factors["tagged"] == {0.8, round(1 / 0.9, 6)}, "not beyond the range"
    assert factors["period"] == {round(k / 7, 6) for k in range(5, 20) if k != 7}
    assert abs(n - changed["period"] - n / 15) < 4 * (n / 15) ** 0.5, "drawn anew, whatever was copied"


def test_who_has_not_looked_for_longest_is_due_and_nobody_while_a_copy_is_made():
    agents = agents_of([11, 25, 30])
    agents.history.looked[2] = 21
    assert agents.due() == 1
    for every in (0, 26):
        assert LeagueAgents(agents.league, agents.history, Evolution(every)).due() is None
    agents.history.look({"look": 1, "copy": 1, "donor": 0, "values": HYPER, "why": ""})
    assert agents.due() is None


# ------------------------------------------------------------------------------------------------ with a referee
def small() -> League:
    league = leagues.small(actors=1, past=2, varied=tuple(HYPER))
    league.hyper[:] = list(HYPER.values())
    return league


def employ(directory: Path, league: League, resume: Path | None = None, rule: Evolution = RULE) -> Referee:
    return leagues.employ(directory, league, matches=1000, resume=resume, copies=rule)


def win(league: League, winner: int, n: int) -> None:
    """`n` matches of agents 0 and 1."""
    draw, _ = league.table(0)
    league.acknowledge(0, draw)
    league.report(0, np.array([[0, 1]] * n), np.array([[winner == 0, winner == 1]] * n))


def decided(directory: Path, winner: int = 1) -> tuple[League, Referee]:
    """Agent 1 - `winner` is to copy the winner."""
    league = small()
    office = employ(directory, league)
    office.turn()
    win(league, winner, 40)
    for _ in range(3):
        office.turn()
    return league, office


def rating(league: League, agent: int) -> float:
    return float(league.elo[agent])


def log(directory: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(directory / LOG) if not {"of", "table"} & line.keys()]


def saved_run(directory: Path, versions: dict[str, int]) -> Path:
    """A checkpoint, as far as a referee looks at it."""
    path = directory / "checkpoints" / "000000000001"
    path.mkdir(parents=True, exist_ok=True)
    (path / checkpoint.MANIFEST).write_text(
        json.dumps({"schema": checkpoint.SCHEMA, "counters": {"agents": versions}, "files": {}})
    )
    return path


def test_a_copy_is_ordered_made_and_rated(tmp_path):
    league, office = decided(tmp_path)
    order = league.order()
    assert order == CopyOrder(1, 0, 1)
    worse, better = rating(league, 0), rating(league, 1)
    assert worse < better - 147
    for _ in range(3):
        office.turn()
    assert rating(league, 0) == worse, "until it was made"
    league.copied(1, version=31, donor_version=29)
    assert league.order() is None
    office.turn()
    assert rating(league, 0) == rating(league, 1) == better
    begin, copy, copied, look = log(tmp_path)
    assert (begin["versions"], look["look"]) == ({}, 1)
    assert (copy["copy"], copy["look"], copy["donor"]) == (1, 0, 1)
    assert league.values.tolist() == list(copy["values"].values())
    at = copied.pop("at")
    assert copied == {"copied": 1, "version": 31, "donor_version": 29}
    assert office.state.copies.matches[0] == 0, "it plays as many matches again before it looks"
    office.close()
    (row,) = json.loads((tmp_path / SUMMARY).read_text())["copies"]
    about = {"copy": 1, "agent": 0, "donor": 1, "version": 31, "donor_version": 29}
    counts = {"elo": worse, "donor_elo": better, "matches": 40, "at": at}
    assert row == {**about, **counts, "old": HYPER, "values": copy["values"]}


@pytest.mark.parametrize("made", [True, False])
def test_a_referee_that_takes_anothers_place_knows_of_the_copy(made, tmp_path):
    league, _ = decided(tmp_path)
    if made:
        league.copied(1, 31, 29)
    office = employ(tmp_path, league)
    assert (league.order() is None) == made
    office.turn()
    assert (rating(league, 0) == rating(league, 1)) == made
    assert sum("copied" in line for line in log(tmp_path)) == made


def test_an_order_that_was_written_down_but_not_given_is_given(tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(Referee, "_ask", lambda office: None)  # it is killed before
        league, _ = decided(tmp_path)
    assert league.order() is None
    employ(tmp_path, league)
    assert league.order() == CopyOrder(1, 0, 1)


@pytest.mark.parametrize(("version", "kept"), [(30, False), (31, True), (40, True)])
def test_a_run_goes_on_with_the_copies_that_its_checkpoint_has(version, kept, tmp_path):
    league, office = decided(tmp_path)
    worse = rating(league, 0)
    league.copied(1, 31, 29)
    office.turn()
    win(league, 1, 3)
    office.close()
    now, other = rating(league, 0), rating(league, 1)
    again = small()
    office = employ(tmp_path, again, saved_run(tmp_path, {"0": version, "1": 20}))
    assert (rating(again, 0), rating(again, 1)) == (now if kept else worse, other)
    assert len(office.state.copies.made) == kept
    win(again, 1, 40)
    for _ in range(4):
        office.turn()
    assert again.order() == CopyOrder(2, 0, 1), "numbers go on"


def test_a_copy_that_was_not_made_is_given_up_where_a_run_goes_on(tmp_path):
    league, office = decided(tmp_path)
    worse = rating(league, 0)
    office.close()
    again = small()
    office = employ(tmp_path, again, saved_run(tmp_path, {"0": 31, "1": 20}))
    assert again.order() is None
    assert office.state.copies.pending is None
    assert rating(again, 0) == worse


def rebuilt(directory: Path, league: League) -> dict[str, Any]:
    """What the log alone says."""
    state = LeagueState(league)
    for line in read_lines(directory / LOG):
        state.apply(line)
    return state.save()


def test_referees_killed_anywhere_lose_no_copy_and_make_none_twice(tmp_path, monkeypatch):
    """250 events drawn by a seed: matches, answers of learners, kills of the referee, runs that go on."""
    rng, rule = np.random.default_rng(7), Evolution(5, priors=RULE.priors)
    monkeypatch.setattr(rules, "SURE", 0.5)
    kill, league, resume, office = Kill(monkeypatch), small(), None, None
    versions, answered, sessions = {"0": 0, "1": 0}, set[tuple[int, int]](), 1
    for _ in range(250):
        event = rng.random()
        kill.at(int(rng.integers(1, 8)) if rng.random() < 0.3 else 10**9)
        try:
            office = office or employ(tmp_path, league, resume, rule)
            if event < 0.5 and league.table(0)[0]:
                win(league, int(rng.integers(2)), int(rng.integers(1, 6)))
            elif event < 0.8 and (order := league.order()) is not None:
                versions[str(order.agent)] += 3
                league.copied(order.number, versions[str(order.agent)], versions[str(order.donor)])
                answered.add((sessions, order.number))
            elif event < 0.83:
                kill.never()
                resume = saved_run(tmp_path, {a: max(0, v - int(rng.integers(4))) for a, v in versions.items()})
                league, office, sessions = small(), None, sessions + 1
                office = employ(tmp_path, league, resume, rule)
            office.turn()
        except Killed:
            kill.never()
            office = None
            continue
        kill.never()
        pending, order = office.state.copies.pending, league.order()
        assert order is None or (pending is not None and order.number == pending["copy"])
        if event < 0.1:
            assert rebuilt(tmp_path, small())["players"] == office.state.save()["players"]
    lines, session, ordered, made = log(tmp_path), 0, list[int](), list[tuple[int, int]]()
    for line in lines:
        session = line.get("begin", session)
        ordered += [line["copy"]] if "copy" in line else []
        made += [(session, line["copied"])] if "copied" in line else []
    assert ordered == sorted(set(ordered))
    assert len(made) == len(set(made)) > 8
    assert set(made) <= answered
    assert len({s for s, _ in made}) > 2
    assert kill.kills >= 8


def played(directory: Path, turns: int = 30) -> tuple[League, Referee]:
    """A league with everything in it, whose referee is not closed."""
    league = leagues.small(agents=2, actors=2, past=2)
    office = leagues.employ(directory, league, rule="past:0.5", matches=3)
    rng = np.random.default_rng(1)
    for i in range(turns):
        office.turn()
        if i % 4 == 0:
            league.post(i // 4 % 2, i)
        for actor in range(2):
            leagues.play(league, actor, rng.permuted([(1, 0), (0.5, 0.5), (0, 1)], axis=0))
    office.turn()
    return league, office


def test_the_log_alone_makes_the_same_state_whatever_was_torn_or_lost(tmp_path):
    league, office = played(tmp_path)
    before = leagues.everything(league)
    office.close()
    saved = json.loads((tmp_path / SUMMARY).read_text())
    assert saved["lines"] == office.log.lines == len((tmp_path / LOG).read_text().splitlines())
    assert json.loads(json.dumps(rebuilt(tmp_path, leagues.small(past=2)))).items() <= saved.items()
    (tmp_path / SUMMARY).write_text("{")
    with (tmp_path / LOG).open("a") as file:
        file.write('{"actor": 0, "dr')
    again = leagues.small(past=2)
    leagues.employ(tmp_path, again)
    assert leagues.everything(again) == before


def test_fewer_actors_may_go_on(tmp_path):
    played(tmp_path)[1].close()
    again = leagues.small(past=2, actors=1)
    office = leagues.employ(tmp_path, again)
    assert list(office.state.tables) == [0]
    assert again.table(0)[0] > 0
    office.turn()


def test_values_over_a_league_go_on_from_copies_of_former_versions():
    """Which did not write down what a copy replaced."""
    copies = [{"agent": 0, "match": 10 * n, "old": {}, "values": {"lr": n}} for n in (1, 2)]
    copies += [{"agent": 1, "match": 5, "old": {"lr": 9}, "values": {"lr": 8}}]
    history = league_log.LeagueHistory(np.zeros(0), np.zeros(0), copies)
    assert history.values_over(0, {"lr": 0}) == [(0, {"lr": 0}), (10, {"lr": 1}), (20, {"lr": 2})]
    assert history.values_over(1, {}) == [(0, {"lr": 9}), (5, {"lr": 8})]
