from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from polyplay.core.errors import UserError
from polyplay.runs import flags


@dataclass(frozen=True)
class Few:
    """Two options."""

    frames: int | None = None
    """how many"""
    quiet: bool = False
    """say less of what is going on, which is a longer description, so
    that it has two lines"""


def test_read_flags_returns_which_were_given():
    assert flags.read_flags(Few, ["--frames", "2M"], "polyplay x") == (Few(frames=2_000_000), {"frames"})
    assert flags.read_flags(Few, [], "polyplay x") == (Few(), set())
    assert flags.read_flags(Few, ["--no-quiet"], "polyplay x") == (Few(), {"quiet"})


def test_few_options_are_listed_when_nothing_is_near():
    with pytest.raises(UserError, match=re.escape("unknown option --lr for polyplay x; it takes --frames, --quiet")):
        flags.read_flags(Few, ["--lr", "3"], "polyplay x")


def test_an_alias_is_suggested_only_where_its_option_is():
    assert flags.nearest_flag("total_timestep", ["steps"], flags.flag) == "; did you mean --total-timesteps?"
    assert "total" not in flags.nearest_flag("total_timestep", ["frames"], flags.flag)


@pytest.mark.parametrize(
    ("word", "name", "fits"),
    [
        ("lrate", "learning_rate", True),
        ("l_r", "learning_rate", True),
        ("learn_rate", "learning_rate", True),
        ("rate", "learning_rate", False),
        ("learning", "learning_rate", False),
        ("lratex", "learning_rate", False),
        ("tr", "trace", False),
    ],
)
def test_an_abbreviation_has_the_beginning_of_every_word(word: str, name: str, fits: bool):
    assert flags.abbreviates(word, name) is fits


def test_help_prints_and_exits(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as caught:
        flags.read_flags(Few, ["--help"], "polyplay x RUN", "About it.")
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert "polyplay x RUN" in out
    assert "About it." in out
    assert "how many (default: none)" in out
    assert "say less of what is going on, which is a longer" in out
    assert "description, so that it has two lines (default: off)" in out, "one text, wrapped once"


def test_the_last_of_several_bad_ones_does_not_hide_the_first():
    with pytest.raises(UserError, match="--frames: 'many' given"):
        flags.read_flags(Few, ["--frames", "many"], "polyplay x")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10M", "10000000"),
        ("1e7", "10000000"),
        ("2.5k", "2500"),
        ("1_0b", "10000000000"),
        ("-2k", "-2000"),
        ("12", "12"),
        ("1.5", "1.5"),
        ("x", "x"),
        ("1.23456789k", "1.23456789k"),
        ("1e999", "1e999"),
    ],
)
def test_short_whole_numbers(text: str, plain: str):
    assert flags.expand_suffix(text) == plain
