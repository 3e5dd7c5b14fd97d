"""Learners and searches on a device, without emulators: replay learners, self-play, Five and FTW."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from common import Row
from gpu_alone import Wired, alone, learner_alone, rate
from gpu_runs import BASE, Day
from self_play import ours

from polyplay.core.tree import Batch
from polyplay.envs import Envs
from polyplay.nets.device import is_half
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search.evaluators import NetworkEvaluator

LEARNERS: dict[str, tuple[str, Row]] = {
    "DQN, batch 32": ("dqn", {"batch": 32}),
    "DQN, batch 512": ("dqn", {"batch": 512}),
    "Ape-X, batch 512": ("apex", {"batch": 512, "actors": 1, "lanes": 16}),
    "R2D2, 64 sequences of 80": ("r2d2", {"batch": 64, "actors": 1, "lanes": 16}),
    "CatDQN, batch 2,048": ("accel_dqn", {"batch": 2048, "replicas": 1}),
    "Rainbow, batch 2,048": ("rainbow", {"batch": 2048, "lanes": 16}),
}
PUBLISHED = {
    "Ape-X, batch 512": "9.7 K transitions/s (Horgan et al. 2018)",
    "CatDQN, batch 2,048": "30 K frames/s a GPU: 240 K on 8 (Stooke & Abbeel 2018)",
}
CASES = {  # env, blocks, filters, positions in a batch, of the network alone and of each player
    "connect four, 5×64": ("game:connect_four", 5, 64, 512),
    "Go 9×9, 10×128": ("game:go+size=9", 10, 128, 256),
    "Go 19×19, 20×256": ("game:go", 20, 256, 128),
}
SIMULATIONS = 1600  # of a move (Silver et al. 2017)


def learners(day: Day) -> Iterator[Row]:
    """Updates of learners that draw from a replay, which noise has filled."""
    for name in (*LEARNERS,)[1:4] if day.short else LEARNERS:
        system, keywords = LEARNERS[name]
        keywords = {"capacity": 40_000, "start": 4_000, **keywords}
        if day.short:
            keywords = {**keywords, "batch": 4, "capacity": 1_000, "start": 100, "lanes": 2, "network": "a3c"}
            keywords |= (
                {"sequence": 8, "burn_in": 4, "unroll": 8, "pull": 8, "core_size": 16} if system == "r2d2" else {}
            )
        wired = Wired(system, {**day.fixed, **keywords})
        found = learner_alone(wired, day.seconds(1.5), 20 if day.short else 200)
        ratio = getattr(wired.settings, "ratio", 0.0)
        frames = 4 * found["transitions"] / ratio if ratio else None
        yield {"learner": name, **found, "frames/s at its ratio": frames, "published": PUBLISHED.get(name)}
        if day.gpu:
            torch.cuda.empty_cache()


def search(day: Day) -> Iterator[Row]:
    """Evaluations/s of the network alone and as a search asks it; self-play by a few players that share the device."""
    precision = "bfloat16" if is_half("auto", day.device) else "float32"
    for name, (env, blocks, filters, batch) in list(CASES.items())[: 1 if day.short else None]:
        if day.short:
            blocks, filters, batch = 1, 8, 4
        evaluator = NetworkEvaluator(
            BoardNetworkFactory(Envs(env, 1).spec, blocks, filters), batch, "torch", precision, day.device
        )
        evaluator.take(0)
        row: Row = {"network": name, "precision": precision, "batch": batch, **evaluations(evaluator, batch, day)}
        yield row | plays(day, env, blocks, filters, batch, precision)


def evaluations(evaluator: NetworkEvaluator, batch: int, day: Day) -> Row:
    """Of positions that lie on the device, and of NumPy arrays there and back."""
    rng, device, seconds = np.random.default_rng(0), torch.device(day.device), day.seconds(1.5)
    planes = rng.integers(0, 2, (batch, *evaluator.network.planes)).astype(np.float32)
    near, backend = torch.from_numpy(planes).to(device, memory_format=torch.channels_last), evaluator._backend
    with torch.inference_mode():
        alone_ = rate(lambda: backend.folded(near), batch, seconds, device)
    return {
        "network alone/s": alone_,
        "evaluations/s": rate(lambda: evaluator.evaluate(planes), batch, seconds, device),
    }


def plays(day: Day, env: str, blocks: int, filters: int, games: int, precision: str) -> Row:
    """Simulations/s of the page's own self-play, each move searched anew."""
    asked = argparse.Namespace(env=env, games=games, blocks=blocks, filters=filters, device=day.device)
    asked.players, asked.simulations = (1, 8) if day.short else (min(8, day.cores), 100)
    asked.window, asked.turn, asked.spread = (0.3, 0.3, 0.2) if day.short else (4.0, 4.0, 1.0)
    found = ours("torch", precision, False, asked)
    answer = {"players": asked.players, "simulations/s": found["simulations/s"], "of its evaluators": found["share"]}
    return answer | {"moves/hour at 1,600 simulations": 3600.0 * found["simulations/s"] / SIMULATIONS}


# ------------------------------------------------------------------------------------------------------- Five and FTW

FIVE: Row = {"actors": 1, "learners": 1, "inputs": "raw"}
FTW: Row = {"actors": 1}
GAMES: dict[str, tuple[str, Row, int, int]] = {  # system, settings, rows and columns of an update
    "Five, LSTM 1,024": ("five", {**FIVE, "core_size": 1024}, 16, 120),
    "Five, LSTM 4,096": ("five", {**FIVE, "core_size": 4096}, 16, 120),
    "FTW": ("ftw", FTW, 100, 32),
}


def games(day: Day) -> Iterator[Row]:
    """Acting and learning of one agent on the device, with data that is already there."""
    for name in (*GAMES,)[1:] if day.short else GAMES:
        system, keywords, T, B = GAMES[name]
        if day.short:
            keywords, T, B = {**keywords, "preset": "quick", "core_size": 16}, 8, 2
        given = {k: v for k, v in {**BASE, "device": day.device}.items() if k != "env"}
        wired = Wired(system, {**given, **keywords})
        extras = windows if system == "five" else examples
        lanes = 4 if day.short else 128
        found = alone(wired, lanes, T, B, day.seconds(1.5), extras)
        yield {"learner": name, "lanes": lanes, "rows": T * B, **found}
        if day.gpu:
            torch.cuda.empty_cache()


def windows(rows: Batch) -> Any:
    """Rows as Five's optimizer has them: with targets, made when they came."""
    first = rows["first"]
    made = {k: torch.zeros_like(first, dtype=torch.float32) for k in ("advantage", "target", "logp", "value")}
    return {**rows, **made, "valid": torch.ones_like(first)}


def examples(rows: Batch) -> Any:
    """Rows as FTW's learner has them: with as many examples for reward prediction as it draws."""
    recent = {k: v[:3] for k, v in rows["obs"].items()}
    return {**rows, "recent": recent, "recent_reward": torch.zeros(rows["first"].shape[1], device=rows["first"].device)}
