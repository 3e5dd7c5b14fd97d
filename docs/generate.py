"""Write the generated parts of the documentation: `python docs/generate.py`; with --check, fail if one is not current.

A generated part of a page lies between two comments on separate lines: `<!-- generated: KIND ARGUMENTS -->` and
`<!-- end -->`. What is between them is replaced. The kinds are the functions in KINDS; the tables come from the
dataclasses that the command line itself is made from, and the texts from the commands' own --help.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "bench"))

import gpu_day  # noqa: E402
import learning_queue  # noqa: E402
import recap  # noqa: E402

from docs import rooms, signatures  # noqa: E402
from polyplay import systems  # noqa: E402
from polyplay.cli import main  # noqa: E402
from polyplay.envs.rules import RULES  # noqa: E402
from polyplay.runs import flags, options  # noqa: E402
from polyplay.runs.flags import meanings  # noqa: E402
from polyplay.systems import _presets  # noqa: E402

BLOCK = re.compile(r"^(<!-- generated: (?P<what>.+?) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
PLACES = ("*.md", "docs/**/*.md", "bench/README.md")


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted(p for pattern in PLACES for p in ROOT.glob(pattern))


# Tables of dataclasses


def shown(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 10_000 and value % 1000 == 0:
        return f"{value // 1_000_000}M" if value % 1_000_000 == 0 else f"{value // 1000}k"
    if isinstance(value, float):
        return shortest(value)
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return "none" if value is None else str(value)


def shortest(value: float) -> str:
    """2.5e-4 for what Python prints as 0.00025."""
    if value == 0 or abs(value) >= 0.001:
        return f"{value:g}"
    text = next(t for t in (f"{value:.{digits}e}" for digits in range(17)) if float(t) == value)
    return re.sub(r"e-0?", "e-", text)


def choices(hint: Any) -> list[str]:
    found = [str(a) for a in get_args(hint)] if get_origin(hint) is Literal else []
    return found or [c for a in get_args(hint) for c in choices(a)]


def prose(text: str, page: Path) -> str:
    """A comment as Markdown: options as code, pages as links, nothing that would end a table's cell."""
    parts = text.replace("|", "\\|").split("`")  # every second one is code already
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<![\w-])(--[a-z][a-z-]+)", r"`\1`", parts[i])
        parts[i] = re.sub(r"\bdocs/([\w/]+)\.md", lambda m: link(m[0], page), parts[i])
    return "`".join(parts)


def link(path: str, page: Path) -> str:
    name = Path(path).stem.replace("_", " ")
    return f"[{name}]({os.path.relpath(ROOT / path, page.parent)})"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def describe(hint: Any, text: str, page: Path) -> str:
    """Return the meaning of a field and its values: a list, or a range of numbers."""
    allowed = ", ".join(map(code, choices(hint))) or str(flags.range_of(hint) or "")
    return "; ".join(part for part in (prose(text, page), allowed) if part)


def of_dataclass(value: Any, page: Path, spell: Callable[[str], str], head: str) -> str:
    """The table of a dataclass's fields; the defaults are those of the instance `value`."""
    hints, texts = flags.option_types(type(value)), meanings(type(value))
    rows = (
        (code(spell(f.name)), code(shown(getattr(value, f.name))), describe(hints[f.name], texts[f.name], page))
        for f in fields(value)
    )
    return table((head, "default", "meaning"), rows)


# The kinds


def fields_of(page: Path, system: str) -> str:
    """A system's fields, with the defaults of preset `paper`."""
    return of_dataclass(systems.load(system).Config(), page, str, "field")


def presets_of(page: Path, system: str) -> str:
    """Return the fields that presets change: those of the page, with descriptions, and those tuned for environments."""
    module = systems.load(system)
    made = {name: make() for name, make in module.presets.items()}
    first = next(iter(made.values()))
    notes = [f"- `{name}`: {prose(about(make), page)}" for name, make in module.presets.items() if about(make)]
    tuned = {name: _presets.settings(module, name) for name in _presets.tuned(module)}
    parts = [changed(made, first), "\n".join(notes)]
    if tuned:
        head = (
            "Presets that a run chooses by its environment, unless `--preset` names one; an empty cell is the default:"
        )
        parts += [head, changed(tuned, first), "\n".join(tuned_notes(page, module, tuned))]
    return "\n\n".join(parts)


