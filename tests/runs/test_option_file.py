"""Files of options: what is read, what is written is read again, what is a sweep, and what is one line about them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.runs import flags, option_file
from polyplay.runs import options as run_options
from polyplay.runs.option_file import OptionFile, parse_seeds, read_option_file, read_sweep, write_option_file
from polyplay.runs.options import RunOptions
from polyplay.systems import Page, _presets, load
from tests.verbs import refused

KINDS = (".toml", ".yaml", ".json")
TOML = (
    'system = "a2c"\nenv = "toy:catch"\nnetwork = "mlp"\nlanes = 4\nsteps = 1e3\nlearning-rate = 2e-3\non = "thread"\n'
)
YAML = "system: a2c\nenv: toy:catch\nnetwork: mlp\nlanes: 4\nsteps: 1k\nlearning_rate: 2e-3\non: thread\nminutes: ~\n"
JSON = {"system": "a2c", "env": "toy:catch", "network": "mlp", "lanes": 4, "steps": "1k", "learning_rate": 2e-3}
FILES = {"a.toml": TOML, "a.yaml": YAML, "a.YML": YAML, "a.json": json.dumps({**JSON, "on": "thread"})}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_read(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(FILES[name])
    file = read_option_file(path)
    assert file.choose_system(None) == "a2c"
    settings, options, sources = run_options.parse(load("a2c"), ["--lanes", "8"], file=file)
    assert (settings.env, settings.lanes, settings.learning_rate, options.steps) == ("toy:catch", 8, 2e-3, 1000)
    assert (options.on, options.minutes) == ("thread", None)
    assert (sources["lanes"], sources["steps"], sources["gamma"]) == ("command line", f"config {path}", "default")
    settings, options, sources = run_options.resolve(load("a2c"), file, frames=50)
    assert (settings.frames, options.steps, sources["frames"]) == (50, None, "keyword"), "it overrides the file's limit"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("config") / "run"
    quick = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "tensorboard": False}
    polyplay.train("a2c", **quick, seed=5, steps=200, run=there, quiet=True)
    return there


def test_a_run_is_repeated_from_its_directory(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    of_an_older_version = json.loads((run / "config.json").read_text())
    of_an_older_version["options"]["log_games"] = 100  # an option that is gone
    (run / "config.json").write_text(json.dumps(of_an_older_version))
    assert main.main(["train", "--config", str(run), "--run", str(tmp_path / "again"), "--quiet"]) == 0
    was, now = (json.loads((there / "config.json").read_text()) for there in (run, tmp_path / "again"))
    assert (now["config"], now["seed"]) == (was["config"], 5)
    assert now["sources"]["env"] == f"config {run}/config.json"
    assert now["sources"]["gamma"] == was["sources"]["gamma"] == "default"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("done · ")
    again = polyplay.train(config=run / "config.json", steps=100, run=tmp_path / "python", quiet=True)
    assert again.settings is not None
    assert (again.settings.env, again.exit_code) == ("toy:catch", 0)
    with pytest.raises(UserError, match=r"SYSTEM: ppo given, but .* is of a2c"):
        polyplay.train("ppo", config=run)
    with pytest.raises(UserError, match="train takes a system first"):
        polyplay.train(steps=10)


# What is written is read again.


def again(page: Page, words: list[str], path: Path) -> tuple[run_options.Choice, run_options.Choice]:
    """What the words choose, and what the file chooses that was written of it."""
    choice = run_options.parse(page, words)
    write_option_file(path, page.name, *choice)
    file = read_option_file(path)
    assert file.choose_system(None) == page.name
    return choice, run_options.parse(page, [], file=file)


def assert_same(first: run_options.Choice, second: run_options.Choice, path: Path) -> None:
    """Equal settings, options and sources; what a person gave is now the file's."""
    assert second[:2] == first[:2]
    assert second[2] == {k: f"config {path}" if v == "command line" else v for k, v in first[2].items()}


