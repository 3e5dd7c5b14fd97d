from __future__ import annotations

from dataclasses import fields

from polyplay import systems
from polyplay.runs.options import ALGORITHM, GROUPS, RUN, RunOptions, grouped


def names(cls):
    return [f.name for f in fields(cls)]


def test_every_option_is_in_one_group_and_no_group_names_one_that_is_not_there():
    named = [name for group in GROUPS.values() for name in group]
    assert len(named) == len(set(named))
    there = {*names(RunOptions), *(name for page in systems.names() for name in names(systems.load(page).Config))}
    assert set(named) <= there
    for page in systems.names():
        own, run = names(systems.load(page).Config), names(RunOptions)
        assert sorted(name for group in grouped(own, run).values() for name in group) == sorted([*own, *run])


def test_groups_and_what_is_in_them_are_in_order_and_none_is_empty():
    found = grouped(["zeta", "env", "max_grad_norm"], ["steps", "keep", "frames"])
    assert found == {
        "duration": ["frames", "steps"],
        "environment": ["env"],
        ALGORITHM: ["zeta"],
        "optimizer": ["max_grad_norm"],
        RUN: ["keep"],
    }
