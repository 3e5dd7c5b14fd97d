"""The page in a real browser: numbers appear, the console stays empty and nothing is asked for elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.browser import Browser, missing
from tests.verbs import free_port

pytestmark = [pytest.mark.long, pytest.mark.skipif(missing(), reason="chromium or its driver is not installed")]
POLYPLAY = [sys.executable, "-m", "polyplay"]
IMPALA = ["impala", "--preset", "quick", "--network", "mlp", "--inputs", "raw", "--report-every", "1"]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*POLYPLAY, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@pytest.mark.timeout(300)
def test_a_running_a_finished_and_two_runs(tmp_path: Path):
    ppo, impala = tmp_path / "ppo", tmp_path / "impala"
    catch = ["--env", "toy:catch", "--no-tensorboard"]
    subprocess.run([*POLYPLAY, "train", "ppo", *catch, "--steps", "6000", "--run", str(ppo)], check=True)
    with started("train", *IMPALA, *catch, "--minutes", "4", "--run", str(impala)):
        while not (impala / "metrics.jsonl").exists():
            time.sleep(0.5)
        browser = Browser()
        try:
            for runs, standing in (
                ([impala], ["running"]),
                ([ppo], ["done"]),
                ([impala, ppo], ["running", "done"]),
            ):
                look(browser, runs, standing)
            stop(browser, impala)
        finally:
            browser.close()


@contextmanager
def page_of(runs: list[Path]) -> Iterator[str]:
    port = free_port()
    with started("watch", *map(str, runs), "--port", str(port)) as page:
        assert page.stdout is not None
        yield page.stdout.readline().split()[-1]


def look(browser: Browser, runs: list[Path], standing: list[str]) -> None:
    with page_of(runs) as url:
        browser.open("about:blank")
        browser.errors(), browser.requests()
        for width in (1280, 390):
            browser.size(width)
            browser.open(url)
            browser.wait(f"return document.querySelectorAll('.chart svg').length == {2 * len(runs)}")
            figures = browser.run("return [...document.querySelectorAll('svg .figure')].map(n => n.textContent)")
            assert any(text[0].isdigit() and "steps/s" in text for text in figures), figures
            badges = browser.run("return [...document.querySelectorAll('.badge')].map(n => n.textContent)")
            assert badges == standing
            names = browser.run("return [...document.querySelectorAll('dt')].map(n => n.textContent)")
            assert "agent steps" in names
            assert "frames" not in names, "a frame is a step here"
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.errors() == []
        origin = url.partition("#")[0]
        asked = [address for address in browser.requests() if address != "about:blank"]
        assert asked
        assert [address for address in asked if not address.startswith(origin)] == []


def stop(browser: Browser, run: Path) -> None:
    """By the buttons: a checkpoint, then the end."""
    with page_of([run]) as url:
        browser.open("about:blank")
        browser.open(url)
        browser.wait("return document.querySelector('.badge')?.textContent == 'running'")
        before = sorted(p.name for p in (run / "checkpoints").glob("[0-9]*"))
        browser.run("document.querySelector('[data-ask=checkpoint]').click()")
        browser.wait(
            "return document.querySelector('.answer').textContent == 'the run saves a checkpoint at its next update'"
        )
        end = time.monotonic() + 20
        while sorted(p.name for p in (run / "checkpoints").glob("[0-9]*")) == before:
            assert time.monotonic() < end
            time.sleep(0.2)
        browser.run("window.confirm = () => true; document.querySelector('[data-ask=stop]').click()")
        browser.wait("return document.querySelector('.badge').textContent == 'stopped'", 60)
        assert "stopped by SIGINT" in browser.run("return document.body.innerText")