def changed(made: Mapping[str, Any], first: Any) -> str:
    """Return a table of the fields in which configurations differ from the first; only `first` itself shows all."""
    names = [f.name for f in fields(first) if any(differ(c, first, f.name) for c in made.values())]

    def cell(c: Any, name: str) -> str:
        return code(shown(getattr(c, name))) if c is first or differ(c, first, name) else ""

    rows = ([code(name), *(cell(c, name) for c in made.values())] for name in names)
    return table(["field", *map(code, made)], rows)


def tuned_notes(page: Path, module: Any, tuned: Mapping[str, Any]) -> Iterator[str]:
    """Yield the source of each tuned preset, and its other options for single environments."""
    for name, section in _presets.tuned(module).items():
        yield f"- `{name}`: {prose(section['source'], page)}."
        images, values = section.get("shown", {}), section.get("envs", {})
        for env in dict.fromkeys([*values, *images]):
            own = vars(_presets.settings(module, name, env))
            given = {k: v for k, v in own.items() if k != "env" and repr(v) != repr(getattr(tuned[name], k))}
            given |= images.get(env, {})
            words = (flags.flag(k) + f" {shown(v)}" * (v is not True) for k, v in given.items())
            yield f"- `{name}`, `{env}`: {', '.join(map(code, words))}."


def differ(a: Any, b: Any, name: str) -> bool:
    return repr(getattr(a, name)) != repr(getattr(b, name))


def about(make: Callable[[], Any]) -> str:
    return " ".join((make.__doc__ or "").split())


def systems_table(page: Path, *columns: str) -> str:
    """Every system, linked to its page, with these of its six choices; without any all of them."""
    wanted = [c.strip() for c in " ".join(columns).split(",") if c.strip()]
    rows = {name: systems.load(name).row for name in systems.names()}
    wanted = wanted or [name for name in next(iter(rows.values())) if name not in ("idea", "good for")]
    where = os.path.relpath(ROOT / "docs" / "systems", page.parent)
    body = ([f"[`{n}`]({os.path.normpath(f'{where}/{n}.md')})", *(row[c] for c in wanted)] for n, row in rows.items())
    return table(["system", *wanted], body)


def rooms_table(page: Path) -> str:
    """The rooms of the package, as its code has them."""
    return table(["room", "what it is", "files", "code", "imports"], rooms.rows())


def run_options(page: Path) -> str:
    """The options that every system has."""
    return of_dataclass(options.RunOptions(), page, flags.flag, "option")


def rules(page: Path) -> str:
    """Return the rules for environments, and the consequence of breaking each one."""
    return table(["rule", "what it says", "a run"], ([code(k), prose(r.says, page), r.run] for k, r in RULES.items()))


def exactness(page: Path) -> str:
    """Return the number of runs of bench/exactness.py that resumed bitwise, by system and by the claim of the plan."""
    rows = json.loads((ROOT / "bench" / "results" / "exactness.json").read_text())["rows"]
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        kinds.setdefault((row["system"], row["documented"]), []).append(row["resumed"])
    where = os.path.relpath(ROOT / "docs" / "systems", page.parent)
    body = [
        [f"[`{system}`]({where}/{system}.md)", said, str(len(found)), str(found.count("exact"))]
        for (system, said), found in sorted(kinds.items())
    ]
    return table(["system", "its plan says", "runs", "resumed bitwise"], body)


def gpu(page: Path) -> str:
    """Return the measurements of bench/gpu_day.py."""
    folder = ROOT / "bench" / "results" / "gpu"
    return gpu_day.everything(folder, os.path.relpath(folder, page.parent))


def learning(page: Path) -> str:
    """Return the finished runs of bench/learning_queue.py."""
    return learning_queue.sections(ROOT / "bench" / "results" / "learning")


def rates(page: Path) -> str:
    """Published rates of other systems."""
    return "\n".join(recap.markdown(None))


def usage(page: Path) -> str:
    """Return the output of `polyplay --help`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main.main(["--help"])
    return fence(printed.getvalue())


def fence(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def verb(page: Path, name: str) -> str:
    """The options of one verb, as its --help-all has them."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main.dispatch([name, "--help-all"])
    except flags.Help as asked:
        tables = [of_dataclass(v, page, flags.flag, "option") for v in asked.defaults if is_dataclass(v) and fields(v)]
        for switch, mode in asked.modes.items():
            tables += [
                prose(f"{switch}: {flags.docstring(mode)}", page),
                of_dataclass(mode(), page, flags.flag, "option"),
            ]
        return "\n\n".join([f"`{asked.command}`", prose(" ".join(asked.about.split()), page), *tables])
    return fence(printed.getvalue())


