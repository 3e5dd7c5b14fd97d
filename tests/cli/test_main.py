from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.cli import arguments, evaluate, main
from polyplay.core.errors import EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.processes import STEPPING, Stopped, may_step
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.runs import directory
from polyplay.runs import run as runs
from tests.fakepage import page
from tests.verbs import refused

Calls = list[tuple[Any, ...]]
SCORE = {
    "episodes": 3, "episodic_return_mean": 20.5, "returns": [1.0], "video": None, "interval": (19.0, 1021.0),
    "actions": "greedy", "epsilon": 0.05, "label": "null-op", "chosen_by": "evaluation",
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the verbs asked of the functions that do the work, which only listen; the one system is `fake`."""
    asked: Calls = []

    def listen(place: Any, verb: str, answer: Any) -> None:
        def hear(*given: Any, **more: Any) -> Any:
            asked.append((verb, *given, *([more] if more else [])))
            return answer

        monkeypatch.setattr(place, verb, hear)

    listen(runs, "train", types.SimpleNamespace(exit_code=0))
    listen(runs, "resume", types.SimpleNamespace(exit_code=143))
    listen(evaluate.evaluate, "evaluate", SCORE)
    monkeypatch.setattr(systems, "names", lambda: ["fake"])
    load = systems.load
    monkeypatch.setattr(systems, "load", lambda name: page() if name == "fake" else load(name))
    return asked


@pytest.fixture
def run(tmp_path: Path) -> str:
    told = {"system": "fake", "config": {}, "options": {"seed": 0}, "sources": {}, "environment": {}}
    directory.write_config(tmp_path, told)
    return str(tmp_path)


def test_resume_passes_only_what_was_given_and_the_runs_status(calls: Calls, run: str):
    assert main.main(["resume", run, "--frames", "2M", "--keep", "5"]) == 143
    assert main.main(["resume", run]) == 143
    assert calls == [("resume", Path(run), {"frames": 2_000_000, "keep": 5}, False), ("resume", Path(run), {}, False)]


def test_evaluate_prints_what_came_out(calls: Calls, run: str, capsys: pytest.CaptureFixture):
    assert main.main(["evaluate", run, "--episodes", "3", "--seed", "7", "--video", "--checkpoint", "best"]) == 0
    [(verb, where, asked, more)] = calls
    assert (verb, where) == ("evaluate", Path(run))
    assert asked == EvaluateOptions(episodes=3, seed=7, video=True, checkpoint="best")
    assert more["watch"].signal == 0
    out = capsys.readouterr().out.splitlines()
    score = "score 20.50, range 19.00 to 1,021.00; 3 games, greedy actions, ε 0.05, protocol null-op"
    assert out[0] == score
    assert {"episodic_return_mean  20.50", "video                 none", "chosen_by             evaluation"} <= {*out}
    assert main.main(["evaluate", run]) == 0
    assert "chosen_by" not in capsys.readouterr().out  # nothing was chosen


def test_a_score_of_fewer_games_says_so():
    line = evaluate.score_line({**SCORE, "episodes": 1, "interval": None, "ended": "stopped by SIGINT", "asked": 30})
    assert line.splitlines() == [
        "score 20.50, no interval: only one game; 1 game, greedy actions, ε 0.05, protocol null-op",
        "stopped by SIGINT: 1 of 30 games finished. Short games end first, which biases the mean; nothing was written",
    ]


def test_small_numbers_are_not_rounded_away(capsys: pytest.CaptureFixture):
    arguments.print_result({"epsilon": 0.001, "mean": -13.8, "none": None, "zero": 0.0, "games": [1.0]})
    assert capsys.readouterr().out == "epsilon  0.001\nmean     -13.80\nnone     none\nzero     0.00\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trian fake", "unknown verb trian; did you mean train?"),
        ("zzz", "unknown verb zzz; choose one of train, evaluate, plot, systems, check, resume, runs, watch, play"),
        ("scores RUN", "unknown verb scores; use polyplay runs RUN … --scores"),
        ("enjoy RUN", "unknown verb enjoy; use polyplay evaluate RUN --video"),
        ("--completion csh", "--completion: 'csh' given, allowed: bash, zsh, fish"),
        (
            "evaluate RUN --number 3",
            "--number: is an option of --save-starts: add --save-starts, or",
        ),
        (
            "evaluate RUN --verify --seed 3",
            "unknown option --seed for polyplay evaluate RUN --verify; it takes",
        ),
        ("train", "train takes a system first: polyplay train ppo --env CartPole-v1; start with ppo"),
        ("train --env x", "takes a system first, not '--env': polyplay train ppo --env CartPole-v1; start with ppo"),
        ("train impalla", "did you mean impala?"),
        ("resume", "resume takes the directory of a run first"),
        ("resume nowhere", "no run at nowhere (it has no config.json)"),
        ("resume RUN --unroll 3", "unknown option --unroll for polyplay resume RUN; it takes --frames, --steps"),
        ("surgery", "surgery takes the directory of a run first"),
        ("surgery RUN", "surgery takes the directory to write: polyplay surgery RUN --out RUN2"),
        ("surgery RUN --out x --core-size 1", "--core-size: '1' given, allowed: a whole number from 2"),
        ("surgery RUN --gamma 1", "unknown option --gamma for polyplay surgery RUN"),
        ("evaluate RUN --episodes 0", "--episodes: '0' given, allowed: a whole number from 1 to 1e12, or none for"),
        ("evaluate RUN --epsilon 2", "--epsilon: '2' given, allowed: a number from 0 to 1, or none for the default"),
        ("evaluate RUN --protocol no-op", "--protocol: 'no-op' given, allowed: run, null-op, null-op-30min"),
        ("evaluate RUN --verify", "has no evaluation to verify; `polyplay evaluate"),
        ("evaluate RUN --save-starts", "--save-starts needs a value: text"),
        ("check", "check takes an environment or a run first: polyplay check CartPole-v1"),
        ("check RUN --seed 1", "unknown option --seed for polyplay check RUN; it takes --updates, --trust"),
        ("runs RUN --picture p.png", "--picture p.png: there is no ranking to draw: name one run of pbt, league"),
        ("check CartPoel-v1", "ENV: unknown environment 'CartPoel-v1', did you mean 'CartPole-v1'?"),
        ("doctor now", "unexpected 'now' for polyplay doctor"),
        ("systems now", "SYSTEM: 'now' given, allowed: fake"),
        ("systems fake now", "unexpected 'now' for polyplay systems fake: it takes --diagram or --new NAME"),
        ("plot", "plot takes the directory of at least one run: polyplay plot RUN … --out FILE"),
        ("plot RUN --out curve.txt", "--out curve.txt: must end in .png, .svg or .pdf"),
        ("plot RUN --x TIME", "--x: 'TIME' given, allowed: frames, steps, hours, or none for the default"),
        ("export RUN", "export takes the file to write: polyplay export RUN --onnx FILE"),
    ],
)
def test_every_mistake_is_one_line_on_stderr_and_status_2(
    calls: Calls, run: str, capsys: pytest.CaptureFixture, line: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(systems, "names", lambda: ["fake", "impala"])
    assert says in refused(capsys, *line.replace("RUN", run).split()).replace(run, "RUN")
    assert calls == []


NOTED = UserError("--step: too\nmany")
NOTED.add_note("`polyplay resume run` continues from the last checkpoint")


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (UserError("--env: one\nline"), 2, "error: --env: one line\n"),
        (NOTED, 2, "error: --step: too many\n`polyplay resume run` continues from the last checkpoint\n"),
        (EnvFailure("lane 3\nTraceback"), 1, "failed: lane 3\nTraceback\n"),
        (WorkerLost("actor 0: signal 9"), 1, "failed: actor 0: signal 9\n"),
        (NotFinite("loss is NaN"), 1, "failed: loss is NaN\n"),
        (OSError(28, "No space"), 1, "failed: No space; the disk is full: free some space\n"),
        (OSError(13, "No right", "a.json"), 1, "failed: a.json: No right\n"),
        (KeyboardInterrupt(), 130, "ended by SIGINT\n"),
        (Stopped(signal.SIGHUP), 129, "ended by SIGHUP\n"),
        (SystemExit(5), 5, ""),
        (ZeroDivisionError(), None, ""),
    ],
)
def test_what_a_run_raises_becomes_a_status_and_a_bug_shows_its_traceback(
    calls: Any, capsys: pytest.CaptureFixture, raised: BaseException, status: int | None, says: str, monkeypatch
):
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(runs, "train", fail)
    if status is None:
        with pytest.raises(ZeroDivisionError):
            main.main(["train", "fake"])
    else:
        assert main.main(["train", "fake"]) == status
        assert capsys.readouterr().err == (f"polyplay: {says}" if says else "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "usage: polyplay VERB"),
        ("--help", "evaluate RUN --video          its score"),
        ("train fake --help", "step size [0.0006]"),
        ("train fake --preset quick -h", "step size [0.001]"),
        ("train fake --help-all", "step size (default: 0.0006)"),
        ("systems fake --diagram --help", "usage: polyplay systems"),
        ("resume --help", "--checkpoint-every"),
        ("resume --help-all", "seconds between checkpoints"),
        ("resume RUN --help", "new device of learners"),
        ("evaluate --help", "--save-starts  Records start states"),
        ("evaluate --save-starts --help", "number of start states [100]"),
        ("check RUN --help", "stop after this many updates"),
        ("systems --help", "usage: polyplay systems"),
        ("doctor --help", "Print what a bug report needs."),
    ],
)
def test_help(calls: Calls, run: str, capsys: pytest.CaptureFixture, line: str, says: str):
    assert main.main(line.replace("RUN", run).split()) == 0
    assert says in capsys.readouterr().out
    assert calls == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["--env", "--lanes", "--network", "--learning-rate", "--seeds 0..4", "--config FILE"]),
        (["ppo"], ["are for ALE/Pong-v5; with --env ID first, for ID", "of the system [paper]"]),
        (["ppo", "--env", "CartPole-v1"], ["are for CartPole-v1. ", "of the system [classic]", "discount [0.98]"]),
    ],
)
def test_help_of_training_says_where_defaults_come_from(words: list[str], says: list[str], capsys):
    assert main.main(["train", *words, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())  # as one line, however it is wrapped
    assert [text for text in says if text not in out] == []


def python(*words: str, **more: Any) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], text=True, timeout=150, **{"capture_output": True, **more})


@pytest.mark.parametrize("line", ["", *(f"{verb} --help" for verb in main.VERBS), "train impala --help"])
def test_each_help_is_one_screen(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(line.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= (30 if line else 24)
    assert max(map(len, lines)) <= 80 if not line else all(lines[i] for i in (0, -1))
    assert len(main.VERBS) <= 14


def test_earlier_verbs_are_gone_and_their_commands_there():
    assert not {*main.MOVED} & {*main.VERBS}
    assert {words.split()[0] for words in main.MOVED.values()} <= {*main.VERBS}


BASH = """
source "$1"
complete() { COMP_WORDS=(polyplay "$@"); COMP_CWORD=$#; _polyplay; echo "${COMPREPLY[*]}"; }
complete tr
complete train imp
complete train impala --preset ""
complete train ppo --seed
complete train ppo --env CartPole-v1 --epo
complete train ppo --device c
complete evaluate runs/x --protocol st
complete evaluate runs/x --save
complete systems impala --d
"""
COMPLETED = ["train", "impala", "paper released quick multitask six classic", "--seed --seeds", "--epochs", "cpu cuda"]
COMPLETED += ["sticky", "--save-starts", "--diagram"]


def test_bash_completes_verbs_systems_options_presets_and_values(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main.main(["--completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    done = subprocess.run(["bash", "-c", BASH, "bash", tmp_path / "script"], capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (COMPLETED, "")
    assert main.main(["--completion", "fish"]) == 0
    fish = capsys.readouterr().out
    seen = "__fish_seen_subcommand_from train; and __fish_seen_subcommand_from dqn"
    assert f"complete -c polyplay -n '{seen}' -l preset -xa 'paper" in fish
    assert main.main(["--completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out


def test_the_trainer_of_other_libraries_names_the_command_here():
    done = python("-m", "polyplay.train", "ppo", "--env", "x")
    says = "polyplay: error: no module polyplay.train; use polyplay train ppo --env x\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)
    code = "import polyplay.train, polyplay; print(polyplay.train is polyplay.api.train)"
    assert python("-c", code).stdout == "True\n"


def test_help_and_version_import_nothing_heavy():
    """train and systems load a system's page, which loads torch."""
    verbs = [verb for verb in main.VERBS if verb not in ("train", "systems")]
    code = (
        "import sys; from polyplay.cli.main import main; main(['--help']); main(['--version'])\n"
        "print({'torch', 'numpy', 'gymnasium', 'rich'} & set(sys.modules))\n"
        f"for verb in {verbs}: main([verb, '--help'])\nsys.exit('torch' in sys.modules)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"polyplay {polyplay.__version__}\nset()\n" in done.stdout


def test_python_dash_m_polyplay_and_a_reader_that_leaves():
    done = python("-m", "polyplay", "trian")
    wrong = "polyplay: error: unknown verb trian; did you mean train?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wrong)
    reading, writing = os.pipe()
    os.close(reading)
    done = python("-m", "polyplay", "--help", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_in_use_names_the_option():
    with arguments.listen(0) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(UserError, match=rf"^--port: {port} cannot be used .*; try --port"):
            arguments.listen(port)


def test_verbs_that_step_environments_here_have_sets_in_order():
    assert set(STEPPING) <= set(main.VERBS)
    assert all(may_step([verb, "runs/x"]) for verb in ("resume", "evaluate", "check"))
    assert may_step(["train", "ppo", "--serial"])
    assert not may_step(["train", "ppo"])
