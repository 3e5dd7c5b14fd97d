"""Every number of every page, of a run's options and of a verb's has a range; what is beyond it is one line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest

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
    train.ResumeOptions, train.ReproduceOptions, EvaluateOptions, StartsOptions, check.CheckOptions,
    plot.PlotOptions, BenchOptions, ScoresOptions,
]  # fmt: skip
GROUPS = [*(systems.load(name).Config for name in PAGES), RunOptions, *VERBS]
FREE = {"until_return"}  # a return may be any number


def ids(group: type) -> str:
    return f"{group.__module__}.{group.__name__}"


def kinds(hint: object) -> set[object]:
    return {hint} if not get_args(hint) else {kind for part in get_args(hint) for kind in kinds(part)}


def ranges(group: type) -> Iterator[tuple[str, Range, type]]:
    for name, hint in flags.option_types(group).items():
        numbers = flags.range_of(hint)
        if numbers is not None:
            yield name, numbers, int if int in kinds(hint) else float


def ends(numbers: Range, kind: type) -> tuple[list[Any], list[Any]]:
    """The last numbers within a range, and the first and some more beyond."""

    def step(x: float, towards: float) -> float:
        return x + int(math.copysign(1, towards)) if kind is int else math.nextafter(x, towards)

    low = step(numbers.low, math.inf) if numbers.but == "low" else numbers.low
    high = step(numbers.high, -math.inf) if numbers.but == "high" else numbers.high
    wrong = [step(low, -math.inf), -(10**30)]
    if high == math.inf:
        return [low, 1e308], wrong
    return [low, high], [*wrong, step(high, math.inf), 10**31]


@pytest.mark.parametrize("group", GROUPS, ids=ids)
def test_every_number_has_a_range(group: type):
    for name, hint in flags.option_types(group).items():
        if name not in FREE and {int, float} & kinds(hint):
            assert flags.range_of(hint), name


@pytest.mark.parametrize("group", GROUPS, ids=ids)
def test_a_range_is_kept_up_to_its_ends(group: type):
    types = flags.option_types(group)
    for name, numbers, kind in ranges(group):
        within, beyond = ends(numbers, kind)
        if get_origin(types[name]) is tuple:
            within, beyond = [(kind(v),) for v in within], [(v,) for v in beyond]
            kind = tuple
        for value in within:
            assert flags.check_value(name, kind(value), types[name]) == value
        for value in beyond:
            with pytest.raises(UserError, match=f"{name}: .* given, allowed: "):
                flags.check_value(name, kind(value), types[name])


@pytest.mark.parametrize("name", PAGES)
def test_presets_are_within_the_ranges(name: str):
    page = systems.load(name)
    for make in page.PRESETS.values():
        assert options.from_json(page.Config, options.to_json(make())) == make()


def test_keywords_of_resume_are_held_to_them():
    with pytest.raises(UserError, match="keep: '0' given, allowed: a whole number from 1 to 1e12"):
        options.override(RunOptions(), {"keep": 0})
    with pytest.raises(UserError, match="unknown keyword lanse for resume"):
        options.override(RunOptions(), {"lanse": 3})


@pytest.mark.parametrize("name", PAGES)
def test_help_prints_them_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["train", name, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[3:])) <= 80  # the first lines name the presets, and the terminal folds them
    said = " ".join(out.split())
    for field, numbers, _ in [*ranges(systems.load(name).Config), *ranges(RunOptions)]:
        assert re.search(rf" {flags.flag(field)}: [a-z, ]*number {re.escape(numbers.whole)}", said), field


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
