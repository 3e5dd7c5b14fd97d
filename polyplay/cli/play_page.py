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


def application(session: PlaySession, port: int) -> Starlette:
    """The page of a session, for the given port of this machine."""
    requests: dict[str, Callable[[Row], None]] = {
        "move": lambda given: session.move(
            _whole(given, "action", session.board.actions), _whole(given, "ply", 1 << 16)
        ),
        "undo": lambda given: session.undo(),
        "new": lambda given: session.restart(_whole(given, "person", 2)),
        "sides": lambda given: session.take_side(_whole(given, "person", 2)),
        "simulations": lambda given: session.simulate(_whole(given, "simulations", session.about["most"] + 1)),
    }

    def state(request: Request) -> Response:
        """Everything the page shows; 304 if nothing has changed."""
        return answer_if_new(request, session.state())

    async def change(request: Request) -> Response:
        """The state after a request; 409 with the reason where it can't be done."""
        if HEADER not in request.headers:
            return JSONResponse({"answer": "only the page itself may ask this"}, 403)
        change = requests.get(request.path_params["what"])
        if change is None:
            return JSONResponse({"answer": f"allowed: {', '.join(requests)}"}, 404)
        given = parse_json(await request.body() or b"{}")
        try:
            change(given if isinstance(given, dict) else {})
        except ValueError as e:
            return JSONResponse({"answer": str(e)}, 409)
        return JSONResponse(to_plain(session.state()))

    routes = [Route("/state", state, methods=["GET"]), Route("/game/{what}", change, methods=["POST"])]
    return page_application(PAGE, routes, port)


def _whole(given: Row, name: str, end: int) -> int:
    value = given.get(name)
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{name}: {value!r} given, allowed: 0 to {end - 1}")
    return value
