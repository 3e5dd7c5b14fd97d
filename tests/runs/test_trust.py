"""A run made elsewhere executes nothing of this machine's, nor of its own, without a word."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.population.store import Store
from polyplay.runs import directory, population
from polyplay.runs import run as runs
from polyplay.runs.directory import read_config
from tests import made
from tests.verbs import refused

ENV = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of an environment in a module of the current directory, which nobody has imported since."""
    (tmp_path / "strange_game.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = made.run(tmp_path / "run", env="strange_game:make", ended=False, serial=True, steps=100)
    (tmp_path / "strange_game.ran").unlink()
    monkeypatch.delitem(sys.modules, "strange_game")
    return run


def edit(path: Path, **changes: object) -> None:
    """Write other values into a run's files: those of `config`, `options`, or of the file itself."""
    contents = json.loads(path.read_text())
    for name, value in changes.items():
        where = next((contents[part] for part in ("config", "options") if name in contents.get(part, {})), contents)
        where[name] = value
    path.write_text(json.dumps(contents))


def test_ones_own_run_says_which_file_it_executes(run: Path, capfd: pytest.CaptureFixture):
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    said = f"polyplay: the run's --env strange_game:make executes strange_game of {run.parent / 'strange_game.py'}\n"
    assert capfd.readouterr().err.startswith(said)


VERBS = ["evaluate", "resume", "resume --dry-run", "export --onnx x.onnx", "evaluate --verify", "train --config"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_strangers_run_needs_trust(verb: str, run: Path, monkeypatch, capfd: pytest.CaptureFixture):
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    evaluation = dict.fromkeys(("versions", "machine", "starts"), None) | {"returns": [1.0], "episodes": 1}
    evaluation |= {"episodic_return_mean": 1.0, "config_hash": "", "protocol": "run", "lanes": 1, "seed": 0}
    evaluation |= {"epsilon": 0.0, "actions": "sampled", "checkpoint": "7", "checkpoint_sha256": ""}
    (run / "evaluation-7.json").write_text(json.dumps(evaluation))
    name, *more = verb.split()
    words = [name, *more, run] if name == "train" else [name, run, *more]
    err = refused(capfd, *words)
    file = run.parent / "strange_game.py"
    assert f"made elsewhere, and its --env strange_game:make would execute strange_game of {file}: read that" in err
    assert err.endswith("then give these options as well" if name == "train" else "then say --trust")
    assert not (run.parent / "strange_game.ran").exists()


def test_a_word_is_enough_and_a_changed_name_is_not_ones_own(run: Path, monkeypatch):
    edit(run / "config.json", env="other_game:make")
    with pytest.raises(UserError, match=r"would execute the module other_game \(not found here\)"):
        polyplay.evaluate(run, episodes=1)
    edit(run / "config.json", env="strange_game:make")
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    assert polyplay.evaluate(run, episodes=1, trust=True)["episodes"] == 1
    again = polyplay.train(config=run, env="strange_game:make", run=run.parent / "again", steps=10, quiet=True)
    assert again.exit_code == 0, "what is given anew is the caller's own"


def test_other_environments_need_none(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture):
    run = made.run(tmp_path / "run")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "executes" not in capfd.readouterr().err
    assert "signature" not in json.loads((run / "config.json").read_text())


CODE: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    *(({"env": name}, []) for name in ("ALE/Pong-v5", "toy:catch", "game:connect:4x5x3", "envpool:Pong-v5", "A-v1")),
    *(({"env": name}, [("env", name)]) for name in ("a:b", "toy:a:b", "__main__:Follow", "minigrid:MiniGrid-S7-v0")),
    *(({"env": name}, []) for name in ("@atari57", "ALE/Pong-v5,A-v1:2", "game:spiel:mnk(m=4,n=5,k=3)")),
    *(({"env": name}, [("env", name)]) for name in ("@evil.txt", "@/tmp/evil", "@evil:make")),
    ({"env": "A-v1,evil:make:2,toy:b:C"}, [("env", "evil:make"), ("env", "toy:b:C")]),
    ({"env": "A-v1,@evil.txt"}, [("env", "@evil.txt")]),
    *(({"network": f"{name}:fn"}, [("network", f"{name}:fn")]) for name in ("evil", "game", "toy", "arena", "envpool")),
    ({"wrapper": ["game:fn", "b:c"]}, [("wrapper", "game:fn"), ("wrapper", "b:c")]),
    ({"wrapper": {"strange:wrap": 0}}, [("wrapper", "strange:wrap")]),
    ({"network": "mlp(8)", "wrapper": 3, "env_kwargs": None, "vary": "x", "hosts": []}, []),
    ({"env_options": ["a:b"]}, [("env_options", "a:b")]),
    ({"env_options": ["level=3", "at=12:30"]}, []),
    (
        {"env_kwargs": ["wrappers=['evil:fn']", "make={'a': ['b:c']}"]},
        [("env_kwargs", "evil:fn"), ("env_kwargs", "b:c")],
    ),
    ({"env_kwargs": ["gravity=-9.8", "map_name='8x8'", "desc=['SF', 'HG']", "size={'a':1}", "at=12:30"]}, []),
    ({"env_kwargs": ["page=http://x/y"]}, []),
    ({"vary": ["learning_rate=log:1e-5:1e-2", "network=mlp,strange:net"]}, [("vary", "strange:net")]),
    *(({"hosts": name}, []) for name in (None, "none", "ray", "local:2")),
    ({"hosts": "ray:203.0.113.1:6379"}, [("hosts", "ray:203.0.113.1:6379")]),
]


@pytest.mark.parametrize(("values", "code"), CODE)
def test_what_a_run_executes_by_name(values: dict[str, Any], code: list[tuple[str, str]]):
    assert directory.code_of({"config": values}) == directory.code_of({"config": {}, "options": values}) == code


def test_a_module_within_packages_is_found_and_nothing_executed(tmp_path: Path, monkeypatch):
    package = tmp_path / "strange_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    config = {"config": {"env": "strange_package.game:make", "network": "stranger.net:make"}}
    with pytest.raises(UserError, match=r"\.game of .*strange_package/__init__\.py and its --network .* \(not found"):
        directory.check_trust(tmp_path, config, False)


def test_a_run_that_cannot_be_signed_is_a_strangers(run: Path, monkeypatch):
    (run.parent / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "file"))  # also for root nothing can be made within a file
    contents = read_config(run)
    assert directory.signature(contents) is None
    assert not directory.is_ours(contents)


