"""The page's server: this machine only, the page, its numbers as JSON, and two requests behind a token."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from polyplay.cli.local_page.server import answer_if_new, page_application
from polyplay.cli.watch.reader import RunReader
from polyplay.runs.requests import request_end, request_save

PAGE = Path(__file__).parent / "page"
TOKEN = "x-polyplay-token"


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

    def end(self, request: Request) -> Response:
        return self._ask(request, request_end, "it saves a checkpoint and ends")

    def save(self, request: Request) -> Response:
        return self._ask(request, request_save, "it saves a checkpoint at its next update")

    def _ask(self, request: Request, ask: Callable[[Path], bool], done: str) -> Response:
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(), self.token.encode()):
            return JSONResponse({"answer": "the token is missing or wrong: open the URL that was printed"}, 403)
        index = request.path_params["index"]
        if index >= len(self.readers):
            return JSONResponse({"answer": "there is no such run"}, 404)
        if not ask(self.readers[index].directory):
            return JSONResponse({"answer": "no process of this machine writes there"}, 409)
        return JSONResponse({"answer": done})


def application(directories: list[Path], token: str, port: int) -> Starlette:
    """The page over these runs, for the given port of this machine."""
    runs = Runs(directories, token)
    routes = [
        Route("/state", runs.state, methods=["GET"]),
        Route("/runs/{index:int}/stop", runs.end, methods=["POST"]),
        Route("/runs/{index:int}/checkpoint", runs.save, methods=["POST"]),
    ]
    return page_application(PAGE, routes, port)
