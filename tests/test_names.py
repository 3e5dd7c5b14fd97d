"""One name, one thing: public classes and functions of the package, and none of the modules' former names."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "polyplay"
# a page's own names: every page has its Config, its presets and its build
OF_PAGES = {"build", "quick", "released", "chunked", "rainbow", "lstm", "ppo", "baselines", "rlpyt", "dopamine", "zoo"}
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


def public(kind: type) -> dict[str, list[str]]:
    """Public names on the top level of modules, and where they are defined."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                found[node.name].append(str(path.relative_to(PACKAGE)))  # type: ignore[attr-defined]
    return found


def test_no_public_class_name_stands_for_two_things():
    assert {k: v for k, v in public(ast.ClassDef).items() if len(v) > 1 and k != "Config"} == {}


def test_no_public_function_name_stands_for_unrelated_things():
    twice = {k: v for k, v in public(ast.FunctionDef).items() if len(v) > 1}
    unknown = {k: v for k, v in twice.items() if k not in SAME_THING and not all(x.startswith("systems/") for x in v)}
    assert {k: v for k, v in unknown.items() if len({x.split("/")[0] for x in v}) > 1} == {}, "in two rooms"


def test_nothing_speaks_of_modules_by_their_former_names():
    """But the changelog's table, from which they are read."""
    table = (ROOT / "CHANGELOG.md").read_text().split("| module before | now |")[1].split("\n\n")[0]
    old = re.findall(r"^\| `([a-z_/]+)` \|", table, re.M)
    assert len(old) > 100
    api = {node.name for node in ast.parse((PACKAGE / "api.py").read_text()).body if isinstance(node, ast.FunctionDef)}
    now = {str(p.relative_to(PACKAGE).with_suffix("")) for p in PACKAGE.rglob("*.py")}
    gone = [name for name in old if name not in now and not (PACKAGE / name).is_dir() and name not in api]
    words = "|".join(re.escape(name).replace("/", "[./]") for name in gone)
    pattern = rf"polyplay(/({words})\.py|\.({words}))(?![./a-z_])"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-nIPw", pattern, "--", ".", ":!CHANGELOG.md"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout


def test_every_line_of_slow_names_a_test():
    root, lines = Path(__file__).parents[1], Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, name = line.partition("::")
        assert f"def {name.partition('[')[0].partition(' ')[0]}(" in (root / file).read_text("utf-8"), line