def test_resume_auto_trusts_what_its_own_command_names(run: Path, monkeypatch):
    trusted: list[bool] = []

    def resume(directory: Path, changes: object, trust: bool, *others: object) -> runs.RunResult:
        trusted.append(trust)
        return runs.RunResult(directory)

    monkeypatch.setattr(runs, "resume", resume)
    for given in ({}, {"env": "strange_game:make"}):
        polyplay.train("a2c", run=str(run), resume="auto", **given)
    assert trusted == [False, True]


def test_what_a_program_defines_is_a_name_too(tmp_path: Path, capfd: pytest.CaptureFixture):
    """A program's own run is signed; a stranger's calls nothing that happens to be there."""
    run = made.run(tmp_path / "run")
    target = tmp_path / "written"
    kwargs = [f"path={str(target)!r}", "data=b'owned'"]
    edit(run / "config.json", env="__main__:__loader__.set_data", env_kwargs=kwargs)
    for verb in ("evaluate", "resume"):
        err = refused(capfd, verb, run)
        assert "its --env __main__:__loader__.set_data would execute __loader__.set_data of the program" in err
    with pytest.raises(UserError, match="which is not here"):
        polyplay.evaluate(run, episodes=1, trust=True)
    assert not target.exists()


def test_wrappers_are_no_argument(tmp_path: Path):
    with pytest.raises(UserError, match=r"--env-kwargs: wrappers given, .*: --wrapper module:callable"):
        polyplay.train("ppo", env="CartPole-v1", env_kwargs={"wrappers": ["evil:fn"]}, dry_run=True)


def test_a_list_that_is_no_list_hides_no_name(tmp_path: Path):
    run = made.run(tmp_path / "run")
    edit(run / "config.json", wrapper={"strange:wrap": 0})
    for call in (polyplay.evaluate, polyplay.resume, polyplay.load):
        with pytest.raises(UserError, match="its --wrapper strange:wrap would execute"):
            call(run)
    with pytest.raises(UserError, match=r"config\.json: wrapper"):
        polyplay.evaluate(run, episodes=1, trust=True)


def population_of(path: Path, network: str = "mlp", **config: object) -> Path:
    """The directory of a population of one member, made elsewhere."""
    member = made.run(path / "members" / "00")
    contents = json.loads((member / "config.json").read_text())
    contents["config"] |= {"over": "a2c", "vary": [], **config}
    contents["system"] = "pbt"
    (path / "config.json").write_text(json.dumps(contents))
    values = {"network": network}
    row = {"member": 0, "values": values, "state": "waiting", "score": 1.0, "steps": 9, "wall_seconds": 1.0}
    about = {"schema": 1, "over": "a2c", "exploit": "none", "explore": "none", "score": "games", "vary": {}}
    (path / "population.json").write_text(json.dumps({**about, "every": 1, "total": 9, "members": [row]}))
    line = {"decision": 0, "member": 0, "donor": None, "steps": 0, "old": {}, "new": values}
    lines = [line, {**line, "decision": 1, "steps": 9}]
    (path / "lineage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path


def test_members_execute_only_what_their_population_names(tmp_path: Path):
    def check(run: Path) -> None:
        population._check_code(Store(run), read_config(run, population=True))

    with pytest.raises(UserError, match=r"population\.json is damaged: its network strange:net is not the run's own"):
        check(population_of(tmp_path / "one", "strange:net"))
    other = population_of(tmp_path / "other")
    edit(other / "members" / "00" / "config.json", env="strange:make")
    with pytest.raises(UserError, match="members/00 is damaged: its env strange:make is not the run's own"):
        check(other)
    edit(other / "members" / "00" / "config.json", env="toy:catch")
    check(other)
    edit(other / "config.json", vary=["network=mlp,strange:net"])
    with pytest.raises(UserError, match="its --vary strange:net would execute the module strange"):
        polyplay.resume(other)


def test_verify_executes_no_command_that_an_evaluation_names(tmp_path: Path):
    """One's own evaluation against a program carries a signature, and says so only for what was recorded."""
    record = {"against": f"gtp:touch {tmp_path}/ran", "checkpoint_sha256": "0", "finished": "now"}
    path = tmp_path / "evaluation-7.json"
    with pytest.raises(UserError, match=r"evaluation-7\.json was made elsewhere, and would execute the command touch"):
        directory.check_program(path, record, False)
    directory.check_program(path, record, True)
    directory.check_program(path, {"against": "random"}, False)
    assert directory.program_signature({"against": "random"}) is None
    own = {**record, "signature": directory.program_signature(record)}
    directory.check_program(path, own, False)
    with pytest.raises(UserError, match="made elsewhere"):
        directory.check_program(path, {**own, "against": "gtp:touch other"}, False)
