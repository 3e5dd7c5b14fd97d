"""Results of gpu_day.py for a reader: a page of each part, and all parts for the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common import Row, lines_about, table

from polyplay.core.files import read_object

ORDER = ("machine", "tests", "ga3c", "on_policy", "learners", "search", "games", "pong")
TURNS = (
    "`kernels`: kernels of a turn; `busy`: their time over the turn's wall time. The rest is launch cost and waiting."
)
NOTES = {
    "ga3c": "`sps`: predictions/s; `cores`: processor use; `talk`: the ratio on 16 cores and a GPU of its time.",
    "on_policy": "`sps`: agent steps/s. `infer`, `learn`: samples/s of the device alone, one pass, with data that is "
    f"already there. `limit`: 1/(1/infer + passes/learn). `recorded`: the learner fed from memory. {TURNS}",
    "learners": "`rows`: of an update; `transitions`: learnt from per second, samples in the machine's memory; "
    f"`with_replay`: the same with drawing them and returning priorities on one thread. {TURNS}",
    "search": "`network alone`: positions that lie on the device; `evaluations`: arrays there and back; "
    "`simulations`: self-play of all players together, each move searched anew with 100 simulations.",
    "games": f"Samples/s with data that is already there. {TURNS}",
}
NOTHING = "No speed on a GPU has been measured yet: `bash bench/gpu_day.sh` measures it."


def page(name: str, data: Row) -> str:
    """A part as a page of its own."""
    lines = [f"# {data['title']}", "", *lines_about(data["about"]), f"- device: {data['device']}"]
    lines += [f"- seconds: {data['seconds']:.0f}"] if "seconds" in data else []
    lines += ["- a rehearsal: nothing here is a result, and sizes are not those named"] if data["short"] else []
    lines += [f"- **failed**: {data['error']}"] if data["error"] else []
    return "\n".join([*lines, *noted(name), *tables(data, "##")]) + "\n"


def noted(name: str) -> list[str]:
    """What a part's columns mean."""
    return ["", NOTES[name]] if name in NOTES else []


def tables(data: Row, level: str) -> Iterable[str]:
    """The rows of a part; those of one name are one table."""
    for name in dict.fromkeys(row.get("table", "") for row in data["rows"]):
        rows = [{k: v for k, v in row.items() if k != "table"} for row in data["rows"] if row.get("table", "") == name]
        yield from ["", *([f"{level} {name}", ""] if name else []), *table(rows)]


def everything(folder: Path, link: str) -> str:
    """All parts that were measured. link: the folder, from where this is read."""
    parts = {name: read_object(folder / f"{name}.json") for name in ORDER if (folder / f"{name}.json").exists()}
    lines = []
    for name, data in parts.items():
        where = f"{data['device']}; commit {(data['about']['commit'] or 'unknown')[:12]}, {data['about']['started']}"
        lines += ["", f"### {data['title']}", "", f"{where}; [whole result]({link}/{name}.md)."]
        lines += ["", f"Failed: {data['error']}."] if data["error"] else []
        lines += [*noted(name), *tables(data, "####")]
    return "\n".join(lines).strip() or NOTHING
