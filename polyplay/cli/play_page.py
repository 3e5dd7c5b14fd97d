"""The page's server: the page, the game as JSON, and what a person does to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from polyplay.cli.pages import answer_if_new, page_application
from polyplay.cli.play_session import PlaySession
from polyplay.core.files import Row, parse_json, to_plain

PAGE = Path(__file__).parent / "page" / "play"
HEADER = "x-polyplay"  # of the page's own requests: the browser lets no page from elsewhere send it


class Table:
    """A session, and the requests to it."""

    def __init__(self, session: PlaySession):
        self.session = session
        self.requests: dict[str, Callable[[Row], None]] = {
            "move": lambda given: session.move(_whole(given, "action", 0, session.board.actions), _ply(given)),
            "undo": lambda given: session.undo(),
            "new": lambda given: session.restart(_whole(given, "person", 0, 2)),
            "sides": lambda given: session.take_side(_whole(given, "person", 0, 2)),
            "simulations": lambda given: session.simulate(_whole(given, "simulations", 0, session.about["most"] + 1)),
        }

    def state(self, request: Request) -> Response:
        """Everything the page shows; 304 if nothing has changed."""
        return answer_if_new(request, self.session.state())

    async def change(self, request: Request) -> Response:
        """The state after a request; 409 with the reason where it can't be done."""
        if HEADER not in request.headers:
            return JSONResponse({"answer": "only the page itself may ask this"}, 403)
        change = self.requests.get(request.path_params["what"])
        if change is None:
            return JSONResponse({"answer": f"allowed: {', '.join(self.requests)}"}, 404)
        given = parse_json(await request.body() or b"{}")
        try:
            change(given if isinstance(given, dict) else {})
        except ValueError as e:
            return JSONResponse({"answer": str(e)}, 409)
        return JSONResponse(to_plain(self.session.state()))


def application(session: PlaySession, port: int) -> Starlette:
    """The page of a session, for the given port of this machine."""
    table = Table(session)
    routes = [
        Route("/state", table.state, methods=["GET"]),
        Route("/game/{what}", table.change, methods=["POST"]),
    ]
    return page_application(PAGE, routes, port)


def _ply(given: Row) -> int:
    return _whole(given, "ply", 0, 1 << 16)


def _whole(given: Row, name: str, least: int, end: int) -> int:
    value = given.get(name)
    if type(value) is not int or not least <= value < end:
        raise ValueError(f"{name}: {value!r} given, allowed: {least} to {end - 1}")
    return value
