"""What an option chose by itself is named in the plan: in its first lines, or with --verbose."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from polyplay import systems
from polyplay.nets import device
from polyplay.runs import plan, terminal
from polyplay.runs.options import RunOptions
from polyplay.search import evaluators
from polyplay.workers.crew import Crew

SHORT, WHOLE = "the first lines", "--verbose"
TOLD = {  # of every option that may be auto: its words in a plan, and where they are
    "network": (SHORT, r"^network: .*, chosen by auto"),
    "init": (WHOLE, r"^network: .*; initial weights (torch|orthogonal|sonnet)"),
    "life_loss": (WHOLE, r"^episodes: terminated"),
    "evaluator": (SHORT, r"; self-play by (the fastest of )?torch in float32"),
    "resign": (WHOLE, r"^search: .*; resigns below a value that a tenth of the games teaches, which are played on$"),
}
WORKERS = {"env_workers": r"\(\d+ environment process(es)?\)"}  # chosen, and told by the workers
ENVS = {"apex_dpg": "toy:pendulum", "alphago_zero": "game:tic_tac_toe", "five": None, "ftw": None, "league": "toy:rps"}


def planned(name: str, precision: str = "float32", **given: Any) -> plan.Plan:
    page, crew = systems.load(name), Crew(0, steps=1_000, precision=precision)
    own = name in ("alphago_zero", "five", "ftw")  # networks for their own games
    settings = page.PRESETS["quick"]() if own else replace(page.Config(), network="auto")
    env = ENVS.get(name, "toy:catch")
    settings = replace(settings, **({} if env is None else {"env": env}), **given)
    return plan.make_plan(crew, page.build(settings, crew), RunOptions(steps=1_000))


def lines(made: plan.Plan, where: str) -> str:
    facts = terminal.short_facts(made.lines) if where == SHORT else made.lines
    return "\n".join(f"{head}: {text}" for head, text in facts)


def chosen_by_itself(name: str, words: str) -> list[str]:
    """Fields of a system's Config whose line says that they choose."""
    source = inspect.getsource(systems.load(name).Config)
    return [field for field, text in re.findall(r"^    (\w+): (.*)$", source, re.M) if re.search(words, text)]


@pytest.mark.parametrize("name", systems.ordinary())
def test_what_auto_chose_is_in_the_plan(name: str):
    fields = [x for x in chosen_by_itself(name, r"\bauto\b") if x != "atari"]
    assert set(fields) <= set(TOLD), "say where the plan names what was chosen"
    made = planned(name, **dict.fromkeys(fields, "auto"))
    for field in fields:
        where, words = TOLD[field]
        assert re.search(words, lines(made, where), re.M), field


@pytest.mark.parametrize("name", systems.ordinary())
def test_numbers_that_were_left_open_are_in_the_plan(name: str):
    page, crew = systems.load(name), Crew(0, steps=1_000)
    fields = chosen_by_itself(name, r"\(0: (one per|as many as cores|measured|chosen|10 per)")
    if not fields:
        return
    env = "CartPole-v1" if "env_workers" in fields else ENVS.get(name, "toy:catch")
    wishes = {"env": env, "network": "auto"} if env else {}
    preset = page.PRESETS["quick"]() if name == "ftw" else page.Config()
    wired = page.build(replace(preset, **wishes, **dict.fromkeys(fields, 0)), crew)
    told = dict(plan.make_plan(crew, wired, RunOptions(steps=1_000)).lines)["workers"]
    for field in fields:
        assert field in wired.resolved or re.search(WORKERS[field], told), field


@pytest.mark.parametrize("name", systems.ordinary())
def test_the_first_lines_say_where_environments_and_networks_run(name: str):
    told = dict(terminal.short_facts(planned(name).lines))
    assert re.search(r"\((stepped by the worker itself|\d+ environment process(es)?)\)", told["workers"])
    assert told["workers"].endswith("; networks in float32 on the CPU")
    assert name == "alphago_zero" or re.search(r"; inputs (raw|centre|normalize)$", told["network"])


@pytest.mark.parametrize(("has", "numbers"), [(True, "bfloat16"), (False, "float32")])
def test_the_precision_that_auto_stands_for_is_named(has: bool, numbers: str, monkeypatch: pytest.MonkeyPatch):
    for module in (device, evaluators):
        monkeypatch.setattr(module, "is_half", lambda how, device="cpu": has if how == "auto" else how == "bfloat16")
    assert f"; networks in {numbers} on the CPU" in lines(planned("a2c", "auto"), SHORT)
    told = lines(planned("alphago_zero", "auto", evaluator="torch"), SHORT)
    both = "the fastest of torch in float32, torch in bfloat16, measured when it starts"
    assert f"; self-play by {both if has else 'torch in float32'}" in told


@pytest.mark.parametrize(
    ("resign", "words"),
    [("off", "resigns never"), ("-0.9", "resigns below a value of -0.9"), ("auto", "which are played")],
)
def test_when_a_game_is_given_up_is_told(resign: str, words: str):
    assert words in lines(planned("alphago_zero", resign=resign), WHOLE)
