"""The contests of bench/compare.py: their table is well-formed, ratios are taken within a round."""

import argparse
import dataclasses
import re
import sys
from pathlib import Path

import pytest

from polyplay import systems
from polyplay.runs.options import RunOptions

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import compare  # noqa: E402
import contests  # noqa: E402
import measure  # noqa: E402

SMALL = ("ppo-cartpole", "ppo-cheetah", "ppo-cheetah-1", "a2c-cartpole", "dqn-cartpole", "impala-cheetah")
SMALL += ("sac-cheetah", "td3-cheetah", "sac-cheetah-64", "td3-cheetah-64")
ALL = {f"{name}: {c.name}": c for name, contest in contests.CONTESTS.items() for c in contest.contenders}


def keys(setting):
    return {word.split("=", 1)[0] for word in setting.split()}


def test_every_flag_of_ours_is_one_of_the_systems_or_of_a_run():
    for name, who in ALL.items():
        if who.ours and who.program in systems.names():
            kinds = (systems.load(who.program).Config, RunOptions)
            allowed = {f.name for kind in kinds for f in dataclasses.fields(kind)}
            assert all(keys(setting) <= allowed for setting in (who.fixed, *who.settings)), name


def test_every_flag_of_a_peer_is_in_its_script_or_passed_on():
    for name, who in ALL.items():
        if who.ours:
            continue
        script = contests.LIMITS[who.program] if who.limit else f"peers/{contests.PEERS[who.program].script}"
        text = (BENCH / script).read_text() + (BENCH / "peers" / "logs.py").read_text()
        if "parse_known_args" not in text:  # the rest is the library's own
            known = {k.replace("-", "_") for k in re.findall(r'add_argument\(\s*"--([a-z-]+)"', text)}
            assert all(keys(setting) <= known for setting in (who.fixed, *who.settings)), name


def test_a_contender_has_four_settings_or_follows_another_of_its_contest():
    for name, who in ALL.items():
        if who.like:
            assert f"{name.split(':')[0]}: {who.like}" in ALL
            assert not who.settings, name
        else:
            small = name.split(":")[0] in SMALL  # the task leaves less to choose
            assert len(set(who.settings)) >= (0 if who.limit and small else 1 if small else 4), name
            assert not any(keys(setting) & keys(who.fixed) for setting in who.settings), name


def test_ours_and_peers_play_in_every_contest_under_names_of_their_own():
    for name, contest in contests.CONTESTS.items():
        names = [c.name for c in contest.contenders]
        assert len(set(names)) == len(names), name
        assert {c.ours for c in contest.contenders} == {True, False}, name
        assert any(c.limit for c in contest.contenders) == (contest.share is not None or name in SMALL), name
        assert set(contest.aims) <= {c.name for c in contest.contenders if c.peer}, name


ROWS = [
    {"who": who, "round": k, "sps": sps}
    for k, each in enumerate([{"a2c": 200.0, "sb3": 100.0, "rlpyt": 90.0}, {"a2c": 300.0, "rlpyt": 150.0}], 1)
    for who, sps in each.items()
]


def test_ratios_are_taken_within_a_round_to_the_peer_with_the_best_median():
    found = compare.rates(ROWS)
    assert list(found) == ["a2c", "rlpyt", "sb3"]
    assert compare.best_peer(found, contests.CONTESTS["a2c-nature"]) == "rlpyt"
    assert compare.ratios(ROWS, "a2c", "rlpyt") == pytest.approx([200 / 90, 2.0])
    assert compare.ratios(ROWS, "a2c", "sb3") == [2.0]


def test_a_slow_peer_plays_no_second_round_ours_always_do():
    who = [c for c in contests.CONTESTS["a2c-nature"].contenders if c.name in ("a2c", "sb3", "rlpyt")]
    rows = [{"who": w, "round": 1, "sps": s} for w, s in (("a2c", 10.0), ("sb3", 40.0), ("rlpyt", 100.0))]
    assert compare.dropped(who, {"rows": rows, "probe": []}, 0.6) == {"sb3"}
    assert compare.dropped(who, {"rows": rows, "probe": []}, 0.0) == set()


