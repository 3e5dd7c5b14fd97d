"""The page in a real browser: whole games by mouse and keyboard, wide and narrow."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import polyplay
from docs.browser import Browser, missing
from tests.cli.test_gtp import SMALL
from tests.cli.test_play import CHAMPION
from tests.verbs import free_port

pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing(), reason="chromium or its driver is not installed"),
]
WIDTHS = (1280, 390)
PATIENCE = 120.0  # seconds for a search, which is compiled first where its code is new
SETTLED = "return !state.thinking && (state.over || (state.mover === state.person && state.now))"
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "Home": 36, "ArrowRight": 39, "u": 85, "n": 78, "p": 80, "4": 52}


@contextmanager
def served(run: Path, title: str, simulations: int = 25) -> Iterator[str]:
    """The address of the page."""
    words = ["play", str(run), "--port", str(free_port()), "--simulations", str(simulations)]
    with subprocess.Popen([sys.executable, "-m", "polyplay", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"{title} against ")
        try:
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    made = Browser()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(CHAMPION, "connect four") as address:
        yield address


@contextmanager
def opened(chromium: Browser, url: str, width: int) -> Iterator[Browser]:
    """The page with a new game, in which the person is Blue. Afterwards: no complaint, and nothing from elsewhere."""
    chromium.open("about:blank")
    chromium.errors(), chromium.requests()
    chromium.size(width)
    chromium.open(url)
    chromium.wait("return state !== null")
    chromium.run("send('new', { person: 0 })")
    chromium.wait("return state.person === 0 && state.moves.length === 0")
    chromium.wait(SETTLED, PATIENCE)
    yield chromium
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    assert chromium.errors() == []
    asked = {address for address in chromium.requests() if address != "about:blank"}
    assert asked
    assert {address for address in asked if not address.startswith(url)} == set()


@pytest.fixture(params=WIDTHS)
def browser(request: pytest.FixtureRequest, chromium: Browser, url: str) -> Iterator[Browser]:
    with opened(chromium, url, request.param) as page:
        yield page


def state_of(browser: Browser) -> dict[str, Any]:
    return browser.run("return state")


def text_of(browser: Browser, name: str) -> str:
    return browser.run(f"return document.getElementById('{name}').textContent")


def each(browser: Browser, selector: str, what: str) -> list[Any]:
    """An expression of n, the node, for every node of a selector."""
    return browser.run(f"return [...document.querySelectorAll({selector!r})].map(n => {what})")


def click(browser: Browser, selector: str) -> None:
    """With the mouse, in the middle of what the selector names."""
    script = (
        f"const box = document.querySelector({selector!r}); box.scrollIntoView({{ block: 'center' }});"
        "const r = box.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]"
    )
    x, y = browser.run(script)
    for kind in ("mousePressed", "mouseReleased"):
        browser.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def press(browser: Browser, key: str) -> None:
    text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
    code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
    browser.command("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": text} if text else {}))
    browser.command("Input.dispatchKeyEvent", type="keyUp", **code)


def answered(browser: Browser, moves: int) -> dict[str, Any]:
    """The state after the person's move and the agent's."""
    browser.wait(f"return state.moves.length > {moves}")
    browser.wait(SETTLED, PATIENCE)
    return state_of(browser)


def look_at_result(browser: Browser) -> None:
    state = state_of(browser)
    by = "" if state["margin"] is None else f" by {state['margin']:g}"
    assert text_of(browser, "turn") == {None: "A draw", 0: f"You win{by}", 1: f"The agent wins{by}"}[state["winner"]]
    owners = [("", "first", "second")[owner] for owner in state["owners"] or [0] * len(state["cells"])]
    assert each(browser, ".cell", "n.dataset.owner") == owners


def look_at_board(browser: Browser) -> None:
    """Its stones lie where the game has them, in the colors of their players; the moves are listed from the one that
    the search would play on, the only one that is marked as best, by their visits.
    """
    browser.wait(SETTLED, PATIENCE)  # an answer of before may come late
    state, stone = state_of(browser), "n.querySelector('.stone')"
    assert each(browser, ".cell", f"{stone} ? 1 + {stone}.classList.contains('second') : 0") == state["cells"]
    if state["over"]:
        return look_at_result(browser)
    search, names = state["now"], state["names"]
    listed = each(browser, "#moves tr td:first-child", "n.textContent")
    best = names[search["variation"][0]]
    assert (listed[0], each(browser, "#moves tr.top td:first-child", "n.textContent")) == (best, [best])
    assert sorted(listed) == sorted(names[action] for action in search["legal"])
    visits = [search["visits"][names.index(name)] for name in listed]
    assert visits[1:] == sorted(visits[1:], reverse=True)
    marked = each(browser, ".best", "Number(n.closest('button').dataset.action)")
    assert [names[action] for action in marked] == [best] * (best != "pass")


def test_a_game_to_its_end_by_keyboard(browser: Browser):
    focused = "return document.activeElement.dataset.action"
    browser.run("document.querySelector('#moves').closest('.scroll').focus()")
    for _ in range(20):
        if browser.run("return document.activeElement.closest('#board') !== null"):
            break
        press(browser, "Tab")
    assert browser.run(focused) == "3", "the middle column"
    state, turn = state_of(browser), 0
    while not state["over"]:
        press(browser, "Home")
        for _ in range(state["legal"][0]):
            press(browser, "ArrowRight")
        press(browser, "Enter" if turn % 2 else " ")
        turn += 1
        after = answered(browser, len(state["moves"]))
        assert after["moves"][len(state["moves"])] == state["legal"][0]
        state = after
    look_at_result(browser)
    assert len(each(browser, ".stone", "1")) == len(state["moves"])
    assert text_of(browser, "news").endswith(text_of(browser, "turn"))
    assert len(each(browser, ".won", "1")) == len(state["line"])
    assert len(each(browser, "#curve circle", "1")) >= len(state["moves"]) // 2
    press(browser, "u")
    browser.wait("return !state.over")
    press(browser, "4")
    assert browser.run(focused) == "3", "the focus stays on the board"
    press(browser, "n")
    browser.wait("return state.moves.length === 0")


def test_undo_the_other_side_and_a_search_that_grows(browser: Browser):
    click(browser, ".board button:nth-child(4)")
    assert len(answered(browser, 0)["moves"]) == 2
    click(browser, "#undo")
    browser.wait("return state.moves.length === 0 && document.getElementById('undo').disabled")
    click(browser, "input[name=person][value='1']")
    state = answered(browser, 0)
    assert (len(state["moves"]), state["person"], state["mover"]) == (1, 1, 1)
    assert text_of(browser, "news").startswith("The agent played ")
    change = "const s = document.getElementById('simulations'); s.value = '{}'; s.dispatchEvent(new Event('change'))"
    browser.run(change.format(6400))
    browser.wait("return state.now && state.now.asked === 6400 && state.now.done > 0")
    seen = list[int]()
    while state_of(browser)["thinking"]:
        seen.append(int(text_of(browser, "done").split(" /")[0].replace(",", "") or 0))
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    browser.wait("return document.getElementById('done').textContent === '6,400 / 6,400 simulations'")
    shown = each(browser, ".heated .hole", "Number(n.textContent)")
    assert len(shown) == 7
    assert 97 <= sum(shown) <= 103, "percent of the visits"
    browser.run(change.format(0))
    browser.wait("return state.now && state.now.asked === 0")
    assert text_of(browser, "done") == "the bare network"
    browser.run("document.getElementById('hints').click()")
    assert each(browser, ".heated", "1") == []
    browser.run("document.getElementById('hints').click(); send('simulations', { simulations: 25 })")
    browser.wait("return state.simulations === 25")


def test_the_solvers_verdicts_are_shown(browser: Browser):
    pytest.importorskip("bitbully")
    found = state_of(browser)["solver"]["verdicts"]
    assert len(found) == 7
    assert text_of(browser, "solved") == "Every move is solved."
    for place in ("#letters b", "#moves td:nth-child(5)"):
        browser.wait(f"return [...document.querySelectorAll('{place}')].some(n => n.textContent.length > 1)")
        kinds = [word.split()[0] for word in each(browser, place, "n.textContent") if word not in ("", "–")]
        assert [{"w": 1, "d": 0, "l": -1}[kind[0]] for kind in kinds] == [found[key][0] for key in sorted(found)]


def edges_of_hex(side: int) -> list[list[str]]:
    """What the cells at the four sides are marked with."""
    at = {"top": lambda y, x: y == 0, "bottom": lambda y, x: y == side - 1}
    at |= {"left": lambda y, x: x == 0, "right": lambda y, x: x == side - 1}
    return [[name for name, there in at.items() if there(y, x)] for y in range(side) for x in range(side)]


@pytest.mark.parametrize(
    ("env", "title", "width"),
    [
        ("game:go+size=5+komi=0.5", "go, 5×5, komi 0.5", 360),
        ("game:othello+size=6", "othello, 6×6", 1280),
        ("game:spiel:hex(board_size=11)", "Hex, board size 11", 360),
    ],
    ids=["go", "othello", "hex"],
)
def test_other_games_to_their_end(chromium: Browser, tmp_path: Path, env: str, title: str, width: int):
    """By mouse; a pass by a key. In hex down the middle column, then others; else the first legal cell."""
    if "spiel" in env:
        pytest.importorskip("pyspiel")
    settings = {"preset": "go5", "env": env, "steps": 100, "tensorboard": False, "serial": True, "on": "thread"}
    run = polyplay.train("alphago_zero", run=str(tmp_path / "run"), **settings, **SMALL)
    with served(run.directory, title, 8) as address, opened(chromium, address, width) as page:
        state = state_of(page)
        while not state["over"]:
            look_at_board(page)
            legal, done, columns = state["legal"], len(state["moves"]), state["board"]["columns"]
            (beside,) = state["others"]
            assert page.run("return document.querySelector('#others button').hidden") == (beside not in legal)
            action = min(legal, key=lambda a: (abs(a % columns - columns // 2), a)) if "hex" in env else legal[0]
            if done > 30 and legal[-1] == beside:
                action = beside
            if action == beside:
                press(page, "p")
            else:
                click(page, f".board button:nth-child({action + 1})")
            state = answered(page, done)
            assert state["moves"][done] == action
        look_at_board(page)
        if "othello" in env:
            assert text_of(page, "discs") == f"Blue {state['cells'].count(1)}, Orange {state['cells'].count(2)}"
        assert any(state["owners"]) == env.startswith("game:go")
        edges = each(page, ".cell", "['top', 'bottom', 'left', 'right'].filter(side => n.classList.contains(side))")
        assert edges == (edges_of_hex(11) if "hex" in env else [[]] * len(state["cells"]))
