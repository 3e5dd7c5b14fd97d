"""The shape of the code is what ARCHITECTURE.md says: rooms, layers, torch-free files, one page per system, sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from docs import rooms

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from code_size import docstrings, written

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "polyplay"
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = {room: i for i, line in enumerate(rooms.layers()) for room in line}
TOP = ["__init__", "__main__", "api", "extend", "train"]

# At most so many lines of code (bench/code_size.py). Whoever adds some takes some away, or says in the commit why not.
BUDGET = {
    "core": 2276,
    "envs": 5516,
    "buffers": 2104,
    "games": 3837,
    "nets": 3749,
    "weights": 1601,
    "acting": 1160,
    "search": 1307,
    "learning": 3867,
    "workers": 2365,
    "workers/hosts": 1299,
    "population": 1506,
    "systems": 1978,
    "runs": 4569,
    "evaluation": 1576,
    "cli": 2789,
}
SHORTEST, LONGEST = 150, 800
# Files of fewer lines, or that one other file imports at most, and why they are files; kernels and pages may be both.
ALONE = {
    "a verb, which cli/main finds by its name": """
        cli/bench cli/doctor cli/evaluate cli/plot cli/systems cli/tournament cli/train
        cli/watch cli/play""",
    "the verb's other half, loaded when there is work": """
        cli/completion cli/games cli/gtp cli/pages cli/play_session cli/population""",
    "the entry of a program": "__main__ api cli/main train",
    "the names of all rooms that users import": "extend",
    "loaded late, for it needs torch, Numba or a package of an extra": """
        envs/envpool games/board_pool games/open_spiel games/records nets/onnx
        search/tree_kernels buffers/sum_tree
        workers/row_costs""",
    "the entry of a process": "envs/preload learning/packages workers/preload workers/evaluator workers/autoscale",
    "a noun that many files use": """
        workers/sizing core/errors core/machine core/tree core/user_modules envs/images envs/make""",
    "one of the parts of a game, which together are too long": """
        games/ctf games/ctf_maps games/ctf_views games/moba games/moba_rules games/moba_views""",
    "a system's population, surgery or reproduction, of which most runs have none": """
        population/referee runs/population runs/remote_members runs/reproduce runs/surgery nets/surgery""",
    "a part of a longer file, with a noun of its own": """
        buffers/delivery_log evaluation/verify learning/checkpoints learning/runners learning/threads
        learning/value_losses learning/critic_losses nets/torsos nets/numpy_player weights/gloo""",
}
TORCH_FREE = ("core", "envs", "games", "buffers", "runs", "evaluation", "cli")
# Of these rooms the files that load torch when they are imported, today.
WITH_TORCH = {"runs/reproduce", "evaluation/matches", "cli/gtp", "cli/play_session"}


# Calls of `getattr` and `hasattr`, by what they ask and by file. None asks an object of ours what it can do: a base
# class declares that.
ASKED = {
    "fields of a dataclass, or arrays of a class, by a list of their names": """
        acting/actor 1 buffers/replay 1 core/worker 1 envs/atari 5 envs/pool 1 systems/_wiring 3""",
    "commands and names of a module of ours, by what was typed": "__init__ 1 cli/main 1 cli/gtp 1",
    "environments, spaces and wrappers of users and of other libraries": """
        envs/build 14 envs/vector_pool 3 envs/lane 5 envs/masks 1 envs/pettingzoo 9 envs/rules 12 envs/saved_state 6
        envs/spaces 3 systems/_presets 1""",
    "functions, classes and values that a user gives": """
        core/user_modules 4 envs/pool 1 games/own_game 3 nets/factory 1 runs/options 4 runs/session 3""",
    "NumPy, torch, Numba and psutil": """
        acting/play 1 core/compiled 5 core/files 1 nets/action_heads 1 nets/factory 1
        runs/crew_metrics 1""",
    "exceptions": "cli/arguments 1 workers/crew 1 workers/process 1",
    "Ray's actors": "workers/hosts/cluster 1",
    "the operating system": "core/platform 1",
}
MOST_ASKED = 140


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


@cache
def code_lines(path: Path) -> int:
    return len(written(path.read_text(), nodes_of(path)) - docstrings(nodes_of(path)))


@cache
def modules_named(path: Path) -> set[str]:
    """What a file's import statements may name, anywhere in it: modules, and names in them."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return {module.removeprefix("polyplay.").replace(".", "/") for module in found if module.startswith("polyplay.")}


def is_page(path: Path) -> bool:
    return path.parent.name == "systems" and not path.stem.startswith("_")


