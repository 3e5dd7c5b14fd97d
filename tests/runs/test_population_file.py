from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyplay.core.errors import UserError
from polyplay.runs.directory import read_population
from tests.populations import make_population, write_run


def test_what_a_population_wrote_is_read(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=4, members=3)
    population = read_population(run)
    assert [m["member"] for m in population["members"]] == [0, 1, 2]
    assert population["over"] == "a2c"


def test_what_is_no_population_is_said(tmp_path: Path):
    plain = write_run(tmp_path / "plain", "ppo", {"env": "toy:catch"})
    with pytest.raises(UserError, match=r"^RUN: .*plain is a run of ppo, no population: name one that"):
        read_population(plain)
    run = make_population(tmp_path / "run", turns=0, members=2)
    with pytest.raises(UserError, match=rf"members/01 is a member of a population: name the population, {run}$"):
        read_population(run / "members" / "01")
    (run / "population.json").unlink()
    with pytest.raises(UserError, match=r"run has lost its population.json: put back a copy of it"):
        read_population(run)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"members": []}, "no members as a population writes it"),
        ({"members": [{"member": 0}]}, "no members as a population writes it"),
        ({"vary": None, "total": "many"}, "no vary, total as a population writes it"),
        ({"schema": 2}, "has not schema 1"),
    ],
)
def test_damage_is_said_in_one_line(tmp_path: Path, change: dict, says: str):
    run = make_population(tmp_path / "run", turns=0, members=2)
    contents = json.loads((run / "population.json").read_text())
    (run / "population.json").write_text(json.dumps(contents | change))
    with pytest.raises(UserError, match=says):
        read_population(run)


def test_a_member_without_its_values_is_damage(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=0, members=2)
    contents = json.loads((run / "population.json").read_text())
    for key in ("values", "state", "steps"):
        broken = [contents["members"][0], {k: v for k, v in contents["members"][1].items() if k != key}]
        (run / "population.json").write_text(json.dumps(contents | {"members": broken}))
        with pytest.raises(UserError, match="no members as a population writes it"):
            read_population(run)
