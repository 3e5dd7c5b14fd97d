"""Every rule has an environment that breaks it: `check` finds it, and a run ends with a line that names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import polyplay
from polyplay.cli import main
from polyplay.cli import systems as check_module
from polyplay.core.errors import EnvFailure, Finding, UserError
from polyplay.envs import Envs, rules
from polyplay.envs import check as checking
from polyplay.envs.check import TrialFacts, TrialResult
from polyplay.envs.pool import EnvSpec
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import action as action_of
from polyplay.envs.spaces import classes, observation
from polyplay.nets import factory
from tests.envs import broken, vectors

QUICK: dict[str, Any] = {"steps": 40, "step_timeout": 60.0, "measure": 0.05}
REPAIRED = ("reset", "step", "hang", "crash")


def levels(report: checking.CheckReport) -> dict[str, str]:
    return {f.name: f.level for f in report.findings}


def test_a_sound_environment_keeps_to_all_rules():
    report = polyplay.check(broken.Sound, **QUICK)
    assert report.status == 0
    assert levels(report) == {name: "ok" for name, rule in RULES.items() if not rule.players}
    assert report.card["observation"] == "float32 [4]"
    assert report.card["episodes"].startswith("5 with random actions, 8 to 8 steps")
    assert {"time limit", "autoreset", "truncation", "one lane"} <= set(report.card)
    assert "real actions" not in report.card
    assert any("steps/s in" in v for k, v in report.card.items() if k.startswith("pool of"))


def test_a_sound_environment_of_several_players_keeps_to_their_rules_too():
    report = polyplay.check(broken.Pair, **QUICK)
    assert levels(report) == dict.fromkeys(RULES, "ok")
    assert report.card["players"] == "left, right"
    assert report.card["episodes"].startswith("5 with random actions, 8 to 8 steps")


@pytest.mark.parametrize("rule", broken.RULES)
def test_check_finds_what_breaks_a_rule(rule: str):
    report = checking.check_env(broken.RULES[rule], **{**QUICK, "step_timeout": 1.0 if rule == "hang" else 60.0})
    assert [f.name for f in report.findings if f.level == "failed"] == [rule]
    assert report.status == 1
    (found,) = [f for f in report.findings if f.name == rule]
    assert found.fix == RULES[rule].fix
    assert "polyplay check" not in found.seen


@pytest.mark.parametrize("rule", broken.RULES)
def test_a_run_ends_with_a_line_that_names_the_rule(rule: str, tmp_path: Path):
    """Environments in processes; the worker in one for `finite`, else in a thread, which starts sooner."""
    kind = UserError if RULES[rule].run == "does not start" else EnvFailure
    small: dict[str, Any] = {"lanes": 2, "replicas": 1, "env_workers": 1, "tensorboard": False}
    small["network"] = "auto" if rule == "images" else "mlp"
    how = {"on": "process" if rule == "finite" else "thread", "step_timeout": 0.25 if rule == "hang" else 60.0}
    with pytest.raises(kind, match=rf"\(rule {rule}; polyplay check ENV explains\)") as e:
        polyplay.train("a2c", env=broken.RULES[rule], steps=10_000, run=str(tmp_path / "run"), **how, **small)
    head, *rest = str(e.value).split("\n")
    assert f"rule {rule};" in head
    if rule in REPAIRED:
        assert re.search(r"environments failed 11 times .*, more than --max-restarts 10; the last: ", head)
    else:
        assert rest == []


CARTPOLE = """
import gymnasium as gym
def pole():
    return gym.make("CartPole-v1", max_episode_steps=200)
"""


def test_a_plain_gymnasium_environment_has_nothing_doubtful(tmp_path: Path):
    """Gymnasium's wrappers look at the keywords of reset, which `check` records."""
    (tmp_path / "my_parts.py").write_text(CARTPOLE)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-m", "polyplay", "check", "my_parts:pole", "--steps", "300"],
        capture_output=True, text=True, timeout=170, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("my_parts:pole: keeps to every rule that was checked\n")
    assert "warn" not in done.stdout.lower()


