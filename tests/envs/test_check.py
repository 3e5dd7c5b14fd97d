"""Every rule has an environment that breaks it: `check` finds it, and a run ends with a line that names it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import polyplay
from polyplay.cli import main
from polyplay.core.errors import Finding, UserError
from polyplay.envs import Envs, rules
from polyplay.envs import check as checking
from polyplay.envs.check import Trial
from polyplay.envs.pool import spec_of_spaces
from polyplay.envs.rules import RULES
from polyplay.learning import losses
from polyplay.nets import factory
from tests.envs import broken, vectors
from tests.games.traits import NAME as TRAITS

QUICK: dict[str, Any] = {"steps": 40, "step_timeout": 60.0, "measure": 0.05}


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
    card = polyplay.check(broken.Valve, **{**QUICK, "steps": 5}).card
    assert card["real actions"] == "a policy's −1 … 1 is scaled to [900, 1100]"
    assert any("steps/s" in v for k, v in report.card.items() if k.startswith("pool of"))


def test_a_sound_environment_of_several_players_keeps_to_their_rules_too():
    report = polyplay.check(broken.Pair, **QUICK)
    assert levels(report) == dict.fromkeys(RULES, "ok")
    assert report.card["players"] == "left, right"
    assert report.card["episodes"].startswith("5 with random actions, 8 to 8 steps")


TOLD = {  # what else a finding says, of some
    "step": "step 5: Raises, lane 0 (seed ",
    "reset": "OSError: no level left (broken.py:",
    "hang": "in fifth ← broken.py:",
    "crash": "step 5: environment process 0 (lanes 0) ended by itself: exit status 3",
    "finite": "step 3: NotFinite, lane 0: nan at [2] of an observation, 1 of 4 values not finite",
}


@pytest.mark.parametrize("rule", broken.RULES)
def test_check_finds_what_breaks_a_rule(rule: str):
    report = checking.check_env(broken.RULES[rule], **{**QUICK, "step_timeout": 1.0 if rule == "hang" else 60.0})
    (found,) = [f for f in report.findings if f.level == "failed"]
    assert (found.name, found.fix, report.status) == (rule, RULES[rule].fix, 1)
    assert TOLD.get(rule, "") in found.seen
    assert "polyplay check" not in found.seen


@pytest.mark.parametrize("rule", ["finite", "build", "images", "step"])
def test_a_run_ends_with_a_line_that_names_the_rule(rule: str, tmp_path: Path):
    small: dict[str, Any] = {"lanes": 2, "replicas": 1, "env_workers": 1, "tensorboard": False}
    small |= {"on": "process" if rule == "finite" else "thread", "run": str(tmp_path / "run")}
    with pytest.raises(Exception, match=rf"\(rule {rule}; polyplay check ENV explains\)") as e:
        polyplay.train(
            "a2c", env=broken.RULES[rule], steps=10_000, network="auto" if rule == "images" else "mlp", **small
        )
    assert f"rule {rule};" in str(e.value).split("\n")[0]
    assert isinstance(e.value, UserError) == (RULES[rule].run == "does not start")


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


SHOWN = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(0, 255, (3, 64, 64), np.uint8),
    spaces.Box(0, 255, (64, 64, 3), np.uint8),
    spaces.Discrete(4),
    spaces.Dict({"a": spaces.Box(0, 255, (64, 64, 3), np.uint8), "b": spaces.MultiBinary(3)}),
]
TAKEN = {
    "one of": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "bounded": spaces.Box(-1, 1, (2,)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_what_train_refuses_is_what_check_says(shown: Any, taken: str):
    """With `--network auto`, of all kinds: a network is made if nothing speaks against it."""
    spec = spec_of_spaces(shown, TAKEN[taken], "x")
    always = rules.image_flaw(spec.obs)
    for make, flaw in (
        (factory.make, ""),
        (factory.make_values, rules.values_flaw(spec.action)),
        (factory.make_deterministic, rules.deterministic_flaw(spec.action)),
        (factory.make_critics, rules.critics_flaw(spec.action)),
    ):
        if not flaw:  # a page refuses what its networks don't take
            with pytest.raises(UserError, match=re.escape(always)) if always else contextlib.nullcontext():
                make("auto", spec)
    line = checking.learners_of(spec)
    said = tuple(f"not {system}" in line for system in ("values", "td3, apex_dpg", "sac, apex_sac"))
    assert said == (taken != "one of", taken != "bounded", taken not in ("one of", "bounded"))


def test_every_rule_that_a_message_names_is_checked():
    """Rules are named in calls: of SpaceViolation, of rule_suffix, and as the stage of a lane."""
    source = "".join(p.read_text() for p in (Path(rules.__file__).parent).rglob("*.py"))
    named = set(re.findall(r'SpaceViolation\([^\n]*, "([a-z-]+)"\)', source))
    named |= set(re.findall(r"rule_suffix\([\"']([a-z-]+)[\"']\)", source))
    named |= set(re.findall(r'stage = "([a-z]+)"', source))
    assert {"bounds", "build", "reset", "factory"} <= named
    assert named <= set(RULES)
    assert {rule for rule in RULES if RULES[rule].run != "does not test it"} == set(broken.RULES)


ODD = [  # an environment, the rule, its level and what was seen; every other rule is kept
    (broken.Unrepeatable, "determinism", "warning", "two trials with the same seed and actions differ from row"),
    (broken.Gray, "flags", "warning", "info says TimeLimit.truncated of a terminated episode"),
    (broken.Thin, "images", "warning", "--network auto is an MLP, which reads the image [84, 8, 84] as 56,448 numbers"),
    (broken.OneSimulator, "copies", "failed", "on it shows something else where another one is stepped beside it"),
    (broken.OneGenerator, "seed", "failed", "got different seeds but draw from the same generator"),
    (
        broken.Doom,
        "final-observation",
        "warning",
        "a step that is both terminated and truncated shows only zeros, so it",
    ),
    (broken.Beyond, "bounds", "warning", "; training looks at bounds after a reset only"),
    (broken.ResetsItself, "autoreset", "failed", "step 8: ResetsItself, lane 0: the step that ended an episode"),
    (lambda: broken.Restless(True), "autoreset", "warning", "reset() without an end"),
    (lambda: broken.Restless(False), "autoreset", "warning", "the step that ended an episode called reset() too"),
    (broken.Strays, "bounds", "warning", "is not in [-1, 1]; training looks at bounds after a reset only"),
    (broken.Vast, "finite", "warning", "which float32, in which networks compute, can't hold: train with --inputs n"),
]


@pytest.mark.parametrize(("env", "rule", "level", "says"), ODD)
def test_what_a_run_lets_pass(env: Any, rule: str, level: str, says: str):
    report = checking.check_env(env, **QUICK)
    found = {f.name: f for f in report.findings if f.level in ("failed", "warning")}
    assert (found[rule].level, report.status) == (level, int(level == "failed"))
    assert says in found[rule].seen
    assert found.keys() == {rule}


def test_an_end_with_both_flags_is_terminal():
    """The value of ViZDoom's zeros, 100 here, is no part of any target."""
    with contextlib.closing(Envs(broken.Doom, 1, inline=True).open(0)) as pool:
        rows = []
        for _ in range(7):
            lanes, row = pool.recv()
            rows.append({key: torch.from_numpy(row[key].copy()) for key in ("reward", "terminated", "first")})
            pool.send(lanes, np.zeros(1, np.int64))
    steps = losses.transitions({key: torch.stack([row[key] for row in rows]) for key in rows[0]}, gamma=1.0)
    targets = losses.n_step(steps, torch.full((7, 1), 100.0))[:, 0]
    assert targets.tolist() == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_a_last_observation_that_is_lost_is_a_warning():
    (found,) = [f for f in checking.check_env(vectors.MildCut, **QUICK).findings if f.name == "final-observation"]
    assert found.level == "warning"
    assert "MildCut gives no info['final_obs'] when an episode ends" in found.seen


