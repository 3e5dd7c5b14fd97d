"""Who may start processes: nobody while a module is imported, and nobody who only steps environments."""

from __future__ import annotations

import multiprocessing

import pytest

from polyplay.core import processes, user_modules
from polyplay.core.errors import UserError
from polyplay.core.processes import ForkedProcess, ForkServer
from polyplay.envs.process_pool import EnvProcess


def tell(answer):
    try:
        user_modules.refuse("a run")
    except UserError as e:
        answer.send(str(e))
    else:
        answer.send("it may")


class AsksWhenRead:
    """Answers while it is unpickled, as a module that is imported for it would."""

    def __init__(self, answer):
        self.answer = answer

    def __reduce__(self):
        return tell, (self.answer,)


def heard(process, here, there):
    process.start()
    there.close()
    said = [here.recv(), here.recv()]
    process.join(30)
    return said


def nothing_then_tell(read, answer):
    tell(answer)


@pytest.mark.parametrize("worker", [True, False])
def test_a_worker_may_once_it_has_read_what_it_was_sent_an_environment_never(worker):
    server = ForkServer("polyplay.core.errors", tied=True)
    here, there = multiprocessing.Pipe(duplex=False)
    args = nothing_then_tell, (AsksWhenRead(there), there)
    process = ForkedProcess(server, *args, "guarded") if worker else EnvProcess(*args, "guarded", server)
    early, late = heard(process, here, there)
    assert early.startswith("a run was started ")
    assert late == ("it may" if worker else late)
    assert worker or late.startswith("a run was started in a process that only steps environments")


def test_only_while_it_is_imported():
    user_modules.refuse("a run")
    with user_modules.importing(), pytest.raises(UserError, match="a run was started "):
        user_modules.refuse("a run")
    with user_modules.importing(), user_modules.importing():
        pass
    user_modules.refuse("a run")


def test_the_order_of_sets_is_the_same_in_every_run(monkeypatch):
    def given(env, other=False):
        with monkeypatch.context() as patch:
            patch.delenv(processes.HASH_SEED, raising=False)
            if env is not None:
                patch.setenv(processes.HASH_SEED, env)
            with processes.hash_seed(other):
                seed = processes.os.environ[processes.HASH_SEED]
            assert processes.os.environ.get(processes.HASH_SEED) == env
            return seed

    assert [given(None), given("random"), given("7")] == ["0", "0", "7"]
    assert [given(None, True), given("3", True)] == ["3", "0"]


def test_a_serial_command_begins_anew_unless_the_user_chose(monkeypatch):
    begun = []
    monkeypatch.setattr(processes.os, "execv", lambda file, words: begun.append(processes.os.environ["PYTHONHASHSEED"]))
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    processes.fix_sets()
    assert begun == []
    monkeypatch.delenv("PYTHONHASHSEED")
    processes.fix_sets()
    assert begun == ["0"]


def test_commands_that_may_step_environments_themselves_have_sets_in_order():
    for line in ("train a2c --serial", "train a2c --serial=true", "train a2c --config r", "train --config=f.toml"):
        assert processes.may_step(line.split()), line
    for line in ("resume r", "evaluate r --video v.mp4", "verify r", "tournament a b", "reproduce r"):
        assert processes.may_step(line.split()), line
    for line in ("", "train a2c --env CartPole-v1", "runs", "systems"):
        assert not processes.may_step(line.split()), line


def test_a_program_whose_sets_have_no_order_is_told(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert "PYTHONHASHSEED=0" in processes.describe_sets(True)
    assert processes.describe_sets(False) == ""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert processes.describe_sets(True) == ""
