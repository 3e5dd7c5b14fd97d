"""Makes docs/pictures/*.png anew, at 1280 and 360 px. live_page: a running impala, a finished ppo, and both together,
in about two minutes. play: a game against the committed champion of connect four.

    python docs/screenshots.py [live_page | play]

Needs chromium and polyplay[watch].
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from docs.browser import Browser, missing

PICTURES = Path(__file__).parent / "pictures"
PORT = 8799
WIDTHS = (1280, 360)
POLYPLAY = [sys.executable, "-m", "polyplay"]
CHAMPION = "bench/champions/connect_four"
MOVES = 6  # of the person, who plays what the agent's search finds
BEST = "state.now.visits.indexOf(Math.max(...state.now.visits))"
IMPALA = ["impala", "--preset", "quick", "--network", "mlp", "--inputs", "raw", "--minutes", "10"]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of polyplay that goes on meanwhile."""
    process = subprocess.Popen([*POLYPLAY, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def take(name: str, runs: list[Path], browser: Browser) -> None:
    """One picture for each width."""
    with started("watch", *map(str, runs), "--port", str(PORT)) as page:
        assert page.stdout is not None
        url = page.stdout.readline().split()[-1]
        for width in WIDTHS:
            browser.size(width)
            browser.open("about:blank")
            browser.open(url)
            browser.wait(f"return document.querySelectorAll('.chart svg').length == {2 * len(runs)}")
            browser.picture(PICTURES / f"live_page_{name}_{width}.png")


def take_live_page(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ppo, impala = folder / "ppo", folder / "impala"
        train = [*POLYPLAY, "train", "ppo", "--env", "toy:catch", "--steps", "20000", "--run", str(ppo)]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        with started("train", *IMPALA, "--env", "toy:catch", "--run", str(impala)):
            time.sleep(30)
            take("impala", [impala], browser)
            take("ppo", [ppo], browser)
            take("two", [impala, ppo], browser)


def take_play(browser: Browser) -> None:
    """After some moves, with the search and the solver at their ends."""
    with started("play", CHAMPION, "--simulations", "800", "--port", str(PORT)) as page:
        assert page.stdout is not None
        url = page.stdout.readline().split()[-1]
        browser.size(WIDTHS[0])
        browser.open(url)
        for n in range(MOVES):
            browser.wait(f"return state && state.moves.length === {2 * n} && !state.thinking")
            browser.run(f"document.querySelector(`[data-action='${{{BEST}}}']`).click()")
            browser.wait(f"return state.moves.length > {2 * n}")
        for width in WIDTHS:
            browser.size(width)
            browser.open(url)
            browser.wait("return state && state.mover === state.person && !state.thinking && !state.solver.solving", 60)
            browser.picture(PICTURES / f"play_{width}.png")


def main(which: str) -> None:
    if missing():
        raise SystemExit("screenshots need chromium and chromedriver")
    PICTURES.mkdir(exist_ok=True)
    browser = Browser()
    try:
        if which in ("", "live_page"):
            take_live_page(browser)
        if which in ("", "play"):
            take_play(browser)
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