def verbs(page: Path) -> str:
    """A section for every verb but those that take a system."""
    rest = [name for name in main.VERBS if name != "train"]
    return "\n\n".join(f"## {name}\n\n{verb(page, name)}" for name in rest)


INHERITED = ("Run", "Loss", "Policy", "Torso", "LearnerPart", "PolicyFactory")  # their methods are shown
CALLED = {"Crew": ("add", "agent_steps"), **dict.fromkeys(("Replay", "RolloutQueue", "Params"), ("of",))}
SCORED = ("A2C", "PPO", "QLoss", "VTrace")  # losses whose `score` a subclass calls: it is shown
PLAIN = {  # what has no docstring
    "Batch": "A row or several of them: a dict of arrays or tensors by name, such as `obs`, `action`, `reward`.",
    "REPLAY_METRICS": "Names of a replay's metrics, for `System`.",
}


def extend(page: Path) -> str:
    """Every name of polyplay/extend.py with what it takes, its docstring and its fields; of some the methods too."""
    from polyplay import extend

    return "\n\n".join(entry(name, vars(extend)[name]) for name in extend.__all__)


def api(page: Path) -> str:
    """Every name that `import polyplay` offers."""
    import polyplay

    return "\n\n".join(entry(name, getattr(polyplay, name)) for name in polyplay.__all__ if not name.startswith("_"))


def entry(name: str, found: Any) -> str:
    """A section of the reference."""
    if get_origin(found) is Annotated:
        kind = "whole number" if get_args(found)[0] is int else "number"
        return f"## {name}\n\nType of an option in `Config`: a {kind} {flags.range_of(found)}."
    if name in PLAIN:
        return f"## {name}\n\n{PLAIN[name]}"
    own = vars(found) if name in INHERITED else CALLED.get(name, ("score",) * (name in SCORED))
    methods = {k: getattr(found, k) for k in own if k == "__call__" or not k.startswith("_")}
    given = [f.name for f in fields(found) if f.init] if is_dataclass(found) and name != "Crew" else []
    said = meanings(found) if given else {}
    lines = [f"- `{field}`: {said[field]}" for field in given if said.get(field)]
    parts = [f"## {name}", "" if name in CALLED else signature(name, found), inspect.getdoc(found), "\n".join(lines)]
    for method, value in methods.items():
        if inspect.isroutine(value) and (text := inspect.getdoc(value)):
            parts += [f"### {name}.{method}", signature(method, value), text]
    return "\n\n".join(filter(None, parts))


def signature(name: str, found: Any) -> str:
    """Return the signature as code; nothing for an exception."""
    if isinstance(found, type) and issubclass(found, Exception):
        return ""
    text = str(inspect.signature(found))
    text = re.sub(r"ForwardRef\('([^']*)'\)|(?<=[:>] )'([^']*)'", lambda m: m[1] or m[2], text)
    return fence(f"{name}{text.replace('<factory>', '…')}")


KINDS: dict[str, Callable[..., str]] = {
    "fields": fields_of,
    "presets": presets_of,
    "systems": systems_table,
    "rooms": rooms_table,
    "options": run_options,
    "rules": rules,
    "exactness": exactness,
    "gpu": gpu,
    "learning": learning,
    "rates": rates,
    "usage": usage,
    "extend": extend,
    "api": api,
    "verbs": verbs,
}


# The pages


def filled(page: Path, text: str) -> str:
    """Return the text of `page` with current generated parts."""

    def fill(found: re.Match[str]) -> str:
        kind, *words = found["what"].split()
        if kind not in KINDS:
            raise SystemExit(f"{page.relative_to(ROOT)}: no kind {kind}; there are {', '.join(KINDS)}")
        return f"{found[1]}\n{KINDS[kind](page, *words)}\n\n{found[3]}"

    return BLOCK.sub(fill, text)


def stale(write: bool = False) -> list[str]:
    """The pages whose generated parts are not current; with `write` they are written."""
    found = []
    for page in pages():
        text = page.read_text()
        made = filled(page, text)
        if made != text:
            found.append(str(page.relative_to(ROOT)))
            if write:
                page.write_text(made)
    typed = ROOT / signatures.FILE
    if typed.parent.is_dir() and signatures.stub() != (typed.read_text() if typed.exists() else ""):
        found.append(str(signatures.FILE))
        if write:
            typed.write_text(signatures.stub())
    return found


def command(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page is not current")
    check = parser.parse_args(words).check
    found = stale(write=not check)
    for name in found:
        print(f"{name}: {'not current, run python docs/generate.py' if check else 'written'}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(command())
