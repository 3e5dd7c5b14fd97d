"""Every number of every page, of a run's options and of a verb's has a range; what is beyond it is one line."""

from __future__ import annotations

import math
import re
from typing import get_args, get_origin

import pytest
from rich.cells import cell_len

from polyplay import systems
from polyplay.cli import main, plot, train
from polyplay.cli import systems as check
from polyplay.cli.bench import BenchOptions
from polyplay.core.errors import LARGEST, Range, UserError
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.evaluation.scores import ScoresOptions
from polyplay.evaluation.verify import StartsOptions
from polyplay.runs import flags, options
from polyplay.runs.options import RunOptions

PAGES = systems.names()
VERBS = [
    train.ResumeOptions, check.ReproduceOptions, EvaluateOptions, StartsOptions, check.CheckOptions,
    plot.PlotOptions, BenchOptions, ScoresOptions,
]  # fmt: skip
GROUPS = [*(systems.load(name).Config for name in PAGES), RunOptions, *VERBS]
FREE = {"until_return"}  # a return may be any number


def ids(group: type) -> str:
    return f"{group.__module__}.{group.__name__}"


def kinds(hint: object) -> set[object]:
    return {hint} if not get_args(hint) else {kind for part in get_args(hint) for kind in kinds(part)}


@pytest.mark.parametrize("group", GROUPS, ids=ids)
def test_every_number_has_a_range_and_is_refused_beyond_it(group: type):
    for name, hint in flags.option_types(group).items():
        if name in FREE or not {int, float} & kinds(hint):
            continue
        numbers = flags.range_of(hint)
        assert numbers, name
        kind = int if int in kinds(hint) else float
        many = (lambda x: (x,)) if get_origin(hint) is tuple else lambda x: x
        within = numbers.low + (0 if numbers.but != "low" else 1 if kind is int else 1e-9)
        assert flags.check_value(name, many(kind(within)), hint) == many(within)
        for value in (kind(numbers.low) - 1, -(10**30), *([10**31] if numbers.high < math.inf else [])):
            with pytest.raises(UserError, match=f"{name}: .* given, allowed: "):
                flags.check_value(name, many(kind(value)), hint)


@pytest.mark.parametrize("name", PAGES)
def test_presets_are_within_the_ranges(name: str):
    page = systems.load(name)
    for make in page.presets.values():
        assert options.from_json(page.Config, options.to_json(make())) == make()


def test_keywords_of_resume_are_held_to_them():
    with pytest.raises(UserError, match="keep: '0' given, allowed: a whole number from 1 to 1e12"):
        options.override(RunOptions(), {"keep": 0})
    with pytest.raises(UserError, match="unknown keyword lanse for resume"):
        options.override(RunOptions(), {"lanse": 3})


@pytest.mark.parametrize("name", PAGES)
def test_help_prints_them_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["train", name, "--help-all"]) == 0
    out = capsys.readouterr().out
    assert max(map(cell_len, out.splitlines()[3:])) <= 80  # the first lines name presets: the terminal folds them
    said = " ".join(out.replace("│", " ").split())
    hints = flags.option_types(systems.load(name).Config, RunOptions)
    for field, numbers in ((field, flags.range_of(hint)) for field, hint in hints.items()):
        if numbers is not None:
            found = re.findall(rf" {flags.flag(field)} .*?\(default: [^;]+; (.*?)\)", said)
            assert numbers.in_short in found, field  # another option may name this one


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (Range(1), "from 1 up"),
        (Range(0, 1), "from 0 to 1"),
        (Range(0, 1, but="high"), "from 0 to below 1"),
        (Range(0, but="low"), "above 0"),
        (Range(0, 10**9, but="low"), "above 0, at most 1e9"),
        (Range(-1, 10**12), "from -1 to 1e12"),
        (Range(0, LARGEST, but="low"), "above 0"),
        (Range(0, LARGEST), "from 0 up"),
        (Range(0, 2**63 - 1), "from 0 to 9223372036854775807"),
        (Range(2, 16_384), "from 2 to 16384"),
    ],
)
def test_a_range_in_words(numbers: Range, said: str):
    assert (str(numbers), numbers.whole) == (said, said + ", at most 1e30" * (numbers.high == LARGEST))
