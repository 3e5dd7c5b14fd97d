"""Takes docs/pictures/*.png at 1280 and 390 px. live_page: a running impala, a finished ppo, and both together, in
about two minutes. play: the end of a game that the committed champion of connect four wins. go: the upper part of the
page in a game of Go against its champion, at 1280 px.

    python docs/screenshots.py [live_page | play | go]

Needs chromium and polyplay[watch]; for go Pillow too.
"""

from __future__ import annotations

import base64
import io
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
WIDTHS = (1280, 390)
POLYPLAY = [sys.executable, "-m", "polyplay"]
CHAMPIONS = Path("bench/champions")
COLORS = 256  # of a picture of a board: a third of the bytes
BEST = "state.now.visits.indexOf(Math.max(...state.now.visits))"
WORST = "state.legal.reduce((a, b) => (state.now.visits[b] < state.now.visits[a] ? b : a))"
IMPALA = ["impala", "--preset", "quick", "--network", "mlp", "--inputs", "raw", "--minutes", "10"]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of polyplay until the block ends."""
    command, pipe, nothing = [*POLYPLAY, *words], subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=pipe, stderr=nothing, text=True)
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


def wait_for_reports(run: Path, least: int = 6, seconds: float = 300.0) -> None:
    """Until a run has made that many reports."""
    reports, end = run / "metrics.jsonl", time.monotonic() + seconds
    while not reports.exists() or reports.read_bytes().count(b"\n") < least:
        assert time.monotonic() < end, f"{run} makes no reports"
        time.sleep(1)


def take_live_page(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ppo, impala = folder / "ppo", folder / "impala"
        train = [*POLYPLAY, "train", "ppo", "--env", "toy:catch", "--steps", "20000", "--run", str(ppo)]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        with started("train", *IMPALA, "--env", "toy:catch", "--run", str(impala)):
            wait_for_reports(impala)
            take("impala", [impala], browser)
            take("ppo", [ppo], browser)
            take("two", [impala, ppo], browser)


@contextmanager
def played(browser: Browser, run: Path, moves: int, simulations: int, choice: str = BEST) -> Iterator[str]:
    """Yield the address of the page of a game after at most `moves` moves of a person, each found by a script."""
    words = ["play", str(run), "--simulations", str(simulations), "--port", str(PORT)]
    with started(*words) as page:
        assert page.stdout is not None
        url = page.stdout.readline().split()[-1]
        browser.size(WIDTHS[0])
        browser.open(url)
        for n in range(moves):
            browser.wait(f"return state && (state.over || state.moves.length === {2 * n} && !state.thinking)", 60)
            if browser.run("return state.over"):
                break
            browser.run(f"play({choice})")
            browser.wait(f"return state.over || state.moves.length > {2 * n}")
        yield url


def settle(browser: Browser, url: str) -> None:
    """Open the page again, and wait until the agent's search ends."""
    browser.open(url)
    browser.wait("return state && (state.over || state.mover === state.person && !state.thinking)", 60)


def take_play(browser: Browser) -> None:
    with played(browser, CHAMPIONS / "connect_four", 21, 800, WORST) as url:
        for width in WIDTHS:
            browser.size(width)
            settle(browser, url)
            assert browser.run("return state.winner !== null && state.winner !== state.person"), "the agent lost"
            browser.picture(PICTURES / f"play_{width}.png")


def take_go(browser: Browser) -> None:
    """Take the page as far down as the board and its surroundings."""
    from PIL import Image

    with played(browser, CHAMPIONS / "go9", 12, 200) as url:
        settle(browser, url)
        height = browser.run("return document.querySelector('.game').getBoundingClientRect().bottom + 24")
        clip = {"x": 0, "y": 0, "width": WIDTHS[0], "height": height, "scale": 1}
        found = browser.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
    few = picture.quantize(COLORS, dither=Image.Dither.NONE)
    few.save(PICTURES / f"play_go9_{WIDTHS[0]}.png", optimize=True)


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
        if which in ("", "go"):
            take_go(browser)
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