def test_a_vector_environment_of_as_many_lanes_as_it_has_is_checked_with_all_of_them():
    report = checking.check_env(vectors.mild_three, **QUICK)
    assert report.status == 0
    assert report.card["resets"] == "by us, lane by lane"
    assert "pool of 3 lanes" in report.card


def test_the_command_prints_a_table_and_its_status(capsys: pytest.CaptureFixture):
    assert main.main(["check", "tests.envs.broken:NotFinite", "--steps", "30"]) == 1
    out, err = capsys.readouterr()
    assert (out.startswith("tests.envs.broken:NotFinite: 1 rule broken\n"), err) == (True, "")
    assert "\x1b" not in out
    assert re.search(r"finite +FAILED .*nan at \[2\]", out)
    assert "fix: find the division" in out
    assert "observation  float32 [4]" in out


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    asked: list[Any] = []

    def look(*given: Any, **more: Any) -> checking.CheckReport:
        asked.append((given, more))
        return checking.CheckReport("x", [Finding("seed", "warning", "seen", "fix")], {"a": "b"})

    monkeypatch.setattr(checking, "check_env", look)
    words = ["check", "CartPole-v1", "-n", "1k", "--step-timeout", "3", "--seed", "7", "--json"]
    assert main.main([*words, "--env-kwargs", "max_episode_steps=3", "--wrapper", "a:b"]) == 0
    made = {"options": {"max_episode_steps": 3}, "wrappers": ("a:b",)}
    assert asked == [(("CartPole-v1",), {"steps": 1000, "step_timeout": 3.0, "seed": 7, **made})]
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert told["rules"] == [{"name": "seed", "level": "warning", "seen": "seen", "fix": "fix"}]
    assert (told["environment"], told["card"]) == ("x", {"a": "b"})