SHOWN = {
    "vector": spaces.Box(-1, 1, (3,)),
    "image": spaces.Box(0, 255, (3, 64, 64), np.uint8),
    "image, planes last": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    "grey, planes last": spaces.Box(0, 255, (84, 84, 1), np.uint8),
    "small image, planes last": spaces.Box(0, 255, (32, 32, 3), np.uint8),
    "number": spaces.Discrete(4),
    "parts": spaces.Dict({"a": spaces.Box(0, 255, (64, 64, 3), np.uint8), "b": spaces.MultiBinary(3)}),
}
TAKEN = {
    "one of": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "bounded": spaces.Box(-1, 1, (2,)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "parts": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]),
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("shown", SHOWN)
def test_what_train_refuses_is_what_check_says(shown: str, taken: str):
    """For policies, values and apex_dpg with `--network auto`: a network is made if nothing speaks against it."""
    obs, action = observation(SHOWN[shown], "x"), action_of(TAKEN[taken], "x")
    spec = EnvSpec(obs, action, classes=classes(SHOWN[shown]))
    always = rules.image_flaw(obs)
    for make, flaw in (
        (factory.make, ""),
        (factory.make_values, rules.values_flaw(action)),
        (factory.make_deterministic, rules.deterministic_flaw(action)),
    ):
        if flaw or always:
            with pytest.raises(UserError, match=re.escape(flaw or always)):
                make("auto", spec)
        else:
            make("auto", spec)
    line = checking.learners_of(spec)
    assert ("not values" in line, "not apex_dpg" in line) == (taken != "one of", taken != "bounded")


def test_every_rule_that_a_message_names_is_checked():
    """Rules are named in calls: of SpaceViolation, of rule_suffix, and as the stage of a lane."""
    source = "".join(p.read_text() for p in (Path(rules.__file__).parent).rglob("*.py"))
    named = set(re.findall(r'SpaceViolation\([^\n]*, "([a-z-]+)"\)', source))
    named |= set(re.findall(r"rule_suffix\([\"']([a-z-]+)[\"']\)", source))
    named |= set(re.findall(r'stage = "([a-z]+)"', source))
    assert {"bounds", "build", "reset", "factory"} <= named
    assert named <= set(RULES)
    assert {rule for rule in RULES if RULES[rule].run != "does not test it"} == set(broken.RULES)


@pytest.mark.parametrize(
    ("env", "rule", "level", "says"),
    [
        (broken.Unrepeatable, "determinism", "warning", "two trials with the same seed and actions differ from row"),
        (broken.Grey, "images", "warning", "--network auto is an MLP, which reads the image [84, 84] as 7,056 numbers"),
        (broken.OneSimulator, "copies", "failed", "from row 1 on it shows something else where another one is stepped"),
        (broken.OneGenerator, "seed", "failed", "lanes 0 and 1 got different seeds but draw from the same generator"),
        (vectors.MildSame, "final-observation", "failed", "it resets in the same step (SAME_STEP) and gives no info['"),
    ],
)
def test_what_only_check_sees(env: Any, rule: str, level: str, says: str):
    report = checking.check_env(env, **QUICK)
    (found,) = [f for f in report.findings if f.name == rule]
    assert (found.level, report.status) == (level, int(level == "failed"))
    assert says.removeprefix("it ") in found.seen


def test_what_only_a_pool_shows_is_a_finding_too(tmp_path: Path):
    """The second copy on the machine cannot be built."""
    (tmp_path / "taken").touch()

    def make() -> Any:
        (tmp_path / "taken").unlink(missing_ok=False)
        env = broken.Sound()
        env.close = (tmp_path / "taken").touch  # type: ignore[method-assign]
        return env

    report = checking.check_env(make, **QUICK)
    failed = [f for f in report.findings if f.level == "failed"]
    assert [f.name for f in failed] == ["build"]


