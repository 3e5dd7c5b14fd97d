"""From words, keywords and files to options, and what is one line about them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.runs import flags
from polyplay.runs import options as run_options
from polyplay.runs.options import RunOptions
from tests.fakepage import Config, page

PAGE = page()


def parse(line: str) -> tuple[Config, RunOptions, dict[str, str]]:
    return run_options.parse(PAGE, line.split())


def test_preset_fills_and_flags_override_and_sources_tell():
    settings, options, sources = parse("--preset quick --lanes 8 --frames 10M --seed=3")
    assert settings == replace(Config(), frames=10_000_000, lanes=8, learning_rate=1e-3)
    assert options == RunOptions(seed=3, preset="quick")
    given = dict.fromkeys(("lanes", "frames", "preset", "seed"), "command line")
    expected = {**dict.fromkeys(sources, "default"), "learning_rate": "preset quick", **given}
    assert sources == expected


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--env-id CartPole-v1", "env", "CartPole-v1"),
        ("--total-timesteps 5", "steps", 5),
        ("-n 1e3", "steps", 1000),
        ("--frames 2.5k", "frames", 2500),
        ("--learning-rate -.5", "learning_rate", -0.5),
        ("--learning-rate 1 --learning-rate 2", "learning_rate", 2.0),
        ("--sizes 3 4 5", "sizes", (3, 4, 5)),
        ("--sizes=3,4", "sizes", (3, 4)),
        ("--sizes=", "sizes", ()),
        ("--crop 3 .25", "crop", (3, 0.25)),
        ("--lstm", "lstm", True),
        ("--lstm --no-lstm", "lstm", False),
        ("--lstm true", "lstm", True),
        ("--tensorboard=false", "tensorboard", False),
        ("--clip None", "clip", None),
    ],
)
def test_every_spelling_of_a_value(line: str, name: str, value: Any):
    settings, options, sources = parse(line)
    got = {**vars(options), **vars(settings)}[name]
    assert (got, type(got), sources[name]) == (value, type(value), "command line")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--entrpy-cost 3", "unknown option --entrpy-cost for polyplay train fake; did you mean --entropy-cost?"),
        ("--learnrate 3", "did you mean --learning-rate?"),
        ("--n-envs 3", "did you mean --lanes?"),
        ("--track", "unknown option --track for polyplay train fake; did you mean --wandb?"),
        ("--ent-coef 3", "did you mean --entropy-cost?"),
        ("--no-env", "unknown option --no-env"),
        ("-lanes 3", "unknown option -lanes for polyplay train fake; did you mean --lanes?"),
        ("--zzzzzz", "unknown option --zzzzzz for polyplay train fake; --help-all lists all options"),
        ("--learning-rate abc", "--learning-rate: 'abc' given, allowed: a finite number"),
        ("--lanes 1.5", "--lanes: '1.5' given, allowed: a whole number"),
        ("--frames 1e-3", "--frames: '1e-3' given, allowed: a whole number from 1 to 1e12"),
        ("--lanes", "--lanes needs a value: a whole number"),
        ("--env=", "--env needs a value: text"),
        ("--network natur", "--network: 'natur' given, allowed: nature, impala, mlp; did you mean nature?"),
        ("--sizes", "--sizes needs a value: any number of values, each a whole number; --sizes= for none"),
        ("--sizes 3 x", "--sizes: '3 x' given, allowed: any number of values, each a whole number"),
        ("--crop 3", "--crop: '3' given, allowed: 2 values: a whole number, a finite number"),
        ("--lstm maybe", "--lstm: 'maybe' given, allowed: true or false"),
        ("--no-lstm=true", "unknown option --no-lstm for polyplay train fake; did you mean --lstm?"),
        ("--clip x", "--clip: 'x' given, allowed: a finite number, or none for the default"),
        ("Pong", "unexpected 'Pong' for polyplay train fake: options begin with --; did you mean --env Pong?"),
        ("--preset quik", "--preset: 'quik' given, allowed for fake: auto, paper, quick; did you mean quick?"),
        ("--frames 8 --steps 2", "--frames 8 and --steps 2 set the same limit: give one of them"),
        ({"entrpy_cost": 1}, "unknown keyword entrpy_cost for fake; did you mean entropy_cost?"),
        ({"lanes": "3"}, "lanes: '3' given, allowed: a whole number"),
        ({"lanes": float("inf")}, "lanes: 'inf' given, allowed: a whole number"),
        ({"lstm": 1}, "lstm: '1' given, allowed: true or false"),
        ({"sizes": "33"}, "sizes: '33' given"),
        ({"crop": (1, 2, 3)}, "crop: '1 2 3' given"),
    ],
)
def test_every_mistake_is_one_line_that_names_it(line: Any, says: str, capfd: pytest.CaptureFixture):
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        parse(line) if isinstance(line, str) else run_options.resolve(PAGE, **line)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def make_env() -> None:
    """A factory, for its name."""


def test_keywords_are_the_same_as_flags_and_take_callables_paths_and_numpy_numbers():
    kw: dict[str, Any] = {"env": "CartPole-v1", "frames": 100, "preset": "quick", "sizes": [1, 2], "learning_rate": 1}
    settings, options, sources = run_options.resolve(PAGE, **kw)
    flat = parse("--env CartPole-v1 --frames 100 --preset quick --sizes 1 2 --learning-rate 1")
    assert (settings, options, sources["env"], sources["lanes"]) == (*flat[:2], "keyword", "preset quick")
    assert isinstance(settings.learning_rate, float)
    more: dict[str, Any] = {"lanes": np.int64(3), "run": Path("a/b"), "total_timesteps": 9, "minutes": 2}
    settings, options, _ = run_options.resolve(PAGE, env=make_env, **more)
    assert (settings.env, settings.lanes, type(settings.lanes)) == (make_env, 3, int)
    assert (options.run, options.steps, options.minutes) == ("a/b", 9, 2.0)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    st.builds(
        Config,
        env=st.text(min_size=1),
        lanes=st.integers(),
        learning_rate=NUMBERS,
        network=st.sampled_from(["nature", "impala", "mlp"]),
        sizes=st.lists(st.integers(), max_size=3).map(tuple),
        crop=st.tuples(st.integers(), NUMBERS),
        lstm=st.booleans(),
        clip=st.none() | NUMBERS,
    )
)
def test_json_round_trip_is_exact(value: Config):
    there = json.loads(json.dumps(run_options.to_json(value), allow_nan=False))
    assert run_options.from_json(Config, there) == value


def test_json_that_does_not_fit_names_every_field():
    data = run_options.to_json(Config(env=make_env))  # type: ignore[arg-type]
    assert data["env"] == f"{__name__}:make_env"
    with pytest.raises(UserError, match=r"config.json: lanes: 'x' given, allowed: a whole number"):
        run_options.from_json(Config, {**data, "lanes": "x"})
    with pytest.raises(UserError, match=r"does not fit Config .*: unknown: nolanes"):
        run_options.from_json(Config, {**data, "nolanes": 3})
    del data["lanes"]
    assert run_options.from_json(Config, data).lanes == Config().lanes


def test_override_replaces_one_limit_by_the_other():
    def changed(options: RunOptions, **changes: int) -> tuple[int, RunOptions]:
        settings, others = run_options.adjust(PAGE, Config(), changes)
        return settings.frames, run_options.override(options, others)

    assert changed(RunOptions(steps=3, keep=2), frames=8) == (8, RunOptions(keep=2))
    assert changed(RunOptions(), steps=9) == (Config.frames, RunOptions(steps=9))
    assert changed(RunOptions(steps=3), keep=9) == (Config.frames, RunOptions(steps=3, keep=9))
    with pytest.raises(UserError, match="same limit"):
        changed(RunOptions(), steps=9, frames=9)


def test_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_options.time, "strftime", lambda form: "20260101-120000")

    def made(env: Any, **options: Any) -> str:
        return str(run_options.new_directory("a2c", env, RunOptions(**options)))

    first = "runs/a2c-Pong-v5-3-20260101-120000"
    assert [made("ALE/Pong-v5", seed=3), made("ALE/Pong-v5", seed=3)] == [first, f"{first}-2"]
    assert made(make_env) == "runs/a2c-make_env-0-20260101-120000"
    assert made("my.module:make") == "runs/a2c-my.module-make-0-20260101-120000"
    assert (made("x", run="here/there"), Path("here/there").is_dir()) == ("here/there", True)
    Path("config.json").write_text("{}")
    with pytest.raises(UserError, match=r"--run: \. holds a run already; `polyplay resume \.`"):
        made("x", run=".")
    with pytest.raises(UserError, match=r"--run: cannot make the directory config\.json/a: Not a directory"):
        made("x", run="config.json/a")


@dataclass(frozen=True)
class Few:
    """Two options."""

    frames: int | None = None  # how many
    quiet: bool = False  # say less of what is going on, which is a longer description, so that it has two lines


def test_read_flags_returns_which_were_given():
    assert flags.read_flags(Few, ["--frames", "2M"], "polyplay x") == (Few(frames=2_000_000), {"frames"})
    assert flags.read_flags(Few, [], "polyplay x") == (Few(), set())
    assert flags.read_flags(Few, ["--no-quiet"], "polyplay x") == (Few(), {"quiet"})


def test_an_alias_is_suggested_only_where_its_option_is():
    assert flags.nearest_flag("total_timestep", ["steps"], flags.flag) == "; did you mean --total-timesteps?"
    assert "total" not in flags.nearest_flag("total_timestep", ["frames"], flags.flag)


def test_help_prints_and_exits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(flags.Help) as caught:
        flags.read_flags(Few, ["--help-all"], "polyplay x RUN", "About it.")
    caught.value.show()
    expected = [
        *("usage: polyplay x RUN [--OPTION VALUE …]", "", "About it.", "Two options.", ""),
        "╭─ x options ──────────────────────────────────────────────╮",
        "│ --frames  how many (default: none)                       │",
        "│ --quiet   say less of what is going on, which is a       │",
        "│           longer description, so that it has two lines   │",
        "│           (default: off)                                 │",
        "╰──────────────────────────────────────────────────────────╯",
    ]
    assert (caught.value.code, capsys.readouterr().out.splitlines()) == (0, expected)


def test_every_option_is_in_one_group_and_no_group_names_one_that_is_not_there():
    run, there = [f.name for f in fields(RunOptions)], set[str]()
    for name in systems.names():
        own = [f.name for f in fields(systems.load(name).Config)]
        grouped = [name for group in run_options.grouped(own, run).values() for name in group]
        assert sorted(grouped) == sorted([*own, *run]), "a page's option has the name of one that every run has"
        there |= {*grouped}
    named = " ".join(run_options.GROUPS.values()).split()
    assert len(named) == len(set(named))
    assert set(named) <= there


def test_workers_make_their_own_by_the_same_arguments():
    env = gymnasium.make("CartPole-v1", max_episode_steps=5, render_mode="rgb_array", sutton_barto_reward=True)
    assert run_options.made_from(env) == ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 5})
    settings, _, _ = run_options.resolve(PAGE, env=env)
    assert settings.env == "CartPole-v1"


def test_one_that_cannot_be_made_again_is_a_line():
    wrapped = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda r: r)
    for env in (wrapped, type(wrapped.unwrapped)()):
        with pytest.raises(UserError, match="which workers cannot make again; give a function that makes one"):
            run_options.resolve(PAGE, env=env)
