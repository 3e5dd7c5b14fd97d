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
from polyplay.envs import check as checking
from polyplay.envs import rules
from polyplay.envs.pool import EnvSpec
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import action as action_of
from polyplay.envs.spaces import classes, observation
from polyplay.nets import factory
from tests.envs import broken

TESTS = Path(__file__).parents[0]  # broken.py lies there
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
    assert any("steps/s in" in v for k, v in report.card.items() if k.startswith("pool of"))


def test_a_sound_environment_of_several_players_keeps_to_their_rules_too():
    report = polyplay.check(broken.Pair, **QUICK)
    assert levels(report) == dict.fromkeys(RULES, "ok")
    assert report.card["players"] == "left, right"
    assert report.card["episodes"].startswith("5 with random actions, 8 to 8 steps")


def test_what_else_is_wrong_between_players():
    class Left(broken.Pair):
        def step(self, actions: dict) -> tuple:
            parts = super().step(actions)
            self.agents = list(self.possible_agents)
            return parts

    class Strange(broken.Pair):
        def step(self, actions: dict) -> tuple:
            obs, rewards, *rest = super().step(actions)
            return obs, {**rewards, "ghost": 1.0}, *rest

    class Beyond(broken.Pair):
        def step(self, actions: dict) -> tuple:
            obs, *rest = super().step(actions)
            return {agent: seen - (agent == "right") for agent, seen in obs.items()}, *rest

    report = checking.check_env(Left, **QUICK)
    assert (levels(report)["agents"], report.status) == ("warning", 0)
    (found,) = [f for f in checking.check_env(Beyond, **QUICK).findings if f.name == "bounds"]
    assert found.level == "warning"
    assert found.seen.startswith("step 1: right: ")
    assert found.seen.endswith("training looks at bounds after a reset only")
    (found,) = [f for f in checking.check_env(Strange, **QUICK).findings if f.level == "failed"]
    assert (found.name, found.seen) == ("players", "step 1: step() gave a reward of ghost, not in possible_agents")


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


def test_what_only_check_sees():
    report = checking.check_env(broken.ResetsItself, **QUICK)
    assert levels(report)["autoreset"] == "failed"
    report = checking.check_env(broken.Unrepeatable, **QUICK)
    assert (levels(report)["determinism"], report.status) == ("warning", 0)
    report = checking.check_env(broken.Grey, **QUICK)
    assert (levels(report)["images"], levels(report)["flags"], report.status) == ("warning", "warning", 0)
    seen = {f.name: f.seen for f in report.findings}
    assert seen["images"] == "--network auto is an MLP, which reads the image [84, 84] as 7,056 numbers"
    assert seen["flags"].startswith("info says TimeLimit.truncated of a terminated episode")
    report = checking.check_env(broken.OneSimulator, **QUICK)
    assert levels(report)["copies"] == "failed"
    assert next(f.seen for f in report.findings if f.name == "copies").startswith(
        "from row 1 on it shows something else"
    )
    assert levels(checking.check_env(broken.OneGenerator, **QUICK))["seed"] == "failed"


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


@pytest.mark.parametrize("name", ["toy:catch", "CartPole-v1"])
def test_names_are_checked(name: str):
    report = checking.check_env(name, **QUICK)
    assert (report.environment, report.status) == (name, 0)
    assert "failed" not in levels(report).values()


def test_mistakes_are_the_users():
    for name, says in (("CartPoel-v1", "did you mean 'CartPole-v1'"), ("nowhere:make", "no module 'nowhere'")):
        with pytest.raises(UserError, match=says):
            checking.check_env(name, **QUICK)


def check(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "polyplay", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=TESTS)


def test_the_command_prints_a_table_and_its_status():
    done = check("broken:NotFinite", "--steps", "30")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("broken:NotFinite: 1 rule broken\n")
    assert "\x1b" not in done.stdout
    (line,) = [x for x in done.stdout.splitlines() if x.strip().startswith("finite")]
    assert "FAILED" in line
    assert "nan at [2]" in line
    assert "fix: find the division" in done.stdout
    assert "final-observation   ok" in done.stdout
    assert "observation  float32 [4]" in done.stdout


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
    assert main.main(words) == 0
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
    class Valve(broken.Sound):
        action_space = spaces.Box(900.0, 1100.0, (1,), np.float32)

    card = polyplay.check(Valve, **QUICK).card
    assert card["real actions"] == "a policy's −1 … 1 is scaled to [900, 1100]"
    assert "real actions" not in polyplay.check(broken.Sound, **QUICK).card


def test_the_verdict_in_words():
    def of(*kinds: Any) -> str:
        return check_module.verdict(checking.CheckReport("x", [Finding("r", kind, "") for kind in kinds], {}))

    assert of("ok", "unseen") == "keeps to every rule that was checked"
    assert of("failed", "failed", "warning") == "2 rules broken and 1 rule doubtful"
