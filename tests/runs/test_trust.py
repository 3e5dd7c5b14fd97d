"""A run made elsewhere executes nothing of this machine's, nor of its own, without a word."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

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
    """A run of an environment in a module of the current directory."""
    (tmp_path / "strange_game.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return made.run(tmp_path / "run", env="strange_game:make", ended=False, serial=True, steps=100)


def test_ones_own_run_says_which_file_it_executes(run: Path, capfd: pytest.CaptureFixture):
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    file = run.parent / "strange_game.py"
    assert capfd.readouterr().err.startswith(f"polyplay: the run's environment strange_game:make executes {file}\n")


@pytest.mark.parametrize("verb", ["evaluate", "resume", "resume --dry-run", "export --onnx x.onnx", "verify"])
def test_a_strangers_run_needs_trust(verb: str, run: Path, monkeypatch, capfd: pytest.CaptureFixture):
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    (run.parent / "strange_game.ran").unlink(missing_ok=True)
    monkeypatch.delitem(sys.modules, "strange_game", raising=False)
    name, *more = verb.split()
    if name == "verify":
        evaluation = dict.fromkeys(("versions", "machine", "starts"), None) | {"returns": [1.0], "episodes": 1}
        evaluation |= {"episodic_return_mean": 1.0, "config_hash": "", "protocol": "run", "lanes": 1, "seed": 0}
        evaluation |= {"epsilon": 0.0, "actions": "sampled", "checkpoint": "7", "checkpoint_sha256": ""}
        (run / "evaluation-7.json").write_text(json.dumps(evaluation))
    err = refused(capfd, name, run, *more)
    assert (
        f"was made elsewhere, and its environment strange_game:make would execute {run.parent}/strange_game.py" in err
    )
    assert "--trust" in err
    assert not (run.parent / "strange_game.ran").exists()


def test_a_word_is_enough_and_a_changed_name_is_not_ones_own(run: Path, monkeypatch):
    edit(run / "config.json", env="other_game:make")
    with pytest.raises(UserError, match="would execute the module other_game, which is not found here"):
        polyplay.evaluate(run, episodes=1)
    edit(run / "config.json", env="strange_game:make")
    monkeypatch.setenv("XDG_DATA_HOME", str(run.parent / "another"))
    assert polyplay.evaluate(run, episodes=1, trust=True)["episodes"] == 1


def test_other_environments_need_none(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture):
    run = made.run(tmp_path / "run")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    assert main.main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "executes" not in capfd.readouterr().err
    assert "signature" not in json.loads((run / "config.json").read_text())
    names = ("ALE/Pong-v5", "toy:catch", "game:connect:4x5x3", "envpool:Pong-v5", "CartPole-v1", None, "a:b", "toy:a:b")
    assert [directory.runs_code(name) for name in names] == [False] * 6 + [True] * 2


def test_a_module_within_packages_is_found_and_nothing_executed(tmp_path: Path, monkeypatch):
    package = tmp_path / "strange_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "game.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert directory.module_file("strange_package.game") == str(package / "game.py")
    assert "not found" in directory.module_file("strange_package.none")
    shutil.rmtree(package)
    assert "not found" in directory.module_file("strange_package.game")


def test_a_run_that_cannot_be_signed_says_so_once(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))  # also for root nothing can be made within a file
    (tmp_path / "strange_game.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kw = {"network": "mlp", "lanes": 4, "serial": True, "steps": 100, "tensorboard": False}
    polyplay.train("a2c", env="strange_game:make", run="one", **kw)
    said = capfd.readouterr().err
    assert said.count("is not signed: whoever opens it says --trust") == 1
    assert f"{tmp_path}/file/polyplay/key cannot be written" in said
    polyplay.train("a2c", env="toy:catch", run="two", **kw)
    assert "signed" not in capfd.readouterr().err


def test_resume_auto_trusts_what_its_own_command_names(run: Path, monkeypatch):
    trusted: list[bool] = []

    def resume(directory: Path, changes: object, trust: bool, *others: object) -> runs.RunResult:
        trusted.append(trust)
        return runs.RunResult(directory)

    monkeypatch.setattr(runs, "resume", resume)
    for given in ({}, {"env": "strange_game:make"}):
        polyplay.train("a2c", run=str(run), resume="auto", **given)
    assert trusted == [False, True]


def edit(path: Path, **changes: object) -> None:
    """Write other values into a run's files: those of `config`, `options`, or of the file itself."""
    contents = json.loads(path.read_text())
    for name, value in changes.items():
        where = next((contents[part] for part in ("config", "options") if name in contents.get(part, {})), contents)
        where[name] = value
    path.write_text(json.dumps(contents))


