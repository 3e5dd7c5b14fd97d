"""Takes docs/pictures/*.png at 1280 and 390 px. live_page: a running impala, a finished ppo, and both together, in
about two minutes. play: the end of a game that the committed champion of connect four wins. go: the upper part of the
page in a game of Go against its champion, at 1280 px. site: the first screens of README.md, as Markdown alone shows it,
and of three pages that `make docs` built, into bench/results/site.

    python docs/screenshots.py [live_page | play | go | site]

Needs chromium and polyplay[watch]; for go and site Pillow too.
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


def save_few(browser: Browser, out: Path, width: int, height: float, colors: int = COLORS) -> None:
    """Take the upper part of the page, with few colors."""
    from PIL import Image

    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    found = browser.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
    picture.quantize(colors, dither=Image.Dither.NONE).save(out, optimize=True)


def take_go(browser: Browser) -> None:
    """Take the page as far down as the board and its surroundings."""
    with played(browser, CHAMPIONS / "go9", 12, 200) as url:
        settle(browser, url)
        height = browser.run("return document.querySelector('.game').getBoundingClientRect().bottom + 24")
        save_few(browser, PICTURES / f"play_go9_{WIDTHS[0]}.png", WIDTHS[0], height)


SITE = {"home": "index", "system": "docs/systems/impala", "reference": "docs/reference/command_line"}
PLAIN = """body { font: 16px/1.5 sans-serif; max-width: 900px; margin: auto; padding: 24px; color: #1f2328 }
pre, code { background: #f6f8fa; font-size: 85% } pre { padding: 16px; overflow: auto } img { max-width: 100% }
table { display: block; overflow: auto; border-collapse: collapse }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
h1, h2 { border-bottom: 1px solid #d1d9e0 } a { color: #0969da }"""
TALL, SHOWN = 1800, 15  # pixels of a page that are taken; seconds until a moving picture shows some of its game


def take_site(browser: Browser) -> None:
    """Take the upper part of each page at both widths."""
    import markdown

    root, out = PICTURES.parents[1], PICTURES.parents[1] / "bench" / "results" / "site"
    text = markdown.markdown((root / "README.md").read_text(), extensions=["fenced_code", "tables"])
    viewport = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    with tempfile.NamedTemporaryFile("w", suffix=".html", dir=root) as file:
        file.write(f"<!doctype html>{viewport}<style>{PLAIN}</style>{text}")
        file.flush()
        pages = {"readme": file.name} | {name: f"{root}/build/site/{page}.html" for name, page in SITE.items()}
        for name, page in pages.items():
            for width in WIDTHS:
                browser.size(width)
                browser.open(f"file://{page}")
                time.sleep(SHOWN if name in ("readme", "home") else 0)
                save_few(browser, out / f"{name}_{width}.png", width, TALL, 64)


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
        if which == "site":
            take_site(browser)
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
