"""polyplay/workers/fault_rules.py: what `--chaos` may say, and when it strikes whom."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.cli import main
from polyplay.common.errors import UserError
from polyplay.runs import options
from polyplay.workers.fault_rules import FaultRule, FaultSchedule, parse_faults

NUMBERS = st.floats(1.001, 1e5).map(lambda x: float(f"{x:g}")).filter(lambda x: x > 1)
ROLES = st.sampled_from(["act", "learn", "replica", "any"])


def rules_of(kind: str, role: str, first: float, second: float) -> FaultRule:
    if kind == "slow":
        return FaultRule(kind, role, 0.0, second)
    return FaultRule(kind, role, first, second if kind == "hang" else 0.0)


def test_the_three_faults():
    assert parse_faults("kill=act:30") == [FaultRule("kill", "act", 30.0, 0.0)]
    assert parse_faults("hang=learn:60:5") == [FaultRule("hang", "learn", 60.0, 5.0)]
    assert parse_faults("slow=any:4") == [FaultRule("slow", "any", 0.0, 4.0)]
    assert parse_faults("kill=act:0.5, kill=any:9,hang=act:1:2")[1:] == [
        FaultRule("kill", "any", 9, 0),
        FaultRule("hang", "act", 1, 2),
    ]


@given(st.builds(rules_of, st.sampled_from(["kill", "hang", "slow"]), ROLES, NUMBERS, NUMBERS))
def test_a_rule_is_spelled_as_it_is_read(rule):
    assert parse_faults(str(rule)) == [rule]


REFUSED = [
    ("", "allowed: kill=ROLE:SECONDS, hang=ROLE:SECONDS:FOR, slow=ROLE:FACTOR"),
    ("kill", "'kill' given"),
    ("kill=act", "'kill=act' given"),
    ("kill=:3", "'kill=:3' given"),
    ("kill=act:soon", "'kill=act:soon' given"),
    ("kill=act:3,hang=act:3", "'hang=act:3' in 'kill=act:3,hang=act:3'"),
    ("maim=act:3", "'maim=act:3' given"),
    ("kill=act:0", "kill=ROLE:SECONDS with numbers above 0"),
    ("kill=act:nan", "with numbers above 0"),
    ("slow=act:1", "slow=ROLE:FACTOR with numbers above 1"),
    ("kill=act:3,kill=act:4", "twice"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_anything_else_is_refused_in_one_line(text, said):
    with pytest.raises(UserError) as failed:
        options.RunOptions(chaos=text)
    assert str(failed.value).startswith("--chaos: ")
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)


TOY = ["--env", "toy:catch", "--network", "mlp"]
WITHOUT = [
    (["impala", *TOY, "--chaos", "kill=act:3", "--serial"], "leave out --serial"),
    (["impala", *TOY, "--chaos", "kill=act:3", "--on", "thread"], "leave out --on thread"),
    (["impala", *TOY, "--chaos", "kill=actor:3"], "no worker of this run is called so: allowed are act, learn, any"),
    (["ga3c", *TOY, "--chaos", "hang=any:3:1"], "these workers are threads here"),
    (["a2c", *TOY, "--chaos", "kill=any:3"], "no lost worker of this run is replaced: name a role (replica)"),
]


@pytest.mark.parametrize(("words", "said"), WITHOUT, ids=[said for _, said in WITHOUT])
def test_where_there_is_nobody_to_harm_it_is_said_and_nothing_begins(words, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main.main(["train", *words]) == 2
    err = capfd.readouterr().err
    assert err.startswith("polyplay: error: --chaos: ")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def told(schedule: FaultSchedule, seconds: float, victims: int = 5) -> list[tuple[int, int, int]]:
    """(tick, rule, victim) of all that happens, looked at 50 times a second."""
    found = []
    for tick in range(int(50 * seconds)):
        found += [(tick, i, schedule.strike(i, victims, tick / 50)) for i in schedule.due(tick / 50)]
    return found


def test_the_schedule_follows_from_the_seed():
    rules = parse_faults("kill=act:2,hang=learn:5:1,slow=act:4")
    first = told(FaultSchedule(rules, 7), 300)
    assert first == told(FaultSchedule(rules, 7), 300)
    assert first != told(FaultSchedule(rules, 8), 300)
    assert first != told(FaultSchedule(rules, 7, resumes=1), 300), (
        "a resumed run is not struck at the same places again"
    )
    alone = [(t, v) for t, i, v in first if i == 0]
    assert alone == [(t, v) for t, i, v in told(FaultSchedule(rules[:1], 7), 300)], "rules don't disturb each other"
    assert [t for t, i, _ in first if i == 2] == [0], "who is slow is chosen once, at the beginning"


def test_gaps_are_as_asked_for_on_average_and_victims_even():
    found = told(FaultSchedule(parse_faults("kill=act:2"), 1), 8000)
    assert 3700 < len(found) < 4300
    counts = [sum(v == k for _, _, v in found) for k in range(5)]
    assert min(counts) > 700
    gaps = [b[0] - a[0] for a, b in pairwise(found)]
    assert max(gaps) > 5 * 100, "exponential: some gaps are long"


def test_one_that_finds_nobody_stays_due():
    schedule = FaultSchedule(parse_faults("kill=act:2"), 3)
    at = schedule.at[0]
    assert schedule.due(at - 0.01) == []
    assert schedule.due(at + 100) == schedule.due(at + 200) == [0]
    schedule.strike(0, 1, at + 200)
    assert schedule.at[0] > at + 200