def test_the_package_is_fifteen_rooms_and_five_files():
    inside = {p.name for p in PACKAGE.iterdir() if any(p.glob("*.py"))}
    assert inside == set(ORDER) == set(BUDGET) - {"workers/hosts"}
    assert len(ORDER) == 15
    assert sorted(p.stem for p in PACKAGE.glob("*.py")) == TOP
    for room in ORDER:
        said = ast.get_docstring(tree_of(PACKAGE / room / "__init__.py"))
        assert said, f"{room} does not say what it is"


def test_no_file_imports_upward():
    wrong = []
    for path in FILES:
        if path.parent == PACKAGE:
            continue
        mine = path.relative_to(PACKAGE).parts[0]
        for other in {module.split("/")[0] for module in modules_named(path)} - {mine, "__version__"}:
            if other in TOP or ORDER[other] >= ORDER[mine]:
                wrong.append(f"{name(path)} imports from {other}, which stands above or beside {mine}")
    assert not wrong, "\n".join(wrong)


def test_no_room_has_more_code_than_its_budget():
    found: dict[str, int] = defaultdict(int)
    for path in FILES:
        found[path.relative_to(PACKAGE).parts[0]] += code_lines(path)
        found["workers/hosts"] += code_lines(path) if path.parent.name == "hosts" else 0
    over = {room: f"{found[room]} lines of code, {most} allowed" for room, most in BUDGET.items() if found[room] > most}
    assert not over


def test_a_file_has_one_noun_and_neither_too_few_lines_nor_too_many():
    importers: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for module in modules_named(path) - {name(path)}:
            importers[module].add(name(path))
    excused = [file for files in ALONE.values() for file in files.split()]
    wrong = [f"{file} is excused twice" for file in {*excused} if excused.count(file) > 1]
    wrong += [f"{file} is excused, and is no file" for file in excused if not (PACKAGE / f"{file}.py").is_file()]
    for path in FILES:
        lines, file = len(path.read_text().splitlines()), name(path)
        if lines > LONGEST:
            wrong.append(f"{file} has {lines} lines, {LONGEST} are allowed")
        if path.stem == "__init__" or is_page(path) or file in excused:
            continue
        if lines < SHORTEST:
            wrong.append(f"{file} has {lines} lines, fewer than {SHORTEST}: merge it, or give a reason in ALONE")
        if len(importers[file]) <= 1:
            wrong.append(f"only {importers[file] or 'nobody'} imports {file}: merge it, or give a reason in ALONE")
    assert not wrong, "\n".join(wrong)


BLOCKED = """
import importlib, sys
sys.modules["torch"] = None  # importing it fails
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as e:
        print(module, e)
"""


def test_no_file_of_the_torch_free_rooms_loads_torch_when_imported():
    free = [p for p in FILES if p.relative_to(PACKAGE).parts[0] in TORCH_FREE and name(p) not in WITH_TORCH]
    assert {name(p) for p in FILES} >= WITH_TORCH, "no such file"
    assert len(free) > 60
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in free]
    done = subprocess.run([sys.executable, "-c", BLOCKED, *modules], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_every_system_is_one_page_of_wiring():
    for path in filter(is_page, FILES):
        tree = tree_of(path)
        if path.stem == "__init__":
            continue
        assert 20 <= code_lines(path) <= 90, f"{path}: lines of code of a page"
        classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
        assert [c.name for c in classes] == ["Config"], path
        assert len([n for n in classes[0].body if isinstance(n, ast.AnnAssign)]) <= 37, path
        assert "build" in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, path
        loops = [n for n in nodes_of(path) if isinstance(n, ast.While)]
        assert not loops, f"{path}: a loop that acts or learns belongs to the parts"


def test_nothing_pickled_is_ever_read_from_a_file_or_a_socket():
    for path in FILES:
        text = path.read_text()
        assert "torch.load" not in text, path
        assert "pickle.load(" not in text, path


def asked() -> Counter[str]:
    found = Counter[str]()
    for words in map(str.split, ASKED.values()):
        for file, number in zip(words[::2], words[1::2], strict=True):
            found[file] += int(number)
    return found


def asks(path: Path) -> int:
    calls = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
    return sum(isinstance(call, ast.Name) and call.id in ("getattr", "hasattr") for call in calls)


def test_what_is_asked_by_name_is_listed():
    found = Counter({name(path): n for path in FILES if (n := asks(path))})
    wrong = {k: (found[k], asked()[k]) for k in {*found, *asked()} if found[k] != asked()[k]}
    assert not wrong, f"(calls there, calls listed): {wrong}"
    assert found.total() <= MOST_ASKED
