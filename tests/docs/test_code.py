"""Every code block of README and docs runs.

python      Blocks of a page are run in order, in one namespace and one directory. One that begins with a comment that
            names a file (`# my_env.py`) is written to it instead. Training takes a few steps, in one thread.
sh          Lines that call polyplay are read by the real command line up to the point where work would begin; where
            `--dry-run` is quick they are run with it. Other lines must be of a kind in OTHERS, which says why they are
            not run.
inline code `polyplay …` in a sentence is read like a line of sh, unless it has a placeholder.

`<!-- not run: REASON -->` on the line above a block leaves it out.

Training that the program itself shows, in its help, messages and docstrings, and in the notebook, is planned too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import polyplay
from docs import assemble
from polyplay import api, systems
from polyplay.cli import arguments, main
from polyplay.runs import flags, options, plan, reporter, run
from polyplay.search import evaluators
from polyplay.workers import row_costs, sizing
from polyplay.workers.hosts import cluster
from polyplay.workers.hosts.cluster import MachineInfo

ROOT = assemble.ROOT
PAGES = [p for p in assemble.pages() if p.parent == ROOT or "docs" in p.parts]
PAGES.remove(ROOT / "CHANGELOG.md")  # it names what is gone
BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>.+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
FILE = re.compile(r"# (\w+\.py)$")
INLINE = re.compile(r"`(polyplay [^`]+)`")
PLACEHOLDER = re.compile(r"…|\b[A-Z][A-Z_]+\b(?!/)")  # RUN, FILE; not ALE/Pong-v5
STEPS = 600  # that training in a block is cut to
OTHERS = {  # the first words of a line → why it is not run
    "python3 -m venv": "installs from the network",
    ".venv/bin/pip": "installs from the network",
    "pip": "installs from the network",
    "git": "needs the network",
    "cd": "a person's own place",
    "make": "the target is looked up in the Makefile",
    "python": "the file is looked up; benchmarks take minutes",
    ".venv/bin/python": "the tests themselves",
    "tensorboard": "waits for a browser",
    "wandb": "needs an account",
    "kill": "needs a process",
    "export": "of the shell of whoever reads it",
    "ray": "needs machines in a cloud; tests/workers/hosts/test_cluster.py has Ray check the file and the words",
    "srun": "needs Slurm; the same test has Ray check the words",
    "RAY_worker_niceness=0": "starts a cluster; tests/workers/hosts/test_ray_cluster.py does",
    ".venv/bin/pre-commit": "changes the checkout",
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str
    why: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        found = FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text[: found.start("kind")].count("\n") + 1, found["kind"], found["text"], found["why"])
        for found in BLOCK.finditer(text)
    ]


ALL = [block for page in PAGES for block in blocks(page)]
PYTHON = sorted({b.page for b in ALL if b.kind == "python"})


def lines(block: Block) -> list[str]:
    """The commands of a shell block: continued lines joined, comments dropped, `a && b` parted."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    plain = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [part.strip() for line in plain for part in line.split("&&") if part.strip()]


def commands() -> list[tuple[str, str]]:
    found = [(str(b), line) for b in ALL if b.kind == "sh" and not b.why for line in lines(b)]
    for page in PAGES:
        text = assemble.FENCE.sub("", page.read_text())
        found += [(str(page.relative_to(ROOT)), words) for words in INLINE.findall(text) if is_complete(words)]
    return list(dict.fromkeys(found))


def is_complete(words: str) -> bool:
    """Whether it is a whole command, not the name of a verb or of its option."""
    verb, *rest = words.split()[1:]
    named = verb in ("bench", "doctor", "runs", "scores", "systems") or (rest and not rest[0].startswith("-"))
    return bool(named) and not PLACEHOLDER.search(words) and not any(c in words for c in "*<[")


def polyplay_words(line: str) -> list[str] | None:
    """The words after `polyplay`, without what sets variables before it; None if it is another command."""
    words = shlex.split(line)
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words = words[1:]
    return words[1:] if words and words[0] in ("polyplay", ".venv/bin/polyplay") else None


