"""Everything that a machine with a GPU can tell, in one call, the most important first.

    bash bench/gpu_wheels.sh                 # here: collects the packages that such a machine lacks
    bash bench/gpu_day.sh WHEELS OUT         # there: installs them beside, and runs this script; no network needed
    python bench/gpu_day.py --device cpu --short     # a rehearsal on a CPU: every part, no result

Each part has its own process and time limit. It prints its table as it ends and writes PART.json and PART.md. A part
that fails is a line with its error, and the next part begins. No part begins after --minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from common import RESULTS, ROOT, Row, about, command_line, lines_about, table
from gpu_parts import Day, ga3c_figure, games, learners, on_policy, pong, rate, search

from polyplay.core.files import read_object, write_json
from polyplay.nets.device import synchronize

# Results of gpu_day.py for a reader: a page of each part, and all parts for the documentation


ORDER = ("machine", "tests", "ga3c", "on_policy", "learners", "search", "games", "pong")
TURNS = (
    "`kernels`: kernels of a turn; `busy`: their time over the turn's wall time. The rest is launch cost and waiting."
)
GRAPHS = (
    "`… graph`: the same by CUDA graphs; `differs`: how far their gradient or outputs are from those without, at most, "
    "over the largest number of these."
)
NOTES = {
    "ga3c": "`sps`: predictions/s; `cores`: processor use; `talk`: the ratio on 16 cores and a GPU of its time.",
    "on_policy": "`sps`: agent steps/s. `infer`, `learn`: samples/s of the device alone, one pass, with data that is "
    f"already there. {GRAPHS} `limit`: 1/(1/infer + passes/learn), of the faster ones. `recorded`: the learner fed "
    f"from memory. {TURNS}",
    "learners": "`rows`: of an update; `transitions`: learnt from per second, samples in the machine's memory; "
    f"{GRAPHS} `with_replay`: with drawing them and returning priorities on one thread. {TURNS}",
    "search": "`network alone`: positions that lie on the device; `evaluations`: arrays there and back; "
    "`simulations`: self-play of all players together, each move searched anew with 100 simulations.",
    "games": f"Samples/s with data that is already there. {GRAPHS} {TURNS}",
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


os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler says a line each time


SLACK = 5.0  # seconds beyond its limit that a part gets to end by itself
GRACE = 0.5  # minutes beyond --minutes after which a part that still runs is ended
ENDS = "PASSED|FAILED|ERROR|SKIPPED"
LINE = re.compile(rf"^(?:\[gw\d+\] \[ *\d+%\] ({ENDS}) (.+?)|(\S+::.+?) ({ENDS})(?: .*)?) *$", re.MULTILINE)  # with -v


def machine(day: Day) -> Iterator[Row]:
    """Rates of the device alone: matrix products, copies, launches."""
    device, seconds = torch.device(day.device), day.seconds(1.5)
    n = 8192 if day.gpu else 256
    for name, dtype, precision in (
        ("bfloat16", torch.bfloat16, "highest"),
        ("float32, TensorFloat-32", torch.float32, "high"),
        ("float32", torch.float32, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        per_s = rate(lambda a=a, b=b: torch.mm(a, b), 2 * n**3, seconds, device)
        yield {"what": f"matrix product of {n}, {name}", "rate": per_s / 1e12, "unit": "TFLOP/s"}
    one, other = (torch.empty(2**28 if day.gpu else 2**20, device=device) for _ in range(2))
    yield {**copied("copy on the device, read and written", one, other, 2, seconds, device), "unit": "GB/s"}
    for name, pinned in (("page-locked", True), ("pageable", False)) if day.gpu else ():
        host = torch.empty(2**26, pin_memory=pinned)
        yield {**copied(f"copy to the device, {name}", other[: len(host)], host, 1, seconds, device), "unit": "GB/s"}
    small = torch.zeros(1, device=device)
    launch = (lambda: torch.cuda._sleep(0)) if day.gpu else (lambda: small.add_(1.0))
    per_launch = 1e6 / rate(lambda: [launch() for _ in range(1000)], 1000, seconds, device)
    yield {"what": "launch of an empty kernel", "rate": per_launch, "unit": "µs"}
    for name, turn, n in launches(small) if day.gpu else ():
        yield {"what": name, "rate": 1e6 / rate(turn, n, seconds, device), "unit": "µs"}


def copied(name: str, to: torch.Tensor, source: torch.Tensor, ways: int, seconds: float, device: torch.device) -> Row:
    size = ways * source.numel() * source.element_size()
    return {"what": name, "rate": rate(lambda: to.copy_(source), size, seconds, device) / 1e9}


def launches(small: torch.Tensor) -> Iterator[tuple[str, Callable[[], object], int]]:
    """A small operation of torch, eager and in a CUDA graph: name, what makes n of them, n."""
    n = 200

    def eager() -> None:
        for _ in range(n):
            small.add_(1.0)

    graph = torch.cuda.CUDAGraph()
    eager()
    synchronize(small.device)
    with torch.cuda.graph(graph):
        eager()
    yield "a small operation, eager", eager, n
    yield "a small operation, in a CUDA graph", graph.replay, n


def tests(day: Day) -> Iterator[Row]:
    """`pytest -m gpu`, ended after its limit with a report of what there is."""
    files = sorted(p for p in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in p.read_text(encoding="utf-8"))
    words = ["-m", "gpu", "-v", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider", *map(str, files)]
    words += ["-n", str(min(6, day.cores))] if day.gpu and importlib.util.find_spec("xdist") else []
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = process.communicate(timeout=max(1.0, day.left - 8.0))
        note = None
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=7.0)
        note = "ended at its limit"
    found = {w[1] or w[2]: w[0] or w[3] for w in LINE.findall(said)}
    counts = {what.lower(): sum(v == what for v in found.values()) for what in ENDS.split("|")}
    yield {**counts, "last line": (said.strip().splitlines() or ["nothing"])[-1].strip("= "), "note": note}
    for name, what in found.items():
        if what in ("FAILED", "ERROR"):
            yield {"table": "Failed", "test": name}
    if counts["failed"] or counts["error"]:
        print(said[-6000:], flush=True)


class Part(NamedTuple):
    """title: of its page; seconds: its limit of time."""

    title: str
    rows: Callable[[Day], Iterator[Row]]
    seconds: float


PARTS = {
    "machine": Part("The machine", machine, 30.0),
    "tests": Part("Tests that need a GPU", tests, 90.0),
    "ga3c": Part("GA3C's figure: predictions/s of GA3C and A3C, by network", ga3c_figure, 150.0),
    "on_policy": Part("On-policy systems", on_policy, 150.0),
    "learners": Part("Learners alone", learners, 60.0),
    "search": Part("AlphaGo Zero: evaluations and self-play", search, 60.0),
    "games": Part("Learners of Five and FTW", games, 40.0),
    "pong": Part("Pong to a mean return of 18 by ppo", pong, 165.0),
}


def head(name: str, asked: argparse.Namespace) -> Row:
    """What stands over a part's rows."""
    what: Row = {"about": asked.about, "title": PARTS[name].title, "device": "", "short": asked.short}
    return {**what, "rows": [], "error": None}