def test_a_vector_environment_of_as_many_lanes_as_it_has_is_checked_with_all_of_them():
    report = checking.check_env(vectors.mild_three, **QUICK)
    assert report.status == 0
    assert report.card["resets"] == "by us, lane by lane"
    assert "pool of 3 lanes" in report.card


def test_mistakes_are_the_users():
    for name, says in (("CartPoel-v1", "did you mean 'CartPole-v1'"), ("nowhere:make", "no module 'nowhere'")):
        with pytest.raises(UserError, match=says):
            checking.check_env(name, **QUICK)


def test_the_command_prints_a_table_and_its_status(capsys: pytest.CaptureFixture):
    assert main.main(["check", "tests.envs.broken:NotFinite", "--steps", "30"]) == 1
    out, err = capsys.readouterr()
    assert (out.startswith("tests.envs.broken:NotFinite: 1 rule broken\n"), err) == (True, "")
    assert "\x1b" not in out
    (line,) = [x for x in out.splitlines() if x.strip().startswith("finite")]
    assert "FAILED" in line
    assert "nan at [2]" in line
    assert "fix: find the division" in out
    assert "final-observation   ok" in out
    assert "observation  float32 [4]" in out


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    asked: list[Any] = []

    def look(*given: Any, **more: Any) -> checking.CheckReport:
        asked.append((given, more))
        return checking.CheckReport("x", [Finding("seed", "warning", "seen", "fix")], {"a": "b"})

    monkeypatch.setattr(check_module, "check_env", look)
    assert main.main(["check", "CartPole-v1", "-n", "1k", "--step-timeout", "3", "--seed", "7", "--json"]) == 0
    assert asked == [(("CartPole-v1",), {"steps": 1000, "step_timeout": 3.0, "seed": 7})]
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert told["rules"] == [{"name": "seed", "level": "warning", "seen": "seen", "fix": "fix"}]
    assert (told["environment"], told["card"]) == ("x", {"a": "b"})


def test_the_command_reads_keywords_and_wrappers_as_training_does(capsys: pytest.CaptureFixture):
    """The environment is another by them: with its keyword it breaks a rule, with its wrapper it breaks it no more."""
    words = ["check", "tests.envs.broken:Spoilt", "--steps", "20"]
    assert main.main([*words, "--env-kwargs", "value=nan"]) == 1
    assert "finite" in capsys.readouterr().out
    assert main.main([*words, "--env-kwargs", "value=nan", "--wrapper", "tests.envs.broken:whole"]) == 0
    capsys.readouterr()
    assert main.main([*words, "--env-kwargs", "valeu=1"]) == 2
    assert "--env-kwargs: valeu given, which tests.envs.broken:Spoilt does not take, did you" in capsys.readouterr().err
    assert main.main([*words, "--wrapper", "whole"]) == 2
    assert capsys.readouterr().err == (
        "polyplay: error: --wrapper: whole given, allowed: module:callable, a function of an environment\n"
    )


def test_the_card_says_what_becomes_of_real_actions():
    card = polyplay.check(broken.Valve, **{**QUICK, "steps": 5}).card
    assert card["real actions"] == "a policy's −1 … 1 is scaled to [900, 1100]"


def test_the_verdict_in_words():
    def of(*kinds: Any) -> str:
        return check_module.verdict(checking.CheckReport("x", [Finding("r", kind, "") for kind in kinds], {}))

    assert of("ok", "unseen") == "keeps to every rule that was checked"
    assert of("failed", "failed", "warning") == "2 rules broken and 1 rule doubtful"


def test_random_actions_keep_to_masks(monkeypatch: pytest.MonkeyPatch):
    pool = Envs(broken.Choosy, 2, workers=1, max_restarts=0).open(0)
    sent, send = [], pool.send
    monkeypatch.setattr(pool, "send", lambda lanes, action: (sent.append(action.tolist()), send(lanes, action)))
    assert checking.steps_per_second(pool, 0.1) > 0
    assert sent[:8] == [[t % 2] * 2 for t in range(8)], "the one that is legal"
    assert pool.restarts == 0
    pool.close()