def test_every_system_and_preset_is_written_and_read_again(tmp_path: Path):
    kinds = cycle(KINDS)
    for name in systems.names():
        page = systems.page_of(name, "a2c" if name == "pbt" else None)
        for preset in ["auto", *_presets.names(page)]:
            words = [
                "--images",
                "none",
                *(["--preset", preset] if preset != "auto" else []),
            ]  # describes no environment
            path = tmp_path / f"{name}-{preset}{next(kinds)}"
            assert_same(*again(page, words, path), path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_with_its_environment_in_each_format(tmp_path: Path, kind: str):
    for name in systems.names():
        page = systems.page_of(name, "dqn" if name == "pbt" else None)
        for preset in ["auto", *_presets.names(page)]:
            path = tmp_path / f"{name}-{preset}{kind}"
            assert_same(*again(page, ["--preset", preset] if preset != "auto" else [], path), path)


GIVEN = {  # a system → words of all kinds of options
    "ppo": "--env CartPole-v1 --hidden 64 32 --loss my.module:loss --learning-rate 3e-4 --steps 5k --no-tensorboard",
    "impala": "--env toy:catch:2,toy:memory --task-input onehot --actors 3 --place act[0-1]=here,act[2]=even --seed 7",
    "sac": "--env my.module:make --env-kwargs gravity=-9.8 name='a,\"b' --wrapper a:b c:d --minutes 0.1 --frames 1e6",
    "dqn": "--env toy:catch --change learning_rate=1e-3@0,1e-4@0.5 --until-return none --run here/there --network m:f",
    "pbt": "--over a2c --env toy:catch --vary learning_rate=log:1e-4:1e-2 unroll=5,10 --every 1k --steps 2k",
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_values_are_written_and_read_again(tmp_path: Path, kind: str):
    for name, line in GIVEN.items():
        page, path = systems.page_of(name, "a2c" if name == "pbt" else None), tmp_path / f"{name}{kind}"
        (_, _, was), (_, _, sources) = choices = again(page, line.split(), path)
        assert [choice[:2] for choice in choices[1:]] == [choices[0][:2]]
        given = {k for k, source in was.items() if source == "command line"}
        assert {k for k, source in sources.items() if source.startswith("config")} - given <= {"network"}  # of --hidden
        assert given <= {k for k, source in sources.items() if source.startswith("config")}


def values(hint: Any) -> st.SearchStrategy:
    """Values of an option's type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in flags.UNIONS:
        kind = next(a for a in args if a is not type(None))
        return st.none() | values(kind).filter(lambda v: str(v).lower() != "none")
    if origin is Annotated:
        low, high = args[1].low, min(args[1].high, 1e30)
        whole = st.integers(int(low), int(high)) if args[0] is int else st.floats(low, high)
        return whole.filter(lambda v: v in args[1])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        inner = values(args[0])
        return st.lists(inner, max_size=4).map(tuple) if args[-1:] == (...,) else st.tuples(*map(values, args))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(ODD)
    return {bool: st.booleans(), int: st.integers(), float: st.floats(-1e30, 1e30), str: text}[hint]


ODD = [
    "~",
    "null",
    "true",
    "on",
    "1e-4",
    "12:30",
    "a,b",
    "x=1,2",
    "- a",
    "# a",
    "'",
    '"',
    "\\",
    "\n",
    "\x7f",
    "\u2028",
    "",
]
TYPES = {
    f"{name}.{option}": hint
    for name in systems.names()
    for option, hint in flags.option_types(load(name).Config, RunOptions).items()
}
HINTS = list({repr(hint): hint for hint in TYPES.values()}.values())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({f"o{i}": values(hint) for i, hint in enumerate(HINTS)}), st.sampled_from(KINDS))
def test_any_value_of_any_option_survives_a_file(tmp_path: Path, found: dict[str, Any], kind: str):
    path = tmp_path / f"any{kind}"
    contents = {"system": "x", **{k: run_options.json_value(v) for k, v in found.items()}, "defaults": {}}
    path.write_text(option_file._text(contents, kind), "utf-8")
    types = {f"o{i}": hint for i, hint in enumerate(HINTS)}
    assert read_option_file(path).checked("x", types, {}) == found


def test_a_line_above_the_defaults_overrides_them_and_one_changed_there_is_a_persons(tmp_path: Path):
    path = tmp_path / "a.toml"
    write_option_file(path, "a2c", *run_options.parse(load("a2c"), ["--env", "toy:catch"]))
    text = path.read_text().replace("gamma = 0.99", "gamma = 0.9")
    path.write_text(f"num-envs = 8\n{text}")
    settings, _, sources = run_options.parse(load("a2c"), [], file=read_option_file(path))
    assert (settings.lanes, settings.gamma) == (8, 0.9)
    assert {k for k, source in sources.items() if source.startswith("config")} == {"env", "lanes", "gamma"}


# Mistakes.


WRONG = {
    "unknown.toml": ("system = 'a2c'\nlane = 3\n", "unknown.toml: lane: 3 given, but a2c has no such option; did you"),
    "other.yaml": ("system: a2c\ncapacity: 10k\n", "other.yaml: capacity: 10k given, but a2c has no such option; "),
    "value.toml": (
        "system = 'a2c'\nlanes = 'many'\n",
        "value.toml: lanes: 'many' given, allowed: a whole number from 1",
    ),
    "range.json": ('{"system": "a2c", "lanes": -1}', "range.json: lanes: '-1' given, allowed: a whole number from 1"),
    "choice.yaml": (
        "system: a2c\non: thred\n",
        "choice.yaml: on: 'thred' given, allowed: process, thread; did you mean ",
    ),
    "preset.toml": ("system = 'a2c'\npreset = 'papr'", "did you mean paper?; FOLDER/preset.toml has preset = papr"),
    "limit.yaml": ("system: a2c\nsteps: 5\nframes: 9", "one of them; FOLDER/limit.yaml has steps = 5, frames = 9"),
    "words.json": (
        '{"system": "a2c", "change": ["x"]}',
        "as in learning_rate=1e-3@0.5; FOLDER/words.json has change = x",
    ),
    "twice.toml": ("num-envs = 3\nlanes = 3\nsystem = 'a2c'\n", "twice.toml: lanes: given twice, allowed: each option"),
    "twice.json": ('{"lanes": 1, "lanes": 2}', "cannot be read: lanes is there twice; write options such as"),
    "twice.yaml": ("lanes: 1\nlanes: 2\n", "cannot be read: lanes is there twice; write options such as lanes: 8"),
    "deep.toml": (
        "system = 'a2c'\n[hidden]\na = 1\n",
        "deep.toml: hidden: a table or lists in a list given, allowed: any",
    ),
    "deep.json": (
        '{"system": "a2c", "hidden": [[3]]}',
        "deep.json: hidden: a table or lists in a list given, allowed: ",
    ),
    "defaults.toml": ("defaults = 3\n", "defaults.toml: defaults: 3 given, allowed: a table of options"),
    "torn.toml": ("lanes = 3\nenv = CartPole-v1\n", "at line 2, column 7); write options such as lanes = 8"),
    "torn.json": ("{", "cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); "),
    "torn.yaml": (
        "a: [1\nb: 2",
        "cannot be read: expected ',' or ']', but got ':' (at line 2, column 2); write options",
    ),
    "nul.yaml": ("a: \0", "cannot be read: unacceptable character #x0000: special characters are not allowed"),
    "many.yaml": ("a: &a [1]\nb: [*a, *a]\n", "cannot be read: it has references (*NAME)"),
    "code.yaml": (
        "system: a2c\nlanes: !!python/name:os.system",
        "code.yaml: lanes: 'None' given, allowed: a whole number",
    ),
    "list.json": ("[1]", "cannot be read: it must map options to values; write options such as {"),
    "list.yaml": ("- a", "cannot be read: it must map options to values; write options such as lanes: 8"),
    "empty.toml": ("# nothing", "cannot be read: it is empty; write options such as lanes = 8"),
    "empty.yaml": ("", "cannot be read: it is empty"),
    "empty.json": (" \n", "cannot be read: it is empty"),
    "options.txt": (
        "lanes = 3",
        "its name ends in .txt; give a directory of a run, or a text file .toml, .yaml or .json",
    ),
    "none.toml": ("lanes = 3\n", "names no system"),
    "system.toml": ("system = 'pp'\n", "system.toml: system: pp given, allowed: a2c, "),
    "sweep.toml": (
        "system = 'a2c'\nseeds = 3\n",
        "a file of several runs is for --sweep: polyplay train --sweep FOLDER/",
    ),
    "schema.json": ('{"schema": 99, "system": "a2c"}', "this version reads schema 1 only"),
    "damaged.json": ('{"schema": 1, "system": "a2c"}', "missing or malformed: config, environment, machine, options"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_a_file_are_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture):
    text, message = WRONG[name]
    (tmp_path / name).write_text(text)
    line = refused(capsys, "train", "--config", tmp_path / name)
    assert message.replace("FOLDER", str(tmp_path)) in line
    assert str(tmp_path / name) in line


def test_files_that_cannot_be_read_or_written_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    cure = "give a directory of a run, or a text file .toml, .yaml or .json"
    for name, why in {
        "absent.toml": "No such file or directory",
        ".": "No such file",
        "picture.yaml": "it is not a text",
    }.items():
        line = refused(capsys, "train", "--config", tmp_path / name)
        assert f"cannot be read: {why}" in line
        assert cure in line
    taken = {"picture.yaml": "exists already; name another file", "no/a.toml": "cannot be written: No such file"}
    for name, why in {**taken, "a.ini": "given, allowed: a file .toml, .yaml or .json"}.items():
        assert why in refused(capsys, "train", "a2c", "--env", "toy:catch", "--save-config", tmp_path / name)
    both = ("--save-config", "a.toml", "--seeds", "0..1")
    assert "one file to write, of one run: without --seeds and --sweep" in refused(capsys, "train", "a2c", *both)


def test_a_refused_combination_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "a.toml"
    path.write_text('system = "ppo"\nenv = "CartPole-v1"\nlanes = 3\ncore = "lstm"\nminibatches = 2\n')
    line = refused(capsys, "train", "--config", path, "--dry-run")
    assert f"minibatches 2 (config {path})" in line


# Sweeps.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((["0..3"], [0, 1, 2, 3]), (["0", "7"], [0, 7]), (["2,1"], [2, 1]), (["0..1", "1,5"], [0, 1, 5])),
        *(([word], None) for word in ("x", "3..1", "-1", "1,", "")),
        ([], None),
    ],
)
def test_seeds_as_they_are_written(words: list[str], expected: list[int] | None):
    if expected is not None:
        assert parse_seeds(words) == expected
        return
    with pytest.raises(UserError, match=r"--seeds '.*': must be whole numbers from 0, such as 0\.\.4"):
        parse_seeds(words)


BASE = 'system = "a2c"\nenv = "toy:catch"\n'
SWEEPS = {
    ".toml": BASE + 'seeds = "0..1"\n[grid]\nlearning-rate = [1e-4, 3e-4, 3e-4]\nhidden = [[64, 64], "32"]\n',
    ".yaml": "system: a2c\nenv: toy:catch\nseeds: [0, 1]\n"
    "grid:\n  learning_rate: [1e-4, 3e-4]\n  hidden: [[64, 64], [32]]\n",
}


def parts_of(path: Path, given: tuple[str, ...] = ()) -> list[option_file.SweepPart]:
    types = flags.option_types(load("a2c").Config, RunOptions)
    return read_sweep(path, given).parts("a2c", types, given)


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_is_every_combination_of_its_lists_for_one_seed_after_the_other(tmp_path: Path, kind: str):
    path = tmp_path / f"s{kind}"
    path.write_text(SWEEPS[kind])
    parts = parts_of(path)
    rates, hidden = (1e-4, 1e-4, 3e-4, 3e-4), ((64, 64), (32,), (64, 64), (32,))
    assert [part.seed for part in parts] == [0] * 4 + [1] * 4
    for part, rate, sizes in zip(parts, rates * 2, hidden * 2, strict=True):
        settings, options, _ = run_options.parse(load("a2c"), [], file=part.file)
        assert (settings.learning_rate, options.hidden) == (rate, sizes)
    names = [str(part.directory(Path("runs"))) for part in parts]
    assert names[0] == "runs/learning_rate=0.0001,hidden=64-64/seed-0"
    assert names[-1] == "runs/learning_rate=0.0003,hidden=32/seed-1"
    assert len({*names}) == 8


def test_directories_of_a_sweep_are_short_and_all_different(tmp_path: Path):
    path = tmp_path / "s.toml"
    path.write_text('system = "a2c"\n[grid]\nenv = ["toy:catch", "toy/catch"]\n')
    assert [part.name for part in parts_of(path)] == ["grid-0", "grid-1"]
    path.write_text(f'system = "a2c"\n[grid]\nenv = ["{"a" * 300}", "b"]\nlanes = [1]\n')
    assert [part.name for part in parts_of(path)] == ["grid-0", "grid-1"]


def test_a_written_file_becomes_a_sweep_by_a_table(tmp_path: Path):
    path = tmp_path / "s.toml"
    write_option_file(path, "a2c", *run_options.parse(load("a2c"), ["--env", "toy:catch"]))
    path.write_text(f'seeds = "2"\n{path.read_text()}\n[grid]\nlanes = [4, 8]\ntensorboard = [false]\n')
    parts = parts_of(path)
    found = [run_options.parse(load("a2c"), [], file=part.file) for part in parts]
    assert [(s.lanes, o.tensorboard, k["lanes"]) for s, o, k in found] == [(n, False, f"config {path}") for n in (4, 8)]
    assert [part.name for part in parts] == ["lanes=4,tensorboard=false", "lanes=8,tensorboard=false"]


BAD_SWEEPS = {
    "": 'nothing to vary: write seeds = "0..4", or a table [grid] with lists such as lanes = [8, 16]; --config trains',
    "[grid]\n": "nothing to vary",
    "grid = 3\n": "nothing to vary",
    "seeds = 'x'\n": "seeds 'x': must be whole numbers from 0",
    "seeds = 3\nseed = 3\n": "seed: 3 given, and seeds too: leave one out",
    "lanes = 3\n[grid]\nnum_envs = [4, 8]\n": "grid: num_envs: 4 8 given, and lanes above the grid too: leave one out",
    "[grid]\nlr = [1e-3]\n": "lr: 0.001 given, but a2c has no such option; did you mean learning_rate?",
    "[grid]\nlanes = 8\n": "grid: lanes: 8 given, allowed: a list of values in brackets, each tried once",
    "[grid]\nlanes = []\n": "grid: lanes: an empty list given, allowed: a list of values",
    "[grid.lanes]\na = 8\n": "lanes: a table given, allowed: a list of values",
    "[grid]\nlanes = [8, 'x']\n": "grid: lanes: 'x' given, allowed: a whole number",
    "[grid]\nseed = [1]\n": 'grid: seed: 1 given, but all runs share it: write seeds = "0..4" above the grid',
    "[grid]\nrun = ['a']\n": "grid: run: a given, but all runs share it: write it above the grid",
    "[grid]\npreset = ['paper', 'x']\n": "--preset: 'x' given, allowed for a2c: auto, paper, quick, ",
}


@pytest.mark.parametrize("text", BAD_SWEEPS)
def test_mistakes_in_a_sweep_are_one_line_before_any_run_starts(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture
):
    path = tmp_path / "s.toml"
    path.write_text(BASE + text)
    line = refused(capsys, "train", "--sweep", path)
    assert BAD_SWEEPS[text] in line
    assert str(path) in line


def test_the_guides_sweep_has_as_many_runs_as_its_slurm_array(tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs/guides/populations.md").read_text()
    file, script = re.findall(r"```text\n(.*?)```", text, re.S)
    (tmp_path / "rates.toml").write_text(file)
    (last,) = re.findall(r"--array=0-(\d+)\n", script)
    assert script.splitlines()[-1] == "polyplay train --sweep rates.toml --part $SLURM_ARRAY_TASK_ID"
    types = flags.option_types(load("ppo").Config, RunOptions)
    assert len(read_sweep(tmp_path / "rates.toml", ()).parts("ppo", types, ())) == int(last) + 1


def test_a_sweep_of_a_population_names_its_system(tmp_path: Path):
    file = OptionFile(Path("s.toml"), "pbt", {"over": "a2c"}, option="--sweep")
    types = flags.option_types(systems.page_of("pbt", "a2c").Config, RunOptions)
    sweep = option_file.Sweep(replace(file, values={}), None, {"over": ["a2c", "dqn"]})
    with pytest.raises(UserError, match="grid: over: a2c dqn given, but all runs share it: write a file for each"):
        sweep.parts("pbt", types, ())
