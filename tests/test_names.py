"""One name, one thing: public classes and functions of the package; and modules that text names exist."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "polyplay"
# one verb, one thing, at several heights: what a person calls, what does it
SAME_THING = {
    "train": "api calls runs.run",
    "resume": "api calls runs.run",
    "evaluate": "api calls evaluation.evaluate",
    "export": "api calls cli.export",
    "load": "a run's agent, in api; a system's page",
    "main": "entries of programs",
    "command": "a verb of the command line",
    "connect": "opens a pool, of the kind that a name asks for",
    "game": "by its name: on Atari, on a board",
    "describe": "an environment, by the kind of pool that it runs in",
}


# no modules: a page that a test makes, a run's directory
MADE_UP = {"systems/fake", "runs/breakout", "runs/sac"}


def public(kind: str) -> dict[str, list[str]]:
    """Public names on the top level of modules, and where they are defined. kind: class or def."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(rf"^{kind} ([a-zA-Z]\w*)", path.read_text("utf-8"), re.M):
            found[name].append(str(path.relative_to(PACKAGE)))
    return found


def test_no_public_class_name_stands_for_two_things():
    assert {k: v for k, v in public("class").items() if len(v) > 1 and k != "Config"} == {}


def test_no_public_function_name_stands_for_unrelated_things():
    twice = {k: v for k, v in public("def").items() if len(v) > 1}
    unknown = {k: v for k, v in twice.items() if k not in SAME_THING and not all(x.startswith("systems/") for x in v)}
    assert {k: v for k, v in unknown.items() if len({x.split("/")[0] for x in v}) > 1} == {}, "in two rooms"


def test_every_module_that_text_or_code_names_exists():
    """`polyplay/ROOM/FILE.py`, `polyplay.ROOM.FILE` anywhere; `ROOM/FILE` in inline code of pages and in comments."""
    rooms = "|".join(sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()))
    path = re.compile(rf"\bpolyplay/((?:{rooms})/[a-z_0-9/]+)\.py\b")
    dotted = re.compile(rf"\bpolyplay\.((?:{rooms})\.[a-z_0-9]+)\b")
    short = re.compile(rf"(?<![\w/.-])((?:{rooms})/[a-z_0-9/]+[a-z0-9])(?:\.py)?(?![\w/*{{.-])")
    gone, found = [], 0
    for file in tracked():
        text = file.read_text("utf-8")
        named = [*path.findall(text), *(name.replace(".", "/") for name in dotted.findall(text))]
        for quiet in quoted(file, text):
            named += short.findall(quiet)
        found += len(named)
        gone += [f"{file.relative_to(ROOT)}: {name}" for name in {*named} - MADE_UP if not exists(name)]
    assert found > 1000
    assert not gone, "\n".join(sorted(gone))


def tracked() -> list[Path]:
    """Pages and code, but results, which keep what was true when they were measured, and this file."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.md", "*.py", "*.toml", "*.pyi"],
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / line for line in listed.stdout.splitlines() if not line.startswith("bench/results/")]
    return [file for file in files if file.is_file() and file != Path(__file__)]


def quoted(file: Path, text: str) -> list[str]:
    """Inline code of a page, comments of a program."""
    return re.findall(r"`([^`\n]+)`", text) if file.suffix == ".md" else re.findall(r"#(.*)$", text, re.M)


def exists(name: str) -> bool:
    """Whether ROOM/FILE or ROOM/FOLDER/FILE is a module, a folder, or a name that the room itself has."""
    room, _, rest = name.partition("/")
    inside = (PACKAGE / room / "__init__.py").read_text("utf-8")
    there = (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).exists()
    return there or bool(re.search(rf"\b{re.escape(rest)}\b", inside))


def test_every_line_of_slow_names_a_test():
    root, lines = Path(__file__).parents[1], Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert len({line.rpartition(" ")[0] or line for line in lines}) == len(lines), "two numbers of one test"
    for line in lines:
        file, _, name = line.partition("::")
        assert f"def {name.partition('[')[0].partition(' ')[0]}(" in (root / file).read_text("utf-8"), line