def level(rule: str, first: Trial, again: Trial | None = None, other: Trial | None = None) -> tuple[str, str]:
    found = checking.finding(rule, first.broke, (first, again or Trial(), other or Trial()), limit=1.0)
    assert bool(found.fix) == (found.level in ("warning", "failed"))
    return found.level, found.seen


def test_what_was_not_come_to_is_not_praised():
    none, some = Trial(broke={"spaces": "x"}), Trial(steps=10, resets=2)
    assert {level(rule, none)[0] for rule in RULES if rule != "spaces"} == {"unseen"}
    assert level("final-observation", some) == ("unseen", "no episode ended in 10 steps; --steps 100 looks longer")
    assert level("seed", some) == ("unseen", "not tested: no second lane was played")
    assert level("determinism", some) == ("unseen", "not tested: there was no second trial")


SAME, LIMIT = "lanes 0 and 1 got different seeds but", "all 2 episodes terminated after 200 steps: a time limit"
FIRST, NONAME = dict(generator=5, prints=[1, 2]), dict(prints=[1, 2])
LOOKED = [  # rule, facts of lane 0, of lane 1 (for determinism lane 0 again); level and what was seen
    ("flags", dict(ends=[(200, True)] * 2), {}, "warning", LIMIT),
    ("flags", dict(ends=[(9, True)] * 2), {}, "ok", "at 2 ends"),
    ("flags", dict(ends=[(200, False)] * 2), {}, "ok", "at 2 ends"),
    ("flags", dict(ends=[(200, True), (120, True)]), {}, "ok", "at 2 ends"),
    ("seed", FIRST, dict(generator=6, prints=[1, 3]), "ok", "two lanes play different episodes"),
    ("seed", FIRST, dict(generator=6, prints=[1, 2]), "ok", "two lanes play the same: nothing in it is random"),
    ("seed", NONAME, NONAME, "warning", f"{SAME} play the same: right if nothing in it is random"),
    ("determinism", dict(prints=[1, 2, 3]), dict(prints=[1, 2]), "ok", "the same 2 rows twice"),
    ("step-time", dict(step_sum=5e-4, step_most=2e-3, reset_most=0.3), {}, "ok", "a step 50 µs in the mean, 2 ms"),
    ("step-time", dict(step_most=0.7), {}, "warning", "a step 0 µs in the mean, 700 ms at most"),
]


@pytest.mark.parametrize(("rule", "first", "other", "want", "says"), LOOKED)
def test_what_several_trials_show_of_a_rule(rule, first, other, want, says):
    one, two = (Trial(steps=10, resets=2, **facts) for facts in (first, other))
    found = level(rule, one, two, two)
    assert found[0] == want
    assert found[1].startswith(says)


@pytest.mark.parametrize("name", [f"{TRAITS}+mask+hybrid", "toy:catch", "ALE/Pong-v5"])
def test_polyplays_own_pools_keep_to_the_rules(name: str):
    report = checking.check_env(name, **QUICK)
    assert "failed" not in levels(report).values()
    assert levels(report)["determinism"] == "ok"
