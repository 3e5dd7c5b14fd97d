from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.play_sessions import session_of, settle

pytest.importorskip("httpx")
testclient = pytest.importorskip("starlette.testclient")
server = pytest.importorskip("polyplay.cli.play_page")
OWN = {"X-Polyplay": "play"}


@pytest.fixture
def page() -> Iterator[testclient.TestClient]:
    with session_of("tic_tac_toe", 4) as session:
        yield testclient.TestClient(server.application(session, 8766), base_url="http://127.0.0.1:8766")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/play.css", "text/css"), ("/base.css", "text/css"), ("/board.js", "javascript")],
)
def test_pages_and_their_headers(page, path: str, kind: str):
    reply = page.get(path)
    assert reply.status_code == 200
    assert kind in reply.headers["content-type"]
    assert reply.headers["content-security-policy"].startswith("default-src 'self';")


@pytest.mark.parametrize("host", ["example.com:8766", "127.0.0.1:80", "127.0.0.1"])
def test_a_foreign_host_is_refused(page, host: str):
    for path in ("/", "/state", "/nothing"):
        assert page.get(path, headers={"Host": host}).status_code == 403
    assert page.post("/game/new", headers={"Host": host, **OWN}, json={"person": 0}).status_code == 403


def test_a_page_from_elsewhere_changes_nothing(page):
    """A browser sends no header of this name for a foreign page without asking first, which nothing here allows."""
    assert page.post("/game/move", json={"action": 4, "ply": 0}).status_code == 403
    asked = {"Origin": "http://example.com", "Access-Control-Request-Method": "POST"}
    reply = page.options("/game/move", headers={**asked, "Access-Control-Request-Headers": "x-polyplay"})
    assert reply.status_code == 405
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert page.get("/state").json()["moves"] == []


def test_moves_undo_sides_and_a_new_game(page):
    def ask(what: str, **given: int):
        return page.post(f"/game/{what}", headers=OWN, json=given)

    assert ask("move", action=4, ply=0).json()["moves"][0] == 4
    assert ask("simulations", simulations=9).json()["simulations"] == 9
    assert ask("undo").json()["moves"] == []
    assert ask("sides", person=1).json()["person"] == 1
    new = ask("new", person=0).json()
    assert (new["moves"], new["person"]) == ([], 0)


@pytest.mark.parametrize(
    ("what", "given", "says"),
    [
        ("move", {"action": 9, "ply": 0}, "action: 9 given, allowed: 0 to 8"),
        ("move", {"action": "4", "ply": 0}, "action: '4' given, allowed: 0 to 8"),
        ("move", {"action": 4, "ply": 1}, "it is not your turn"),
        ("move", {}, "action: None given, allowed: 0 to 8"),
        ("undo", {}, "there is no move of yours to take back"),
        ("simulations", {"simulations": 1001}, "simulations: 1001 given, allowed: 0 to 1000"),
        ("simulations", {"simulations": True}, "simulations: True given, allowed: 0 to 1000"),
        ("new", [1], "person: None given, allowed: 0 to 1"),
    ],
)
def test_what_cannot_be_done_says_why(page, what: str, given: object, says: str):
    reply = page.post(f"/game/{what}", headers=OWN, json=given)
    assert (reply.status_code, reply.json()) == (409, {"answer": says})


def test_damaged_requests_and_unknown_ones(page):
    assert page.post("/game/new", headers=OWN, content=b"{").status_code == 409
    assert page.post("/game/resign", headers=OWN).status_code == 404
    assert page.get("/game/new").status_code == 405


def test_the_state_comes_again_only_when_it_has_changed():
    with session_of("tic_tac_toe", 4) as session:
        page = testclient.TestClient(server.application(session, 8766), base_url="http://127.0.0.1:8766")
        settle(session)
        tag = page.get("/state").headers["etag"]
        assert page.get("/state", headers={"If-None-Match": tag}).status_code == 304
        session.simulate(5)
        assert page.get("/state", headers={"If-None-Match": tag}).status_code == 200
