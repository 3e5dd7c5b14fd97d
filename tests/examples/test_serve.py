"""The server of examples/serve.py: shared forward passes, refusals, runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import polyplay
from examples import serve

OBS = [0.1, 0.0, -0.1, 0.0]


def with_client(player: serve.Player, use: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        transport = httpx.ASGITransport(serve.make_app(player), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await use(client)

    return asyncio.run(work())


def ask(player: serve.Player, *given: Any) -> list[httpx.Response]:
    """Return the answers to requests that come together."""

    async def use(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/act", json={"obs": obs}) for obs in given))

    return with_client(player, use)


def counting(sizes: list[int], shape: tuple[int, ...] = (4,), dtype: str = "float32") -> serve.Player:
    def act(obs: np.ndarray) -> np.ndarray:
        sizes.append(len(obs))
        return obs.reshape(len(obs), -1)[:, 0]

    return shape, np.dtype(dtype), act


def test_requests_that_come_together_share_forward_passes_and_each_gets_its_own_answer(monkeypatch):
    monkeypatch.setattr(serve, "WAIT", 0.2)  # seconds
    monkeypatch.setattr(serve, "MOST", 8)
    sizes = list[int]()
    answers = ask(counting(sizes), *([float(i), 0.0, 0.0, 0.0] for i in range(20)))
    assert [a.json() for a in answers] == [{"action": float(i)} for i in range(20)]
    assert sizes == [8, 8, 4]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([0.1, 0.0], "float64 of shape [2] given, allowed: numbers of shape [4]"),
        ([OBS], "float64 of shape [1, 4] given"),
        (["0.1", 0, 0, 0], "of shape [4] given, allowed: numbers"),
        ([[1], [2, 3]], "inhomogeneous"),
        ([1e300, 0, 0, 0], "a number is not float32"),
        ([None, 0, 0, 0], "object of shape [4] given"),
        ([10**30, 0, 0, 0], "object of shape [4] given"),
    ],
)
def test_what_is_no_observation_is_refused_by_422_and_computes_nothing(given: list[Any], why: str):
    sizes = list[int]()
    (answer,) = ask(counting(sizes), given)
    assert answer.status_code == 422
    assert why in answer.json()["detail"]
    assert sizes == []


def test_bytes_hold_no_fractions_and_a_request_needs_obs():
    player = counting([], (2,), "uint8")
    assert [a.status_code for a in ask(player, [0, 255], [0, 256], [0.5, 1], [-1, 0])] == [200, 422, 422, 422]
    for body in (b"", b"{", b'{"observation": [1, 2]}', b'{"obs": 3}', b'{"obs": [NaN, 1]}'):
        answer = with_client(player, lambda client, body=body: client.post("/act", content=body))
        assert answer.status_code == 422, body


def test_a_forward_pass_that_fails_answers_500_and_the_next_one_works():
    calls = list[int]()

    def act(obs: np.ndarray) -> np.ndarray:
        calls.append(len(obs))
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return obs[:, 0]

    async def use(client: httpx.AsyncClient) -> list[int]:
        send = [client.post("/act", json={"obs": OBS}) for _ in range(3)]
        failed = await asyncio.gather(*send[:2])
        return [*(a.status_code for a in failed), (await send[2]).status_code]

    assert with_client(((4,), np.dtype("float32"), act), use) == [500, 500, 200]


def test_a_run_is_served_and_acts_as_polyplay_load(tmp_path: Path):
    settings = {"env": "CartPole-v1", "serial": True, "tensorboard": False, "quiet": True}
    run = polyplay.train("a2c", **settings, steps=100, run=str(tmp_path / "r")).directory
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    want = polyplay.load(run).act(rows, greedy=True)[0]
    assert [a.json() for a in ask(serve.load_run(str(run)), *rows.tolist())] == [{"action": int(a)} for a in want]


def test_a_policy_with_memory_is_refused(tmp_path: Path):
    settings = {"env": "toy:catch", "network": "mlp", "core": "gru", "core_size": 8, "serial": True, "quiet": True}
    polyplay.train("a2c", **settings, tensorboard=False, steps=100, run=str(tmp_path / "r"))
    with pytest.raises(SystemExit, match="without memory and masks"):
        serve.load_run(str(tmp_path / "r"))
