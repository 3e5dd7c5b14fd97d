"""Every rule has an environment that breaks it: `check` finds it, and a run ends with a line that names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
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
from polyplay.envs.pool import EnvSpec, lane_seeds
from polyplay.envs.process_pool import pickled_factory
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import action as action_of
from polyplay.envs.spaces import classes, observation
from polyplay.nets import factory
from tests.envs import broken, vectors
from tests.envs.broken import job_of, look, look_at_pool, tried_by
from tests.games.traits import NAME as TRAITS

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
    card = polyplay.check(broken.Valve, **{**QUICK, "steps": 5}).card
    assert card["real actions"] == "a policy's −1 … 1 is scaled to [900, 1100]"
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
    """Some in whole runs, which for `finite` have a worker in a process; the others in the pool, which raises it."""
    kind = UserError if RULES[rule].run == "does not start" else EnvFailure
    env, timeout = broken.RULES[rule], 0.25 if rule == "hang" else 60.0

    def run() -> None:
        if rule in ("build", "images", "finite", "step"):
            small: dict[str, Any] = {"lanes": 2, "replicas": 1, "env_workers": 1, "tensorboard": False}
            small |= {"on": "process" if rule == "finite" else "thread", "run": str(tmp_path / "run")}
            polyplay.train("a2c", env=env, steps=10_000, network="auto" if rule == "images" else "mlp", **small)
        with closing(Envs(env, 2, workers=1, step_timeout=timeout).open(0)) as pool:
            checking.steps_per_second(pool, 60.0)

    with pytest.raises(kind, match=rf"\(rule {rule}; polyplay check ENV explains\)") as e:
        run()
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


SAME, OTHER = "lanes 0 and 1 got different seeds but", "two trials with the same seed and actions differ from row 1 on"
FIRST, NONAME = dict(generator=5, prints=[1, 2]), dict(generator=-1, prints=[1, 2])
REPEATED = "the second had sets in another order (PYTHONHASHSEED)"
LOOKED = [  # rule, facts of lane 0, of lane 0 again, of lane 1; level and what was seen
    ("flags", dict(ends=[(200, True)] * 2), None, None, "warning", "all 2 episodes terminated after 200 steps: a time"),
    ("flags", dict(ends=[(200, True)]), None, None, "ok", "at 1 ends"),
    ("flags", dict(ends=[(9, True)] * 2), None, None, "ok", "at 2 ends"),
    ("flags", dict(ends=[(200, False)] * 2), None, None, "ok", "at 2 ends"),
    ("flags", dict(ends=[(200, True), (120, True)]), None, None, "ok", "at 2 ends"),
    ("seed", FIRST, FIRST, dict(generator=6, prints=[1, 3]), "ok", "two lanes, two generators"),
    ("seed", FIRST, FIRST, dict(generator=6, prints=[1, 2]), "ok", "two lanes, two generators; they play the same"),
    ("seed", FIRST, FIRST, FIRST, "failed", f"{SAME} draw from the same generator, of seed 5"),
    ("seed", NONAME, NONAME, dict(prints=[1, 3]), "ok", "two lanes play different episodes"),
    ("seed", NONAME, NONAME, NONAME, "warning", f"{SAME} play the same: right if nothing in it is random"),
    ("seed", {}, None, None, "unseen", "not tested: no second lane was played"),
    ("determinism", dict(prints=[1, 2, 3]), dict(prints=[1, 2]), None, "ok", "the same 2 rows twice"),
    ("determinism", dict(prints=[1, 2, 3]), dict(prints=[1, 5, 3]), None, "warning", f"{OTHER}; {REPEATED}"),
    ("determinism", {}, None, None, "unseen", "not tested: there was no second trial"),
    (
        "step-time",
        dict(step_sum=5e-4, step_most=2e-3, reset_most=0.3),
        None,
        None,
        "ok",
        "a step 50 µs in the mean, 2 ms",
    ),
    ("step-time", dict(step_most=0.7), None, None, "warning", "a step 0 µs in the mean, 700 ms at most"),
]


@pytest.mark.parametrize(("rule", "first", "again", "other", "want", "says"), LOOKED)
def test_what_several_trials_show_of_a_rule(rule, first, again, other, want, says):
    found = level(rule, tried(**first), *(NONE if facts is None else tried(**facts) for facts in (again, other)))
    assert found[0] == want
    assert found[1].startswith(says)


# One trial of an environment: what it finds, how far it goes, what it draws.


def test_a_sound_environment_breaks_nothing_and_repeats_itself():
    tried, again, other = look(broken.Sound), look(broken.Sound), look(broken.Sound, lane=1)
    assert (tried.broke, tried.odd, tried.whole) == ({}, {}, True)
    facts = tried.facts
    assert (facts.steps, facts.resets) == (30, 4)
    assert [n for n, _ in facts.ends] == [8, 8, 8]
    assert len(facts.prints) == 34
    assert facts.prints == again.facts.prints != other.facts.prints
    assert facts.generator == lane_seeds(3, 0, 1)[0] != other.facts.generator
    assert facts.step_most >= facts.step_sum / 30 > 0


@pytest.mark.parametrize(
    ("env", "broke", "odd"),
    [
        (broken.NotFinite, {"finite": "step 3: nan at [2] of an observation, 1 of 4 values not finite"}, {}),
        (broken.NoFlag, {"flags": "step 1: terminated must be a boolean, given None"}, {"flags": "None, no boolean"}),
        (broken.NoReward, {"reward": "step 1: reward must be one finite number, given None"}, {}),
        (broken.NothingLegal, {"mask": "step 4: action_mask: no action is legal"}, {}),
        (broken.WrongDtype, {"dtype": "reset 1: declared float32 [4], given float64 [4]"}, {}),
        (broken.NoLastObservation, {"final-observation": "the step that truncated the episode has no real last"}, {}),
        (broken.OutOfBounds, {"bounds": "reset 1: "}, {"bounds": ""}),
        (broken.OldGym, {"step": "given a tuple of 4, as gym's before 0.26 did"}, {}),
        (broken.NeverBegins, {"reset": "reset 1: OSError: no level left (broken.py:"}, {}),
        (broken.Revived, {"agents": "step 4: left is in agents again, though it has ended"}, {}),
        (broken.Unnamed, {"players": "step() gave no observation, reward or flag of left, which acted"}, {}),
        (broken.Ghost, {"players": "step 1: step() gave a reward of ghost, not in possible_agents"}, {}),
        (broken.LeftBehind, {}, {"agents": "everyone has ended, but agents is still ['left', 'right']"}),
        (broken.Beyond, {}, {"bounds": "right: "}),
        (broken.ResetsItself, {"autoreset": "returned the next one's beginning"}, {}),
        (lambda: broken.Restless(True), {}, {"autoreset": "step 3: it called reset() without ending the episode"}),
        (lambda: broken.Restless(False), {}, {"autoreset": "the step that ended an episode called reset() too"}),
        (lambda: gymnasium.wrappers.Autoreset(broken.Sound()), {}, {}),  # the pool resets before the wrapper does
        (broken.Strays, {}, {"bounds": "is not in [-1, 1]; training looks at bounds after a reset only"}),
        (broken.Counts, {}, {"flags": "terminated is int 0, no boolean"}),
        (broken.Vast, {}, {"finite": "which float32, in which networks compute, can't hold: train with --inputs norm"}),
        (broken.Grey, {}, {"flags": "info says TimeLimit.truncated of a terminated episode"}),
    ],
)
def test_what_is_wrong_is_found_and_nothing_else(env, broke: dict, odd: dict):
    tried = look(env, steps=60)
    for found, want in ((tried.broke, broke), (tried.odd, odd)):
        assert found.keys() == want.keys()
        assert all(text in found[rule] for rule, text in want.items()), found


def test_what_raises_ends_a_trial_after_a_few_times():
    tried = look(broken.Raises)
    assert "step 5: action" in tried.broke["step"]
    assert "ValueError: boom (broken.py:" in tried.broke["step"]
    assert (tried.facts.steps, tried.facts.resets, tried.whole) == (15, 3, True)
    assert look(broken.NotFinite).facts.steps == 30, "what is only wrong does not"


def test_one_that_can_be_built_only_once_is_told():
    job = replace(job_of(broken.Sound), maker=pickled_factory(Envs(broken.Unbuildable, 1)))
    tried = tried_by(lambda answer, clock: checking.run_trial(answer, clock, job, 5, 60.0))
    (text,) = tried.broke.values()
    assert text.startswith("Sound: could not be built: RuntimeError: no licence found (broken.py:")
    assert "(rule" not in text


@pytest.mark.parametrize("kind", broken.MASKS)
@pytest.mark.parametrize("where", ["observation", "info"])
def test_actions_are_drawn_from_what_a_mask_allows(kind: str, where: str):
    tried = look(lambda: broken.Masked(kind, where), steps=8)
    assert (tried.broke, tried.facts.steps) == ({}, 8)


def test_the_time_is_a_limit_too():
    assert look(broken.Sound, steps=10**9, seconds=0.2).facts.steps < 10**6


def test_what_hangs_or_dies_has_told_how_far_it_came():
    tried = checking.run_watched(checking.run_trial, job_of(broken.Hangs, step_timeout=1.0), 30, 60.0)
    assert tried.broke["hang"].startswith("step 5 took longer than 1 s (broken.py:")
    assert (tried.whole, tried.facts.steps) == (False, 5)
    tried = checking.run_watched(checking.run_trial, job_of(broken.Dies), 30, 60.0)
    assert tried.broke == {"crash": "step 5 ended its process: exit status 3"}


@pytest.mark.parametrize("name", [f"{TRAITS}+mask+hybrid", "toy:catch", "toy:pendulum", "ALE/Pong-v5"])
def test_polyplays_own_pools_keep_to_the_rules(name: str):
    tried, again = look_at_pool(name, 60), look_at_pool(name, 60)
    assert (tried.broke, tried.facts.steps) == ({}, 60)
    assert tried.facts.prints == again.facts.prints
    if name == "toy:catch":
        assert set(tried.facts.ends) == {(9, True)}


def test_flaws_of_rows():
    envs = Envs("toy:catch", 1)
    pool = envs.open(0)
    _, row = pool.recv()
    assert checking.row_flaws(envs, row, over=True) == []
    wrong = {**row, "obs": np.full((1, 3), np.nan), "reward": np.float32([np.nan]), "first": np.array([False])}
    found = [rule for rule, _ in checking.row_flaws(envs, wrong, over=True)]
    assert found == ["shape", "dtype", "finite", "reward", "autoreset"]
