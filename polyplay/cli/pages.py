"""Web applications that serve the pages of `polyplay watch` and `polyplay play` to this machine only."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from polyplay.cli.watch import RunReader
from polyplay.core.files import Row, parse_json, to_plain
from polyplay.runs import directory as run_files

if TYPE_CHECKING:
    from polyplay.cli.play_session import PlaySession

SHARED = [Path(__file__).parent / "page" / name for name in ("base.css", "base.js")]
INDEX = "index.html"
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


async def add_headers(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Answer a web request, and add the security HEADERS to the answer."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


def page_application(folder: Path, routes: Sequence[Route]) -> Starlette:
    """Return a web application that serves the files in `folder` (index.html at the root), the files that all pages
    share, and these routes. It answers only requests for localhost or 127.0.0.1, so that no foreign site can use it.
    """
    files = [*sorted(path for path in folder.iterdir() if path.is_file()), *SHARED]
    names = {path: "/" if path.name == INDEX else f"/{path.name}" for path in files}
    found = [Route(name, lambda request, path=path: FileResponse(path)) for path, name in names.items()]
    found.append(Route("/favicon.ico", lambda request: Response(status_code=204)))  # browsers request it automatically
    guards = [
        Middleware(BaseHTTPMiddleware, dispatch=add_headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"]),
    ]
    return Starlette(routes=[*found, *routes], middleware=guards)


def answer_if_new(request: Request, state: object) -> Response:
    """Answer with a page's state as JSON, or with status 304 if the page already has this state."""
    text = json.dumps(to_plain(state))
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(text, media_type="application/json", headers={"etag": tag})


# The page of `polyplay watch`: the runs' numbers as JSON, and two requests that need a token.


WATCH = Path(__file__).parent / "page" / "watch"
TOKEN = "x-polyplay-token"
ASKS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "stop": (run_files.request_end, "the run saves a checkpoint and ends"),
    "checkpoint": (run_files.request_save, "the run saves a checkpoint at its next update"),
}


class Runs:
    """The training runs that a page shows. A lock lets one thread at a time read the runs' files."""

    def __init__(self, directories: list[Path], token: str):
        self.readers = [RunReader(directory) for directory in directories]
        self.token, self.lock = token, threading.Lock()

    def state(self, request: Request) -> Response:
        """Answer with the state of all runs."""
        with self.lock:
            state = [reader.state() for reader in self.readers]
        return answer_if_new(request, state)

    def ask(self, request: Request) -> Response:
        """Pass a request of the page on to the run: stop, or save a checkpoint. Requests need the right token."""
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(), self.token.encode()):
            return JSONResponse({"answer": "the token is missing or wrong: open the URL that was printed"}, 403)
        index, asked = request.path_params["index"], ASKS.get(request.path_params["what"])
        if index >= len(self.readers) or asked is None:
            return JSONResponse({"answer": "no such run"}, 404)
        if not asked[0](self.readers[index].directory):
            return JSONResponse({"answer": "no process on this machine writes to this run"}, 409)
        return JSONResponse({"answer": asked[1]})


def watch_application(directories: list[Path], token: str) -> Starlette:
    """Return the web application of `polyplay watch`, which shows these runs."""
    runs = Runs(directories, token)
    routes = [Route("/state", runs.state), Route("/runs/{index:int}/{what}", runs.ask, methods=["POST"])]
    return page_application(WATCH, routes)


# The page of `polyplay play`: the state of the game as JSON, and requests of the person who plays.


PLAY = Path(__file__).parent / "page" / "play"
FROM_PAGE = "x-polyplay"  # header of the page's own requests; browsers forbid it to foreign pages


def play_application(session: PlaySession) -> Starlette:
    """Return the web application of `polyplay play`, in which a person plays one game."""
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
        """Answer with the state of the game."""
        return answer_if_new(request, session.state())

    async def change(request: Request) -> Response:
        """Do what the person asks, and answer with the new state, or with status 409 if that is impossible."""
        if FROM_PAGE not in request.headers:
            return JSONResponse({"answer": "only the page itself may send this"}, 403)
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
    return page_application(PLAY, routes)


def _whole(given: Row, name: str, end: int) -> int:
    value = given.get(name)
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{name} {value!r}: must be a whole number from 0 to {end - 1}")
    return value