CARD = {"observation": "float32 [4]", "actions": "2 discrete"}


def tried(card: Any = CARD, broke: Any = None, odd: Any = None, **facts: Any) -> TrialResult:
    return TrialResult(dict(card), broke or {}, odd or {}, TrialFacts(**{"steps": 10, "resets": 2, **facts}))


NONE = TrialResult(facts=TrialFacts())  # a trial that was not made


def level(rule: str, first: TrialResult, again: TrialResult = NONE, other: TrialResult = NONE) -> tuple[str, str]:
    found = checking.finding(rule, first.broke, (first, again, other), limit=1.0)
    assert bool(found.fix) == (found.level in ("warning", "failed"))
    return found.level, found.seen


def test_what_was_not_come_to_is_not_praised():
    none = tried(card={}, broke={"spaces": "x"}, steps=0)
    assert [level(rule, none)[0] for rule in RULES] == ["ok", "ok", "failed"] + ["unseen"] * (len(RULES) - 3)
    unsent = tried(card={}, broke={"factory": "x"}, steps=0)
    assert {level(rule, unsent)[0] for rule in RULES if rule != "factory"} == {"unseen"}
    assert level("final-observation", tried()) == ("unseen", "no episode ended in 10 steps; --steps 100 looks longer")
    assert level("final-observation", tried(broke={"step": "x"})) == ("unseen", "no episode ended in 10 steps")
    assert level("final-observation", tried(ends=[(3, True)])) == ("ok", "at 1 ends")


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        ([(200, True), (200, True)], "warning"),
        ([(200, True)], "ok"),
        ([(9, True), (9, True)], "ok"),
        ([(200, False), (200, False)], "ok"),
        ([(200, True), (120, True)], "ok"),
    ],
)
def test_a_time_limit_that_terminates_is_doubtful(ends: list, want: str):
    assert level("flags", tried(ends=ends))[0] == want


def test_seeds():
    a, b = dict(generator=5, prints=[1, 2]), dict(generator=6, prints=[1, 3])

    def seed(first: dict, other: dict) -> tuple[str, str]:
        return level("seed", tried(**first), tried(**first), tried(**other))

    assert seed(a, b) == ("ok", "two lanes, two generators")
    assert seed(a, {**b, "prints": [1, 2]})[1].endswith("they play the same: nothing in it is random")
    assert seed(a, {**b, "generator": 5}) == (
        "failed",
        "lanes 0 and 1 got different seeds but draw from the same generator, of seed 5",
    )
    assert seed({**a, "generator": -1}, {**b, "generator": -1}) == ("ok", "two lanes play different episodes")
    assert seed({**a, "generator": -1}, {**a, "generator": -1})[0] == "warning"
    assert level("seed", tried())[0] == "unseen"


def test_determinism():
    assert level("determinism", tried(prints=[1, 2, 3]), tried(prints=[1, 2])) == ("ok", "the same 2 rows twice")
    found = level("determinism", tried(prints=[1, 2, 3]), tried(prints=[1, 5, 3]))
    text = "two trials with the same seed and actions differ from row 1 on"
    assert found == ("warning", f"{text}; the second had sets in another order (PYTHONHASHSEED)")
    assert level("determinism", tried())[0] == "unseen"


def test_times():
    quick = level("step-time", tried(step_sum=0.0005, step_most=0.002, reset_most=0.3))
    assert quick == ("ok", "a step 50 µs in the mean, 2 ms at most; a reset 300 ms at most")
    assert level("step-time", tried(step_most=0.7))[0] == "warning"


def test_the_card():
    card = checking.card_of(tried(ends=[(3, True), (5, False)]), own=False)
    assert card["episodes"] == "2 with random actions, 3 to 5 steps, 4.0 in the mean; 1 terminated, 1 truncated"
    assert card["autoreset"].startswith("the pool calls reset()")
    assert "Polyplay's own" in checking.card_of(tried(), own=True)["autoreset"]
