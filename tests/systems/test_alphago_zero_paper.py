"""The paper's page at its own size: Go on 19×19, and a network of 20 blocks of 256 filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import checkpoint, tree
from polyplay.core.files import read_lines
from polyplay.envs import Envs
from polyplay.games.board_pool import board_of
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population.judge import Gate
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.self_play import SelfPlay, game_rows
from polyplay.systems._alphago_zero import search_of
from tests.search.test_self_play import context


def player(**more: Any) -> SelfPlay:
    """One game of the paper's page, with weights that are drawn."""
    page = systems.load("alphago_zero")
    c = page.Config(**more)
    envs = Envs(c.env, 1)
    board, policy = board_of(envs), BoardNetworkFactory(envs.spec, c.blocks, c.filters)
    evaluator = NetworkEvaluator(policy, c.leaves, threads=0)
    evaluator.take(0)
    queue = RolloutQueue(game_rows(board), {}, board.longest + 1, 1, 1)
    return SelfPlay(context(), board, 1, search_of(c), evaluator, queue.producer(0))


def steps(made: SelfPlay) -> Iterator[None]:
    for _ in made.slots(lambda: 0):
        yield


def same_search(one: SelfPlay, other: SelfPlay) -> bool:
    states = [made.search.state() for made in (one, other)]
    return all(np.array_equal(states[0][k], states[1][k]) for k in states[0])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_it_plays_moves_and_goes_on_to_the_bit_within_a_search():
    """1,600 simulations of a move, 8 leaves at a time: about 200 evaluations."""
    made = player()
    assert (made.search.options.simulations, made.search.options.leaves) == (1600, 8)
    going = steps(made)
    for _ in range(5):
        next(going)
    done = int(made.search.tree.plays["done"][0])
    assert 0 < done < 1600, "within a search"
    saved = tree.map(np.array, made.save())
    again = player()
    again.load(saved)
    also = steps(again)
    for _ in range(5):
        next(going)
        next(also)
    assert same_search(made, again)
    assert made.search.tree.plays["done"][0] > done
    for _ in range(450):
        next(going)
        if made.games.length[0] == 2:
            break
    assert made.games.length[0] == 2, "two moves"
    assert made.moves["visits"][0, :2].sum(1) == pytest.approx(1, abs=1e-5)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_page_on_19x19(tmp_path, monkeypatch):
    """Games, window, updates of two learners, candidates, matches, champions; only sizes are small. Who has played a
    match passes: by chance none of the few candidates might.
    """
    monkeypatch.setattr(Gate, "verdict", lambda gate, points, played: True if played == gate.games else None)
    small: Any = {"blocks": 1, "filters": 8, "simulations": 8, "leaves": 4, "games": 8, "players": 2, "learners": 2}
    small |= {
        "batch": 64,
        "capacity": 8_000,
        "start": 2_000,
        "ratio": 4.0,
        "gate": 0.5,
        "gate_games": 4,
        "gate_every": 20,
    }
    run = polyplay.train(
        "alphago_zero",
        **{**small, "preset": "paper", "champion_games": 8, "tensorboard": False, "report_every": 1.0},
        run=str(tmp_path / "run"),
        steps=60_000,
        on="thread",
    )
    rows = list(read_lines(run.directory / "metrics.jsonl", "updates"))
    assert run.reason == "done"
    assert rows[-1]["updates"] > 500
    sizes = [row["replay_size"] for row in rows if row.get("replay_size") is not None]
    assert sizes[-1] <= 8_000 < rows[-1]["steps"], "the window moved on"
    played = list(read_lines(run.directory / "matches.jsonl", "candidate"))
    assert played
    assert len(checkpoint.champions(run.directory)) == 1 + sum(row["passed"] for row in played) > 1
    known = [row["value_accuracy"] for row in rows if row.get("value_accuracy") is not None]
    assert max(known[-2:]) > 0.6