DQN = [
    {"who": who, "round": 1, "sps": sps}
    for who, sps in (("dqn", 180.0), ("sb3", 90.0), ("rlpyt", 80.0), ("ceiling", 200.0))
]


def test_a_limit_is_no_peer_and_ours_are_held_against_it():
    contest, found = contests.CONTESTS["dqn-nature"], compare.rates(DQN)
    assert compare.best_peer(found, contest) == "sb3"
    assert compare.highest(found, contest) == "ceiling"
    text = compare.judged(DQN, contest, found, "sb3")
    assert [line.split("**")[1] for line in text] == ["2", "0.9"]
    assert all(line.endswith("met") and "NOT" not in line for line in text)
    rows = compare.medians(DQN, contest, found, "sb3", {"choices": {}})
    assert [r[""] for r in rows] == ["limit", "Polyplay", "peer", "peer"]
    assert compare.dropped(list(contest.contenders), {"rows": DQN, "probe": []}, 0.95) == {"rlpyt"}


RATES = {"ppo": 300.0, "ppo, eager": 150.0, "sb3": 100.0, "cleanrl-like, compiled": 250.0, "updates alone": 400.0}
SMALL_ROWS = [{"who": who, "round": 1, "sps": sps} for who, sps in RATES.items()]


def test_of_small_networks_there_is_a_target_for_each_of_several_peers_and_none_for_limits():
    contest, found = contests.CONTESTS["ppo-cartpole"], compare.rates(SMALL_ROWS)
    text = compare.judged(SMALL_ROWS, contest, found, "cleanrl-like, compiled")
    targets = [line.split(", round")[0] + line[line.rindex(": ") :] for line in text if "target" in line]
    assert targets == ["- ppo / sb3: met", "- ppo / cleanrl-like, compiled: NOT met"]
    alone = [line for line in text if "updates alone" in line]
    assert [line.split("by round ")[1][:4] for line in alone] == ["0.75", "0.38"]


def test_ours_compiles_once_before_its_windows(monkeypatch):
    lines = list[list[str]]()
    monkeypatch.setattr(compare, "measure", lambda line, *_: lines.append(line))
    ours = {c.name: c for c in contests.CONTESTS["ppo-cartpole"].contenders}
    asked = argparse.Namespace(peers=Path("peers"))
    for who in ("ppo", "ppo", "ppo, eager", "sb3"):
        compare.fill_cache(ours[who], ours["ppo"].settings[0], asked)
    assert [line[line.index("--compile") + 1] for line in lines] == ["on"]


PLAYER = """
import json, sys, time
with open(sys.argv[1], "a", buffering=1) as file:
    for i in range(400):
        updates = max(0, i - 40)
        steps = 1000 * min(i, 40) + 4 * updates
        file.write(json.dumps({"wall_seconds": i / 100, "steps": steps, "updates": updates}) + chr(10))
        time.sleep(0.005)
"""


@pytest.mark.parametrize(
    ("contest", "who", "env"),
    [
        ("ppo-nature", "ppo", contests.PONG),
        ("ppo-spread", "ppo", contests.SPREAD),
        ("dqn-cartpole", "dqn", "CartPole-v1"),
    ],
)
def test_ours_play_the_game_of_their_contest(contest, who, env, tmp_path):
    ours = next(c for c in contests.CONTESTS[contest].contenders if c.name == who)
    line, _ = contests.words(ours, ours.settings[0], tmp_path, 0, tmp_path, 1.0)
    assert line.count("--env") == 1
    assert line[line.index("--env") + 1] == env
    assert measure.keywords(ours.fixed, "")["env"] == env


def test_a_window_begins_when_there_are_updates(tmp_path):
    log = tmp_path / "log.jsonl"
    found = measure.measure([sys.executable, "-c", PLAYER, str(log)], log, 0.0, 1.0, tmp_path, stop=True)
    assert found["lines"][0]["updates"] >= 1
    assert found["sps"] == pytest.approx(400.0)
    assert compare.per_update(found["lines"]) == {"steps_per_update": 4.0}
