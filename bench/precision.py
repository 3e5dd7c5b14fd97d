"""Networks in bfloat16 against float32, on one core: acting for 1, 16 and 64 lanes, an update from 40 and 160 rows.

    python bench/precision.py

Each pair is measured in turn, block by block, with the library's own policies and V-trace loss on random images:
CPU time per row, and the median of the blocks' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import io
import json
import logging
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table

import polyplay
from polyplay.buffers.rollout_queue import row_spec
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import losses
from polyplay.nets import actor_critic, device, factory
from polyplay.nets.onnx import export_onnx
from polyplay.weights.params import FlatParams
from polyplay.workers.row_costs import cpu_cost

BOTH = ("float32", "bfloat16")
SPEC = EnvSpec(Field((4, 84, 84), "uint8"), Discrete(6))


def rows(policy: actor_critic.ActorCritic, shape: tuple[int, ...]) -> tree.Batch:
    made = tree.zeros(row_spec(SPEC.obs, policy.spec(), None), shape)
    made["obs"][...] = np.random.default_rng(0).integers(0, 256, made["obs"].shape)
    return tree.map(torch.from_numpy, made)


def acting(policy: actor_critic.ActorCritic, n: int) -> Callable[[], object]:
    row = rows(policy, (n,))
    row["noise"] = torch.rand(n, policy.noise)

    def act() -> None:
        with torch.no_grad():
            policy.act(row, {})

    return act


def learning(policy: actor_critic.ActorCritic, n: int) -> Callable[[], object]:
    vector, loss, batch = FlatParams(policy), losses.VTrace(), rows(policy, (5, n // 5))

    def update() -> None:
        vector.zero_grad()
        loss(policy, None, batch, {}, {"entropy_cost": 0.01}).loss.backward()

    return update


def in_turn(pair: list[Callable[[], object]], seconds: float) -> list[list[float]]:
    """CPU seconds of a turn of each, block by block."""
    for turn in pair:
        for _ in range(3):
            turn()
    found: list[list[float]] = [[], []]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found[1]) < 5:
        for turn, times in zip(pair, found, strict=True):
            before = time.process_time()
            for _ in range(5):
                turn()
            times.append((time.process_time() - before) / 5)
    return found


def measure(network: str, what: str, n: int, seconds: float) -> Row:
    pair = []
    for how in BOTH:
        torch.manual_seed(0)
        policy = device.set_precision(factory.NetworkFactory(network, SPEC, {"exact": False})(), how)
        pair.append((acting if what == "act" else learning)(policy, n))
    times = in_turn(pair, seconds)
    row: Row = {"network": network, "what": what, "rows": n}
    row |= {f"{how}, µs a row": statistics.median(t) / n * 1e6 for how, t in zip(BOTH, times, strict=True)}
    return row | {"float32 / bfloat16": statistics.median(a / b for a, b in zip(*times, strict=True))}


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=["a3c", "ga3c", "nature", "impala"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair")
    parser.add_argument("--out", type=Path, default=RESULTS / "precision")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    where, found = about(), []
    for network in asked.networks:
        for what, n in (("act", 1), ("act", 16), ("act", 64), ("learn", 40), ("learn", 160)):
            found.append(measure(network, what, n, asked.seconds))
            print(found[-1], flush=True)
    has = f"- the processor multiplies bfloat16 itself: {'yes' if device.is_half('auto') else 'no'}"
    text = ["# bfloat16 against float32", "", *lines_about(where), has, "", *table(found)]
    publish(asked.out, {**where, "rows": found}, text)


# An actor's forward pass by other means: would a compiled, exported or quantized network make acting cheaper?


Turn = Callable[[np.ndarray], np.ndarray]  # images [n, 4, 84, 84] → greedy actions [n]


def eager(policy: actor_critic.ActorCritic) -> Turn:
    return lambda x: policy.act({"obs": torch.from_numpy(x)}, {})[0]["action"].numpy()


def compiled(policy: actor_critic.ActorCritic) -> Turn:
    policy = copy.deepcopy(policy)
    step = torch.compile(lambda x: policy.act({"obs": x}, {})[0]["action"], dynamic=False)
    return lambda x: step(torch.from_numpy(x)).numpy()


def onnx(file: Path) -> Turn:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(["action"], {"obs": x})[0]


def quantized(file: Path) -> Turn:
    """Weights of the matrix products in 8 bits, activations quantized as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = file.with_suffix(".int8.onnx")
    quantize_dynamic(file, small, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"])
    return onnx(small)


def openvino(file: Path) -> Turn:
    import openvino as ov

    settings: Any = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False, "INFERENCE_PRECISION_HINT": "f32"}
    model = ov.Core().compile_model(str(file), "CPU", settings)
    ask = model.create_infer_request()
    return lambda x: ask.infer({"obs": x})["action"]


