"""The page in a real browser, against the committed champions: whole games by mouse and keyboard, wide and narrow."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import polyplay
from docs.browser import Browser, missing
from tests.cli.test_gtp import SMALL
from tests.verbs import free_port

pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing(), reason="chromium or its driver is not installed"),
]
CHAMPIONS = Path(__file__).parents[2] / "bench" / "champions"
WIDTHS = (1280, 360)
PATIENCE = 120.0  # seconds for a search, which is compiled first where its code is new
SETTLED = "return !state.thinking && (state.over || state.mover === state.person) && state.now !== undefined"
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38}
KEYS |= {"u": 85, "n": 78, "p": 80, "4": 52}


@contextmanager
def served(run: Path, title: str, simulations: int = 25) -> Iterator[str]:
    """The address of the page."""
    port = free_port()
    words = ["play", str(run), "--port", str(port), "--simulations", str(simulations)]
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
def url() -> Iterator[str]:
    with served(CHAMPIONS / "connect_four", "connect four") as address:
        yield address


@pytest.fixture(scope="module")
def go_url() -> Iterator[str]:
    with served(CHAMPIONS / "go9", "go, 9×9, komi 7", 8) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    made = Browser()
    try:
        yield made
    finally:
        made.close()


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
    asked = [address for address in chromium.requests() if address != "about:blank"]
    assert asked
    assert [address for address in asked if not address.startswith(url)] == []


@pytest.fixture(params=WIDTHS)
def browser(request: pytest.FixtureRequest, chromium: Browser, url: str) -> Iterator[Browser]:
    with opened(chromium, url, request.param) as page:
        yield page


def state_of(browser: Browser) -> dict[str, Any]:
    return browser.run("return state")


def text_of(browser: Browser, name: str) -> str:
    return browser.run(f"return document.getElementById('{name}').textContent")


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


def look_at_end(browser: Browser) -> None:
    look_at_result(browser)
    state = state_of(browser)
    assert text_of(browser, "news").endswith(text_of(browser, "turn"))
    assert browser.run("return document.querySelectorAll('.stone').length") == len(state["moves"])
    assert browser.run("return document.querySelectorAll('.won').length") == len(state["line"])
    assert browser.run("return document.querySelectorAll('#curve circle').length") >= len(state["moves"]) // 2


def test_a_game_to_its_end_by_keyboard(browser: Browser):
    browser.run("document.querySelector('#moves').closest('.scroll').focus()")
    for _ in range(20):
        if browser.run("return document.activeElement.closest('#board') !== null"):
            break
        press(browser, "Tab")
    assert browser.run("return document.activeElement.dataset.action") == "3", "the middle column"
    state, turn = state_of(browser), 0
    while not state["over"]:
        press(browser, "Home")
        for _ in range(state["legal"][0]):
            press(browser, "ArrowRight")
        assert browser.run("return Number(document.activeElement.dataset.action)") == state["legal"][0]
        press(browser, "Enter" if turn % 2 else " ")
        turn += 1
        after = answered(browser, len(state["moves"]))
        assert after["moves"][len(state["moves"])] == state["legal"][0]
        state = after
    look_at_end(browser)
    press(browser, "u")
    browser.wait("return !state.over")
    assert browser.run("return document.activeElement.closest('#board') !== null"), "the focus stays on the board"
    press(browser, "4")
    assert browser.run("return document.activeElement.dataset.action") == "3"
    press(browser, "n")
    browser.wait("return state.moves.length === 0")


def test_undo_and_the_other_side(browser: Browser):
    click(browser, ".board button:nth-child(4)")
    first = answered(browser, 0)
    click(browser, "#undo")
    browser.wait("return state.moves.length === 0")
    assert browser.run("return document.getElementById('undo').disabled")
    click(browser, "input[name=person][value='1']")
    state = answered(browser, 0)
    assert (len(state["moves"]), state["person"], state["mover"]) == (1, 1, 1)
    assert text_of(browser, "news").startswith("The agent played ")
    assert text_of(browser, "second").strip().startswith("you ")
    assert len(first["moves"]) == 2


def test_what_a_search_found_is_shown_while_it_grows(browser: Browser):
    browser.run(
        "const s = document.getElementById('simulations'); s.value = '6400'; s.dispatchEvent(new Event('change'))"
    )
    browser.wait("return state.now && state.now.asked === 6400 && state.now.done > 0")
    done = "return Number(document.getElementById('done').textContent.split(' /')[0].replaceAll(',', ''))"
    seen = []
    browser.wait(f"return ({done.removeprefix('return ')}) > 0")
    while state_of(browser)["thinking"]:
        seen.append(browser.run(done))
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    browser.wait("return document.getElementById('done').textContent === '6,400 / 6,400 simulations'")
    shown = browser.run("return [...document.querySelectorAll('.heated .hole')].map(n => Number(n.textContent))")
    assert len(shown) == 7
    assert 97 <= sum(shown) <= 103, "percent of the visits"
    labels = browser.run("return [...document.querySelectorAll('.board button')].map(n => n.ariaLabel)")
    assert all(
        label.startswith(f"column {name}: empty; visits ") for name, label in zip("abcdefg", labels, strict=True)
    )
    assert browser.run("return document.querySelectorAll('#variation li').length") > 3
    browser.run("const s = document.getElementById('simulations'); s.value = '0'; s.dispatchEvent(new Event('change'))")
    browser.wait("return state.now && state.now.asked === 0")
    assert text_of(browser, "done") == "the bare network"
    browser.run("document.getElementById('hints').click()")
    assert browser.run("return document.querySelectorAll('.heated').length") == 0
    browser.run("document.getElementById('hints').click(); send('simulations', { simulations: 25 })")
    browser.wait("return state.simulations === 25")


def test_the_solvers_verdicts_are_shown(browser: Browser):
    pytest.importorskip("bitbully")
    state = state_of(browser)
    found = state["solver"]["verdicts"]
    assert len(found) == len(state["legal"])
    assert text_of(browser, "solved") == "Every move is solved."
    for place in ("#letters b", "#moves td:nth-child(5)"):
        browser.wait(f"return [...document.querySelectorAll('{place}')].some(n => n.textContent.length > 1)")
        words = browser.run(f"return [...document.querySelectorAll('{place}')].map(n => n.textContent)")
        kinds = [word.split()[0] for word in words if word not in ("", "–")]
        outcomes = [found[key][0] for key in sorted(found, key=int)]
        assert [{"w": 1, "d": 0, "l": -1}[kind[0]] for kind in kinds] == outcomes


def click_action(browser: Browser, action: int) -> dict[str, Any]:
    """The state after the person's move by mouse and the agent's."""
    before = state_of(browser)
    passes = action == before["pass"]
    click(browser, "#pass" if passes else f".board button:nth-child({action + 1})")
    after = answered(browser, len(before["moves"]))
    assert after["moves"][: len(before["moves"]) + 1] == [*before["moves"], action]
    return after


def look_at_board(browser: Browser) -> None:
    """Its stones lie where the game has them, in the colours of their players."""
    state = state_of(browser)
    shown = browser.run(
        "return [...document.querySelectorAll('.cell')].map(cell => cell.querySelector('.stone'))"
        ".map(stone => stone ? 1 + stone.classList.contains('second') : 0)"
    )
    assert shown == state["cells"]
    if not state["over"]:
        assert browser.run("return document.getElementById('pass').disabled") == (state["pass"] not in state["legal"])
        look_at_moves(browser, state["now"], state["names"])


def look_at_moves(browser: Browser, search: dict[str, Any], names: list[str]) -> None:
    """From the one that the search would play on, the only one that is marked as best, by their visits."""
    listed = browser.run("return [...document.querySelectorAll('#moves tr td:first-child')].map(n => n.textContent)")
    best = names[search["variation"][0]]
    assert listed[0] == best
    assert browser.run("return [...document.querySelectorAll('#moves tr.top td:first-child')].length") == 1
    assert sorted(listed) == sorted(names[action] for action in search["legal"])
    visits = [search["visits"][names.index(name)] for name in listed]
    assert visits[1:] == sorted(visits[1:], reverse=True)
    marked = browser.run("return [...document.querySelectorAll('.best')].map(n => n.closest('button').dataset.action)")
    assert [names[int(action)] for action in marked] == [best] * (best != "pass")


def look_at_result(browser: Browser) -> None:
    state = state_of(browser)
    by = "" if state["margin"] is None else f" by {state['margin']:g}"
    winner = {None: "A draw", 0: f"You win{by}", 1: f"The agent wins{by}"}
    assert text_of(browser, "turn") == winner[state["winner"]]
    owners = browser.run("return [...document.querySelectorAll('.cell')].map(cell => cell.dataset.owner)")
    assert owners == [("", "first", "second")[owner] for owner in state["owners"] or [0] * len(state["cells"])]


def play_on(browser: Browser, choose: Callable[[dict[str, Any]], int]) -> None:
    """To the end of the game."""
    state = state_of(browser)
    while not state["over"]:
        look_at_board(browser)
        state = click_action(browser, choose(state))
    look_at_board(browser)
    look_at_result(browser)


def first_moves(state: dict[str, Any]) -> int:
    """The first legal one, after 30 moves a pass where it can be."""
    return int(state["legal"][-1 if len(state["moves"]) > 30 and state["legal"][-1] == state["pass"] else 0])


def down_a_column(state: dict[str, Any]) -> int:
    """The middle column's cells from above, then others."""
    columns = state["board"]["columns"]
    return int(min(state["legal"], key=lambda action: (abs(action % columns - columns // 2), action)))


@pytest.mark.parametrize(
    ("env", "title", "choose"),
    [
        ("game:go+size=5+komi=0.5", "go, 5×5, komi 0.5", first_moves),
        ("game:othello+size=6", "othello, 6×6", first_moves),
        ("game:spiel:hex(board_size=11)", "Hex, board size 11", down_a_column),
    ],
    ids=["go", "othello", "hex"],
)
def test_other_games_to_their_end(
    chromium: Browser, tmp_path: Path, env: str, title: str, choose: Callable[[dict[str, Any]], int]
):
    if "spiel" in env:
        pytest.importorskip("pyspiel")
    settings = {"preset": "go5", "env": env, "steps": 100, "tensorboard": False, "serial": True, "on": "thread"}
    run = polyplay.train("alphago_zero", run=str(tmp_path / "run"), **settings, **SMALL)
    with served(run.directory, title, 8) as address:
        for width in WIDTHS:
            with opened(chromium, address, width) as page:
                play_on(page, choose)
                if "othello" in env:
                    first, second = (state_of(page)["cells"].count(stone) for stone in (1, 2))
                    assert text_of(page, "discs") == f"Blue {first}, Orange {second}"
                assert any(state_of(page)["owners"]) == env.startswith("game:go")
                assert page.run(EDGES) == (edges_of_hex(state_of(page)["board"]["rows"]) if "hex" in env else [])


EDGES = """
    const edges = (cell) => ["top", "bottom", "left", "right"].filter((side) => cell.classList.contains(side));
    return [...document.querySelectorAll(".cell")].map(edges).flatMap((found, i) => (found.length ? [[i, found]] : []))
"""


def edges_of_hex(side: int) -> list[list[Any]]:
    """What the cells at the four sides are marked with."""
    found = dict[int, list[str]]()
    for i in range(side):
        last = side - 1
        for cell, mark in ((i, "top"), (last * side + i, "bottom"), (i * side, "left"), (i * side + last, "right")):
            found.setdefault(cell, []).append(mark)
    order = ["top", "bottom", "left", "right"]
    return [[cell, sorted(marks, key=order.index)] for cell, marks in sorted(found.items())]


def colors_of_owners(browser: Browser, cell: int) -> list[str]:
    """Of a cell if it were nobody's, the first player's, the second's."""
    script = (
        f"const cell = document.querySelectorAll('.cell')[{cell}];"
        "return ['', 'first', 'second'].map(owner => { cell.dataset.owner = owner;"
        "return getComputedStyle(cell.firstChild).backgroundColor; })"
    )
    return [str(color) for color in browser.run(script)]


@pytest.mark.parametrize("width", WIDTHS)
def test_go_on_9x9_by_mouse_and_keyboard(chromium: Browser, go_url: str, width: int):
    """Two stones own a corner, which has their colour at the end."""
    with opened(chromium, go_url, width) as page:
        action = {name: action for action, name in enumerate(state_of(page)["names"])}
        assert page.run("return document.querySelectorAll('#moves tr').length") == 82
        for name in ("E5", "B9", "A8"):
            click_action(page, action[name])
            look_at_board(page)
        assert page.run("return document.activeElement.dataset.action") == str(action["A8"])
        for key in ("ArrowRight", "ArrowRight", "End", "Home", "ArrowUp"):
            press(page, key)
        assert page.run("return document.activeElement.ariaLabel").startswith("A9: empty")
        for _ in range(162):
            moves = len(state_of(page)["moves"])
            press(page, "p")
            if answered(page, moves)["over"]:
                break
        state = state_of(page)
        assert state["moves"][-2:] == [action["pass"]] * 2
        assert (state["cells"][action["A9"]], state["owners"][action["A9"]]) == (0, 1)
        look_at_board(page)
        look_at_result(page)
        assert len(set(colors_of_owners(page, action["A9"]))) == 3