def test_what_a_program_defines_is_a_name_too(tmp_path: Path, capfd: pytest.CaptureFixture):
    """A program's own run is signed; a stranger's calls nothing that happens to be there."""
    assert directory.runs_code("__main__:Follow")
    assert directory.runs_code("strange_game:make")
    run = made.run(tmp_path / "run")
    target = tmp_path / "written"
    kwargs = [f"path={str(target)!r}", "data=b'owned'"]
    edit(run / "config.json", env="__main__:__loader__.set_data", env_kwargs=kwargs)
    for verb in ("evaluate", "resume"):
        err = refused(capfd, verb, run)
        assert "its environment __main__:__loader__.set_data would execute __loader__.set_data of the program" in err
    with pytest.raises(UserError, match="which is not here"):
        polyplay.evaluate(run, episodes=1, trust=True)
    assert not target.exists()


@pytest.mark.parametrize("name", ["evil", "game", "toy", "arena", "envpool"])
@pytest.mark.parametrize("what", ["network", "wrapper"])
def test_a_network_or_wrapper_is_a_modules_whatever_its_name_begins_with(
    name: str, what: str, tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture
):
    run = made.run(tmp_path / "run")
    (tmp_path / f"{name}.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    edit(run / "config.json", **{what: [f"{name}:fn"] if what == "wrapper" else f"{name}:fn"})
    for command in (["evaluate", str(run)], ["resume", str(run)], ["train", "--config", str(run), "--dry-run"]):
        assert f"{name}:fn would execute {tmp_path}/{name}.py" in refused(capfd, *command)
    assert not (tmp_path / f"{name}.ran").exists()


@pytest.mark.parametrize("words", [["wrappers=['evil:fn']"], ["env_id=evil:fn"], ["make={'a': ['evil:fn']}"]])
def test_an_argument_of_an_environment_may_name_code(words: list[str], tmp_path: Path, monkeypatch):
    run = made.run(tmp_path / "run")
    (tmp_path / "evil.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    edit(run / "config.json", env_kwargs=words)
    name = words[0].partition("=")[0]
    for call in (polyplay.evaluate, polyplay.resume, polyplay.load):
        with pytest.raises(UserError, match=f"its argument {name} 0 evil:fn would execute {tmp_path}/evil.py"):
            call(run)
    assert not (tmp_path / "evil.ran").exists()
    harmless = ["gravity=-9.8", "map_name='8x8'", "desc=['SF', 'HG']", "size={'a':1}", "at=12:30", "page=http://x/y"]
    assert directory.code_of({"config": {}, "options": {"env_kwargs": harmless}}) == {}


def test_wrappers_are_no_argument(tmp_path: Path):
    with pytest.raises(UserError, match=r"--env-kwargs: wrappers given, .*: --wrapper module:callable"):
        polyplay.train("ppo", env="CartPole-v1", env_kwargs={"wrappers": ["evil:fn"]}, dry_run=True)


def test_a_list_that_is_no_list_hides_no_name(tmp_path: Path):
    run = made.run(tmp_path / "run")
    edit(run / "config.json", wrapper={"strange:wrap": 0})
    with pytest.raises(UserError, match="its wrapper 0 strange:wrap would execute"):
        polyplay.evaluate(run, episodes=1)
    with pytest.raises(UserError, match=r"config\.json: wrapper"):
        polyplay.evaluate(run, episodes=1, trust=True)


def test_a_directory_that_hides_that_it_is_a_run_is_none(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"system": "a2c", "env": "strange:make"}))
    with pytest.raises(UserError, match="has schema none"):
        polyplay.train(config=tmp_path / "run", dry_run=True)


def test_the_machines_of_a_cluster_execute_what_they_are_sent(tmp_path: Path):
    run = made.run(tmp_path / "run", ended=False)
    edit(run / "config.json", hosts="ray:203.0.113.1:6379")
    with pytest.raises(UserError, match=r"its cluster ray:203\.0\.113\.1:6379 would execute what its machines send"):
        polyplay.resume(run)
    for own in (None, "none", "ray", "pretend:2"):
        assert directory.code_of({"config": {}, "options": {"hosts": own}}) == {}


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
    (path / "lineage.jsonl").write_text(
        json.dumps(line) + "\n" + json.dumps({**line, "decision": 1, "steps": 9}) + "\n"
    )
    return path


def test_members_execute_only_what_their_population_names(tmp_path: Path):
    with pytest.raises(UserError, match=r"population\.json is damaged: its network strange:net is not the run's own"):
        population._check_code(
            Store(one := population_of(tmp_path / "one", "strange:net")), read_config(one, population=True)
        )
    other = population_of(tmp_path / "other")
    edit(other / "members" / "00" / "config.json", env="strange:make")
    with pytest.raises(UserError, match="members/00 is damaged: its environment strange:make is not the run's own"):
        population._check_code(Store(other), read_config(other, population=True))
    edit(other / "members" / "00" / "config.json", env="toy:catch")
    population._check_code(Store(other), read_config(other, population=True))


def test_what_a_population_varies_is_code_too(tmp_path: Path):
    one = population_of(tmp_path / "one", vary=["learning_rate=log:1e-5:1e-2", "network=mlp,strange:net"])
    with pytest.raises(UserError, match="its varied network 1 strange:net would execute the module strange"):
        polyplay.resume(one)


def test_verify_executes_no_command_that_an_evaluation_names(tmp_path: Path, monkeypatch, capfd):
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
