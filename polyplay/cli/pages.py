"""Pages served to this machine only; the page of `polyplay watch`.

Routes of a local page, and the guard before them: requests that name another host are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyplay.cli.watch import RunReader
from polyplay.core.files import to_plain
from polyplay.runs import directory as run_files

SHARED = [Path(__file__).parent / "page" / name for name in ("base.css", "base.js")]
INDEX = "index.html"
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class LocalOnly:
    """Refuses requests that name another host, as a page of a foreign name that leads here would; adds HEADERS."""

    def __init__(self, app: ASGIApp, port: int):
        self.app = app
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        local = len(hosts) == 1 and hosts[0].lower() in self.hosts
        app = self.app if local else PlainTextResponse("this page is for this machine only", 403)
        await app(scope, receive, with_headers)


def page_application(folder: Path, routes: Sequence[Route], port: int) -> Starlette:
    """A page's own files, index.html at its root, the files that all pages share, and these routes."""
    files = [*sorted(path for path in folder.iterdir() if path.is_file()), *SHARED]
    names = {path: "/" if path.name == INDEX else f"/{path.name}" for path in files}
    found = [Route(name, lambda request, path=path: FileResponse(path)) for path, name in names.items()]
    found.append(Route("/favicon.ico", lambda request: Response(status_code=204)))  # browsers ask for it by themselves
    return Starlette(routes=[*found, *routes], middleware=[Middleware(LocalOnly, port=port)])


def answer_if_new(request: Request, state: object) -> Response:
    """A page's state as JSON; 304 if it is what the page has."""
    text = json.dumps(to_plain(state))
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(text, media_type="application/json", headers={"etag": tag})


# The page's server: this machine only, the page, its numbers as JSON, and two requests behind a token.


PAGE = Path(__file__).parent / "page" / "watch"
TOKEN = "x-polyplay-token"
ASKS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "stop": (run_files.request_end, "it saves a checkpoint and ends"),
    "checkpoint": (run_files.request_save, "it saves a checkpoint at its next update"),
}


class Runs:
    """The runs of a page. Requests come on several threads: one reads at a time."""

    def __init__(self, directories: list[Path], token: str):
        self.readers = [RunReader(directory) for directory in directories]
        self.token, self.lock = token, threading.Lock()

    def state(self, request: Request) -> Response:
        """Everything the page shows; 304 if nothing has changed."""
        with self.lock:
            state = [reader.state() for reader in self.readers]
        return answer_if_new(request, state)

    def ask(self, request: Request) -> Response:
        """A request to a run, by ASKS."""
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(), self.token.encode()):
            return JSONResponse({"answer": "the token is missing or wrong: open the URL that was printed"}, 403)
        index, asked = request.path_params["index"], ASKS.get(request.path_params["what"])
        if index >= len(self.readers) or asked is None:
            return JSONResponse({"answer": "there is no such run"}, 404)
        if not asked[0](self.readers[index].directory):
            return JSONResponse({"answer": "no process of this machine writes there"}, 409)
        return JSONResponse({"answer": asked[1]})


def application(directories: list[Path], token: str, port: int) -> Starlette:
    """The page over these runs, for the given port of this machine."""
    runs = Runs(directories, token)
    routes = [Route("/state", runs.state), Route("/runs/{index:int}/{what}", runs.ask, methods=["POST"])]
    return page_application(PAGE, routes, port)