def means(network: str, place: Path) -> dict[str, Turn]:
    """By name; a line for each that is not there."""
    torch.manual_seed(0)
    policy = factory.NetworkFactory(network, SPEC, {"exact": False})()
    file = place / f"{network}.onnx"
    with contextlib.redirect_stdout(io.StringIO()):
        export_onnx(copy.deepcopy(policy), SPEC, file, {})
    makers: dict[str, Callable[[], Turn]] = {
        "polyplay": lambda: eager(policy),
        "torch.compile": lambda: compiled(policy),
        "onnxruntime": lambda: onnx(file),
        "onnxruntime, int8 products": lambda: quantized(file),
        "OpenVINO": lambda: openvino(file),
    }
    answer = {}
    for name, make in makers.items():
        try:
            answer[name] = make()
            answer[name](np.zeros((1, *SPEC.obs.shape), np.uint8))
        except Exception as e:  # a package that is not there, or cannot do this network
            answer.pop(name, None)
            print(f"inference: {name} is left out: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
    return answer


def measure_inference(network: str, n: int, turns: dict[str, Turn], asked: argparse.Namespace) -> list[Row]:
    """A row for each means; rounds of all in turn, the median of the rounds' ratios."""
    images = rows(factory.NetworkFactory(network, SPEC, {"exact": False})(), (n,))["obs"].numpy()
    first = next(iter(turns.values()))(images)
    found: dict[str, list[float]] = {name: [] for name in turns}
    with torch.no_grad():
        for _ in range(asked.rounds):
            for name, turn in turns.items():
                found[name].append(cpu_cost(lambda turn=turn: turn(images), asked.seconds) / n)  # type: ignore[misc]
        same = {name: float(np.mean(turn(images) == first)) for name, turn in turns.items()}
    answer = []
    for name, us in found.items():
        ratio = float(np.median(np.array(us) / np.array(found["polyplay"])))
        saved = float(np.median(found["polyplay"])) * (1.0 - ratio)
        row: Row = {"network": network, "lanes": n, "by": name, "µs a row": float(np.median(us)), "/ polyplay": ratio}
        answer.append({**row, "actions": same[name], "gain": f"{100 * saved / asked.step:+.1f} %"})
    return answer


def run_inference() -> None:
    """An actor's forward pass by other means: would a compiled, exported or quantized network make acting cheaper?

        pip install onnxruntime openvino      # what is not there is left out; torch.compile needs a C++ compiler
        python bench/precision.py inference

    One core. Every means computes the same policy's acting step on the same random images, in turn, block by block: CPU
    time per row, and its ratio to what actors do (the library's own forward pass, float32). `actions`: the share of
    greedy actions that are torch's. `gain`: by how much a whole agent step becomes cheaper, which costs `--step` µs of
    a core (environment, acting, learning: polyplay bench), if only the forward pass does.
    """
    parser = command_line(run_inference.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=["a3c", "nature"])
    parser.add_argument("--lanes", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each means in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", type=float, default=1000.0, help="µs of a core that an agent step takes")
    parser.add_argument("--out", type=Path, default=RESULTS / "inference")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    where, found = about(), list[Row]()
    with tempfile.TemporaryDirectory() as place:
        for network in asked.networks:
            turns = means(network, Path(place))
            for n in asked.lanes:
                found += measure_inference(network, n, turns, asked)
                print(*table(found[-len(turns) :]), sep="\n", flush=True)
    text = ["# An actor's forward pass by other means", "", *lines_about(where), ""]
    text += [f"An agent step is taken to cost {asked.step:g} µs of a core.", "", *table(found)]
    publish(asked.out, {**where, "rows": found}, text)


# The server of examples/serve.py under load


OBS = {"obs": [0.01, -0.02, 0.03, 0.04]}  # of CartPole


async def ask(port: int, until: float) -> list[float]:
    """A client: one request after the other on one connection, until a time; seconds that each took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(OBS)
    head = f"POST /act HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    taken = []
    while (before := time.perf_counter()) < until:
        writer.write((head + body).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split()[0]))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"serving: {answer.decode()}")
        taken.append(time.perf_counter() - before)
    writer.close()
    return taken


async def ask_together(port: int, clients: int, seconds: float) -> np.ndarray:
    """Milliseconds of every request of so many clients."""
    until = time.perf_counter() + seconds
    return (
        np.array([s for found in await asyncio.gather(*(ask(port, until) for _ in range(clients))) for s in found])
        * 1e3
    )


def busy(*processes: psutil.Process) -> float:
    """Seconds that the machine's cores have worked for others than these processes."""
    all_of_it = psutil.cpu_times()
    return sum(all_of_it[:3]) + sum(all_of_it[5:8]) - sum(sum(p.cpu_times()[:2]) for p in processes)


def serve(policy: Path, clients: list[int], seconds: float) -> Iterator[Row]:
    """Start the server of a policy, and yield a row for each number of clients."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, ROOT / "examples" / "serve.py", policy, "--port", str(port)])
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        both = psutil.Process(server.pid), psutil.Process()
        for n in clients:
            asyncio.run(ask_together(port, n, 1.0))
            before, taken = busy(*both), asyncio.run(ask_together(port, n, seconds))
            row: Row = {"by": "onnxruntime" if policy.suffix else "polyplay.load", "clients": n}
            row |= {"requests/s": len(taken) / seconds}
            row |= {f"p{q}, ms": float(np.percentile(taken, q)) for q in (50, 99)}
            row |= {"server, MB": both[0].memory_info().rss / 2**20}
            yield row | {"others' cores": max(0.0, (busy(*both) - before) / seconds)}
    finally:
        server.terminate()
        server.wait()


def run_serving() -> None:
    """Requests per second and latency of examples/serve.py, from a run and from its ONNX file, in float32.

        pip install fastapi uvicorn onnxruntime
        python bench/precision.py serving

    The policy is ppo's network for CartPole, with normalized inputs. The server has one process; the clients, each with
    one connection on loopback and one request at a time, are in this one and take a core of their own.
    """
    parser = command_line(run_serving.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each number of clients")
    parser.add_argument("--out", type=Path, default=RESULTS / "serving")
    asked = parser.parse_args()
    where, found = about(), list[Row]()
    where["versions"] |= {name: metadata.version(name) for name in ("fastapi", "uvicorn", "onnxruntime")}
    with tempfile.TemporaryDirectory() as place:
        run = polyplay.train("ppo", env="CartPole-v1", inputs="normalize", steps=5_000, quiet=True, run=f"{place}/cart")
        polyplay.export(run.directory, f"{place}/cart.onnx")
        for policy in (run.directory, Path(place, "cart.onnx")):
            found += serve(policy, asked.clients, asked.seconds)
    text = ["# A served policy", "", *lines_about(where), "", *table(found)]
    publish(asked.out, {**where, "rows": found}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "inference": run_inference, "serving": run_serving}))