POLYPLAY = [(where, line) for where, line in commands() if polyplay_words(line) is not None]
REST = [(where, line) for where, line in commands() if polyplay_words(line) is None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, whose modules can be imported."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write_files(page: Path, there: Path) -> None:
    for block in blocks(page):
        if block.kind == "python" and block.file:
            (there / block.file).write_text(block.text)


def briefly(call: Callable[..., Any], steps: int, **quiet: Any) -> Callable[..., Any]:
    """`polyplay.train` or `resume`, for no more than so many steps."""

    def short(*what: str, **given: Any) -> Any:
        given.pop("frames", None)
        return call(*what, **{**given, **quiet, "steps": min(steps, given.get("steps", steps))})

    return short


@pytest.mark.parametrize("page", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(polyplay, "train", briefly(api.train, STEPS, serial=True, tensorboard=False), raising=False)
    monkeypatch.setattr(polyplay, "resume", briefly(api.resume, 2 * STEPS), raising=False)
    write_files(page, here)
    names: dict[str, Any] = {"__name__": "__page__"}
    code = [block for block in blocks(page) if block.kind == "python" and not block.why]
    for block in code:
        place = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
        exec(place, {"__name__": "__file__"} if block.file else names)
    assert code, "every block of the page is excused from running"


class Read(BaseException):
    """The command line was understood."""


def stop_after(call: Callable[..., Any]) -> Callable[..., Any]:
    def read(*args: Any, **kw: Any) -> Any:
        call(*args, **kw)
        raise Read

    return read


def test_commands_are_understood(here: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    for page in PYTHON:  # systems of one's own
        write_files(page, here)
    monkeypatch.chdir(ROOT)
    for owner, name in ((options, "parse"), (flags, "read_flags"), (argparse.ArgumentParser, "parse_args")):
        monkeypatch.setattr(owner, name, stop_after(getattr(owner, name)))
    wrong = []
    for where, line in POLYPLAY:
        try:
            status = main.main(polyplay_words(line))
        except Read:
            continue
        if status != 0:
            wrong.append(f"{where}: {line}: {capsys.readouterr().err}")
    assert len(POLYPLAY) > 100
    assert not wrong, "\n".join(wrong)


NEEDED = {  # by extra: the commands that take it
    "atari": r"ALE/",
    "pettingzoo": r"\b(pettingzoo|mpe2)\.",
    "minigrid": r"minigrid:",
    "envpool": r"envpool:",
    "spiel": r"game:spiel",
    "ray": r"--hosts ray",
    "wandb": r"--wandb",
    "openvino": r"openvino",
    "solver": r"(--against |opponent=)perfect",
    "onnx": r"--onnx",
    "plots": r"^plot ",
    "video": r"--video",
    "render": r"--render",
    "watch": r"^(watch|play) (?!.*--gtp)",
}


def extras_of(words: list[str]) -> set[str]:
    """The extras that a command needs."""
    line = " ".join(words)
    if words[0] == "train" and words[1] in systems.names() and not re.search(r"--env\b|--env-id|--help", line):
        line += f" {getattr(systems.load(words[1]).Config(), 'env', '')}"
    return {extra for extra, takes in NEEDED.items() if re.search(takes, line)}


def test_a_page_names_the_extras_that_its_commands_take():
    """`pip install polyplay[EXTRA]`, or a sentence with: extra `EXTRA`."""
    missing = set()
    for where, line in POLYPLAY:
        page = where.partition(":")[0]
        text = (ROOT / page).read_text()
        for extra in extras_of(polyplay_words(line) or []):
            if not re.search(rf"\[[\w,]*\b{extra}\b[\w,]*\]|extras?[^.]*`{extra}`", text):
                missing.add(f"{page}: {line} takes the extra {extra}")
    assert not missing


class Cluster:
    """The machines that the pages name, as Ray would list them."""

    own_cores = True

    def machines(self) -> list[MachineInfo]:
        spot = MachineInfo("node-3", "10.0.0.4", 32, ("spot",))
        return [MachineInfo("gpu-1", "10.0.0.2", 16), MachineInfo("big", "10.0.0.3", 32), spot]


def zero_if_small(tensor: torch.Tensor, *how: Any, **more: Any) -> torch.Tensor:
    """In place of random numbers, which take long for large networks; a page's own network takes numbers alone."""
    return tensor.data.zero_() if tensor.numel() < 1_000_000 else tensor


@pytest.fixture
def planned_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`--dry-run` ends with the plan, on a machine that has all memory and packages: nothing is measured, and weights
    are not drawn.
    """
    monkeypatch.setattr(run, "measure_speed", lambda *about: [])
    monkeypatch.setattr(row_costs, "measure_costs", lambda *about: sizing.RowCosts(1e-4, 1e-4, 1.5))
    monkeypatch.setattr(plan, "predict_memory", lambda *about: {"replay": 0.0})
    monkeypatch.setattr(reporter, "check_wandb", lambda project: None)
    monkeypatch.setattr(evaluators, "check_backend", lambda *about: None)
    real = cluster.Cluster
    monkeypatch.setattr(
        cluster, "Cluster", lambda hosts, ship: Cluster() if hosts.startswith("ray") else real(hosts, ship)
    )
    for name in [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]:
        monkeypatch.setattr(torch.nn.init, name, zero_if_small)
    folder = here / "mygame_folder"  # of a game of one's own
    folder.mkdir()
    (folder / "mygame.py").write_text("import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    monkeypatch.syspath_prepend(str(folder))
    return here


TRAINING = list(dict.fromkeys((where.partition(":")[0], line) for where, line in POLYPLAY if " train " in f"{line} "))


@pytest.mark.parametrize(("page", "line"), TRAINING, ids=[f"{page} {line}" for page, line in TRAINING])
def test_training_that_is_shown_can_begin(page: str, line: str, planned_only: Path, capsys):
    if "Cheetah" in line:
        pytest.importorskip("mujoco")
    write_files(ROOT / page, planned_only)
    assert main.main([*(polyplay_words(line) or []), "--dry-run"]) == 0, f"{page}: {capsys.readouterr().err}"
    assert not (planned_only / "runs").exists()


SHOWN = re.compile(r"polyplay train (\w+)((?: --[\w-]+(?: (?!--)[^\s`,;)]+)*)*)")
CALL = re.compile(r"polyplay\.train\(\"[^()]*\)")
SENTENCE = " starts one"  # goes on after a command
NOT_HERE = {"examples/melting_pot.py": "Melting Pot is not installed; tests/examples/test_melting_pot.py runs it"}


def texts_of_the_program() -> Iterator[tuple[str, str]]:
    """Where it stands, and the text: help, every string of the package and the examples, the notebook's cells."""
    yield "polyplay --help", main.usage()
    yield "polyplay train --help", "\n".join(f"polyplay train {example}" for example in arguments.EXAMPLES)
    for folder in ("polyplay", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text, where = path.read_text(), str(path.relative_to(ROOT))
            if where not in NOT_HERE and re.search(r"polyplay[ .]train", text):
                nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
                yield from ((where, node.value) for node in nodes if isinstance(node.value, str))
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        yield from ((str(path.relative_to(ROOT)), "".join(cell["source"])) for cell in cells)


def commands_in(text: str) -> Iterator[str]:
    """The training commands with options of a text, and its calls of `polyplay.train` with literal values."""
    for system, rest in SHOWN.findall(text.replace(SENTENCE, ",")):
        if rest and system in systems.names():
            yield f"polyplay train {system}{rest}"
    for found in CALL.findall(text):
        call = ast.parse(found, mode="eval").body
        assert isinstance(call, ast.Call)
        if all(isinstance(k.value, ast.Constant) for k in call.keywords):
            given = [(k.arg, ast.literal_eval(k.value)) for k in call.keywords]
            words = [f"--{k}" + ("" if value is True else f" {value}") for k, value in given]
            yield " ".join(["polyplay train", ast.literal_eval(call.args[0]), *words])


SAID = [(where, line) for where, text in texts_of_the_program() for line in commands_in(text)]
NEW = {line: where for where, line in SAID if line not in {planned for _, planned in TRAINING}}


@pytest.mark.parametrize(("line", "where"), NEW.items(), ids=[f"{where} {line}" for line, where in NEW.items()])
def test_training_that_the_program_shows_can_begin(line: str, where: str, planned_only: Path, capsys):
    if where.startswith("examples/"):
        shutil.copy(ROOT / where, planned_only)  # the command is for the example's folder
    assert main.main([*(polyplay_words(line) or []), "--dry-run"]) == 0, f"{where}: {capsys.readouterr().err}"
    assert not (planned_only / "runs").exists()


def test_what_the_program_shows_is_found():
    """Each of the places has a command, so that none is missed by a change of form."""
    found = {where for where, _ in SAID}
    places = {"polyplay --help", "polyplay train --help", "polyplay/__init__.py", "polyplay/cli/systems.py"}
    assert found >= places | {"polyplay/cli/play.py", "docs/start/notebook.ipynb"}
    assert list(commands_in("see `polyplay train ppo --env CartPole-v1 --hidden 8 8`, or train SYSTEM")) == [
        "polyplay train ppo --env CartPole-v1 --hidden 8 8"
    ]


def test_other_commands_are_of_a_known_kind():
    for where, line in REST:
        known = next((kind for kind in OTHERS if line == kind or line.startswith(f"{kind} ")), None)
        assert known, f"{where}: {line!r} is not run; give its kind and a reason in OTHERS"
        words = shlex.split(line)
        if known == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), f"{where}: no target {words[1]}"
        if known == "python" and words[1].endswith(".py"):
            written = {b.file for b in ALL if str(b.page.relative_to(ROOT)) == where.partition(":")[0]}
            assert (ROOT / words[1]).is_file() or words[1] in written, f"{where}: no file {words[1]}"


def test_no_block_is_left_out_by_its_mark():
    """A command or a program must say that it is one; what is left out has a reason."""
    for block in ALL:
        first = block.text.partition("\n")[0]
        plain = block.kind in ("", "text")
        assert not (plain and re.match(r"\$ |(\.venv/bin/)?polyplay |import |from \w+ import", first)), (
            f"{block}: {first}"
        )
        assert block.kind in ("", "text", "python", "sh", "json", "yaml"), f"{block}: {block.kind}"
