"""What an open live page costs a run: agent steps/s without and with it, A B A B …

    python bench/watched.py [--seconds 30] [--pairs 4]

Each run is a new impala on toy:catch; B has `polyplay watch` and chromium with its page open. The first reports are
left out. Needs chromium, chromedriver and polyplay[watch]; nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from common import RESULTS, about, lines_about, publish, table

sys.path.insert(0, str(Path(__file__).parents[1]))
from docs.browser import Browser
from polyplay.core.files import read_lines

POLYPLAY = [sys.executable, "-m", "polyplay"]
OPTIONS = ["--env", "toy:catch", "--preset", "quick", "--network", "mlp", "--inputs", "raw", "--no-tensorboard"]
WARM = 10.0  # seconds of a run that do not count
PORT = 8798


def rate(run: Path, seconds: float, watched: bool) -> float:
    """Agent steps/s from the first report after WARM to the last one."""
    minutes = str((WARM + seconds) / 60)
    call = [*POLYPLAY, "train", "impala", *OPTIONS, "--report-every", "1", "--minutes", minutes, "--run", str(run)]
    training = subprocess.Popen(call, stdout=subprocess.DEVNULL)
    while not (run / "config.json").exists() and training.poll() is None:
        time.sleep(0.1)
    if watched:
        watch(run, training)
    if training.wait() != 0:
        raise SystemExit(f"the run in {run} failed")
    rows = [r for r in read_lines(run / "metrics.jsonl", "steps", "wall_seconds") if r["wall_seconds"] >= WARM]
    return (rows[-1]["steps"] - rows[0]["steps"]) / (rows[-1]["wall_seconds"] - rows[0]["wall_seconds"])


def watch(run: Path, training: subprocess.Popen[bytes]) -> None:
    """Have the page open until the run has ended."""
    call = [*POLYPLAY, "watch", str(run), "--port", str(PORT)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        browser = Browser()
        try:
            browser.open(page.stdout.readline().split()[-1])
            training.wait()
        finally:
            browser.close()
            page.send_signal(signal.SIGINT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=4)
    options = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(2 * options.pairs):
            watched = i % 2 == 1
            rates[watched].append(rate(Path(folder) / str(i), options.seconds, watched))
            print(f"{'with' if watched else 'without'} the page {rates[watched][-1]:,.0f} steps/s", flush=True)
    report(rates)


def report(rates: dict[bool, list[float]]) -> None:
    """Write bench/results/watched.*."""
    pairs = list(zip(rates[False], rates[True], strict=True))
    rows = [
        {"without the page, steps/s": round(a), "with it": round(b), "ratio": round(b / a, 3)}
        for a, b in [*pairs, (mean(rates[False]), mean(rates[True]))]
    ]
    what = about()
    text = ["# An open live page", "", *lines_about(what), "", "In turn; the last row has the means.", "", *table(rows)]
    publish(RESULTS / "watched", {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
