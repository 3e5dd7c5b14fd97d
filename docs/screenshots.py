"""Makes docs/pictures/live_page_*.png anew: a running impala, a finished ppo, and both together, at 1280 and 360 px.

    python docs/screenshots.py

Needs chromium and polyplay[watch]; takes about two minutes.
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


def main() -> None:
    if missing():
        raise SystemExit("screenshots need chromium and chromedriver")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ppo, impala = folder / "ppo", folder / "impala"
        train = [*POLYPLAY, "train", "ppo", "--env", "toy:catch", "--steps", "20000", "--run", str(ppo)]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        with started("train", *IMPALA, "--env", "toy:catch", "--run", str(impala)):
            time.sleep(30)
            browser = Browser()
            try:
                take("impala", [impala], browser)
                take("ppo", [ppo], browser)
                take("two", [impala, ppo], browser)
            finally:
                browser.close()


if __name__ == "__main__":
    main()