def run_part(name: str, asked: argparse.Namespace, seconds: float) -> None:
    """A part, in a process of its own: its rows go into its file one by one."""
    os.setsid()
    data = {**head(name, asked), "device": "the CPU"}
    begun = time.monotonic()

    def write() -> None:
        write_json(asked.out / f"{name}.json", {**data, "seconds": time.monotonic() - begun})

    try:
        if asked.device == "cuda":
            data["device"] = f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
        for row in PARTS[name].rows(Day(asked.device, asked.short, seconds)):
            data["rows"].append(row)
            write()
    except BaseException as e:
        traceback.print_exc()
        data["error"] = f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[-1]}"
        raise SystemExit(1) from None
    finally:
        write()


def measured(name: str, asked: argparse.Namespace, seconds: float) -> Row:
    """Run a part; what it found, or why it found nothing."""
    (asked.out / f"{name}.json").unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(target=run_part, args=(name, asked, seconds))
    process.start()
    process.join(seconds + SLACK)
    late = process.is_alive()
    if late:
        end(process.pid or 0, process.join)
    data = head(name, asked)
    with contextlib.suppress(OSError, ValueError):
        data = read_object(asked.out / f"{name}.json")
    if late:
        data["error"] = f"ended after {seconds:.0f} s, its limit of time"
    elif process.exitcode and not data["error"]:
        data["error"] = f"its process ended with exit status {process.exitcode}"
    return data


def end(pid: int, join: Callable[[float], object]) -> None:
    """End a part and all that it started."""
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        join(seconds)


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --short, a rehearsal")
    parser.add_argument("--short", action="store_true", help="every part as short as possible")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no part begins (default: 9)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="folder (default: bench/results/gpu)")
    parser.add_argument("--archive", type=Path, help="also pack the folder into this .tar.gz after each part")
    parser.add_argument("--commit", help="of this checkout, where git does not know it")
    asked = parser.parse_args()
    asked.out, asked.about = asked.out.resolve(), about()
    asked.about["commit"] = asked.about["commit"] or asked.commit
    return asked


def main() -> int:
    asked = arguments()
    if asked.device == "cuda" and not torch.version.cuda:
        print(f"gpu_day: torch {torch.__version__} is built for the CPU; --device cpu --short is a rehearsal")
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    begun, failed = time.monotonic(), []
    for name in asked.only:
        passed = time.monotonic() - begun
        if passed > 60.0 * asked.minutes:
            print(f"{name}: left out: {asked.minutes:g} minutes are over", flush=True)
            continue
        data = measured(name, asked, min(PARTS[name].seconds, 60.0 * (asked.minutes + GRACE) - passed))
        text = page(name, data)
        write_json(asked.out / f"{name}.json", data)
        (asked.out / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"{text}\n{time.monotonic() - begun:.0f} s so far\n", flush=True)
        failed += [f"{name}: {data['error']}"] if data["error"] else []
        if asked.archive:
            pack(asked.out, asked.archive)
    print("\n".join(["every part ended without an error"] if not failed else ["failed:", *failed]))
    return 1 if failed else 0


def pack(folder: Path, archive: Path) -> None:
    """The folder as one file, whole at every moment."""
    made = shutil.make_archive(str(archive.with_suffix("").with_suffix("")) + ".part", "gztar", folder)
    os.replace(made, archive)


if __name__ == "__main__":
    sys.exit(main())
