"""Serve a trained policy over HTTP: python examples/serve.py RUN, or FILE.onnx, which needs neither Polyplay nor torch.

curl 127.0.0.1:8000/act -H 'content-type: application/json' -d '{"obs": [0.1, 0, -0.1, 0]}'    answers {"action": 1}
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, HTTPException

MOST, WAIT = 64, 0.001  # observations in a batch; seconds that the first waits for others
REFUSED = "serve.py takes policies without memory and masks, whose observation and action are one array each"
Player = tuple[tuple[int, ...], np.dtype, Callable[[np.ndarray], np.ndarray]]  # shape and type of obs; [B, …] → actions


def load_run(path: str) -> Player:
    import polyplay

    agent = polyplay.load(path)
    shape, dtype = agent.observation_space.shape, agent.observation_space.dtype
    if agent.spec.mask is not None or not shape or dtype is None:
        raise SystemExit(REFUSED)
    action, state = agent.act(np.zeros((1, *shape), dtype), greedy=True)
    if state.network or state.frames != (None,) or not isinstance(action, np.ndarray):
        raise SystemExit(REFUSED)
    return shape, dtype, lambda obs: agent.act(obs, greedy=True)[0]


def load_onnx(path: str) -> Player:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["polyplay"])["inputs"]
    if set(inputs) != {"obs"} or "action" not in [o.name for o in session.get_outputs()]:
        raise SystemExit(REFUSED)
    shape, dtype = tuple(inputs["obs"]["shape"][1:]), np.dtype(inputs["obs"]["dtype"])
    return shape, dtype, lambda obs: session.run(["action"], {"obs": obs})[0]


def read(given: list[Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return the observation of a request. Raises HTTPException 422."""
    try:
        found = np.asarray(given)
    except ValueError as e:  # lists of different lengths
        raise HTTPException(422, f"obs: {e}") from None
    if found.dtype.kind not in "iuf" or found.shape != shape:
        kind = f"{found.dtype} of shape {list(found.shape)}"
        raise HTTPException(422, f"obs: {kind} given, allowed: numbers of shape {list(shape)}")
    with np.errstate(all="ignore"):
        obs = found.astype(dtype)
    if not np.isfinite(obs).all() or (dtype.kind in "iu" and (obs != found).any()):
        raise HTTPException(422, f"obs: a number is not {dtype}")
    return obs


def make_app(player: Player) -> FastAPI:
    """Return the application. Requests that arrive together share a forward pass."""
    (shape, dtype, act), app, turn = player, FastAPI(), asyncio.Lock()
    waiting: list[tuple[np.ndarray, asyncio.Future]] = []

    async def compute() -> None:
        batch, waiting[:MOST] = waiting[:MOST], []
        try:
            actions = await asyncio.to_thread(act, np.stack([obs for obs, _ in batch]))
            for (_, done), action in zip(batch, actions.tolist(), strict=True):
                done.set_result(action)
        except Exception as e:  # each of these requests answers 500
            for _, done in batch:
                done.set_exception(e)

    @app.post("/act")
    async def answer(obs: Annotated[list[Any], Body(embed=True)]) -> dict[str, Any]:
        done = asyncio.get_running_loop().create_future()
        waiting.append((read(obs, shape, dtype), done))
        await asyncio.wait([done], timeout=WAIT)
        while not done.done():
            async with turn:
                if not done.done():  # the first request computes for all
                    await compute()
        return {"action": await done}

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a run's directory, or a file of `polyplay export --onnx`")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    served = (load_onnx if asked.policy.endswith(".onnx") else load_run)(asked.policy)
    uvicorn.run(make_app(served), host="127.0.0.1", port=asked.port, access_log=False, limit_concurrency=1000)
