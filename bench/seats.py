"""Agent steps a second of acting at a table: four agents, each with a group of 16 of 64 lanes, and one agent in the
same four groups.

    python bench/seats.py

toy:skirmish, a game of four players that costs little. The workers are those of a run: `four agents` is a league's
(acting.table), with a copy of the weights for each agent; `one agent` has the same table and the same matches, and its
one policy acts in all groups; `one agent, whole matches` is an ordinary actor (acting.worker), whose groups hold
matches of their own. Before each rollout every agent gets new weights, which the worker pulls; only the worker's turns
are timed. Arms take turns in one process; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay.acting.actor import Actor, LanePlayer
from polyplay.acting.rows import policy_from_cpu
from polyplay.acting.worker import act, act_at_table
from polyplay.buffers.rollout_queue import AgentBatches, Collator, RolloutQueue
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.weights.params import AgentParams, FlatParams

LEAST = 0.95  # of one agent's rate, that is promised of four
AGENTS = 4
FOUR, ONE, WHOLE = "four agents", "one agent", "one agent, whole matches"
LSTM = {"core": "lstm", "previous": True}
NETS: dict[str, dict[str, object]] = {"mlp": {}, "lstm": LSTM, "lstm of 64": {**LSTM, "core_size": 64}}


class Acting:
    """A worker that acts, without a crew: whoever learns is played by this, and not timed."""

    def __init__(self, arm: str, net: str, asked: argparse.Namespace):
        agents = AGENTS if arm == FOUR else 1
        envs = Envs(asked.env, asked.lanes, AGENTS, agents=1 if arm == WHOLE else AGENTS)
        policy = NetworkFactory("auto", envs.spec, NETS[net])
        self.vector = FlatParams(build_network(policy, 0))
        self.params = AgentParams(policy(), agents)
        self.queue = RolloutQueue.of(envs, policy(), asked.unroll, 1, 2, agents, apart=True)
        self.ctx = WorkerContext("act", 0, 1, 0, 1, Counters(1), RunControl(), patience=0.0)
        rows, state = self.queue.rows, self.queue.state
        joins = [Collator(rows, state, self.queue.lanes, 1) for _ in range(agents)]
        source = AgentBatches(self.queue, 1, wait=False)
        self.batches = [source.consumer(agent, join) for agent, join in enumerate(joins)]
        self.version, self.seconds = 0, 0.0
        self._publish()
        self.worker = self._worker(arm, policy, envs)

    def _worker(self, arm: str, policy: NetworkFactory, envs: Envs) -> Iterator[None]:
        if arm == FOUR:
            return act_at_table(self.ctx, policy=policy, out=self.queue, params=self.params, envs=envs)
        if arm == WHOLE:
            return act(self.ctx, policy=policy, out=self.queue, params=self.params.each[0], envs=envs)
        return self._one_at_table(policy, envs)

    def _one_at_table(self, policy: NetworkFactory, envs: Envs) -> Iterator[None]:
        """act() with the seating of four agents."""
        net, producer, params = build_network(policy, 0), self.queue.producer(0), self.params.each[0]
        vector = FlatParams(net)
        player = LanePlayer(policy_from_cpu(net), producer)
        player.pull = lambda k: params.pull(vector, player.version)
        actor = Actor(self.ctx, envs.open(self.ctx.env_seed), player.policy, producer, 0, [player])
        for slots in actor.rollouts():
            for slot in slots or ():
                producer.commit(slot)
            yield

    def _publish(self) -> None:
        for params in self.params.each:
            params.publish(self.vector, self.version, self.version)
        self.version += 1

    def round(self) -> None:
        """A rollout of every group; what comes of it is taken, and new weights are there."""
        begun = time.perf_counter()
        next(self.worker)
        self.seconds += time.perf_counter() - begun
        for batches in self.batches:
            while next(batches) is not None:
                pass
        self._publish()

    def rate(self, seconds: float) -> float:
        """Agent steps a second, over so many seconds of acting."""
        steps, self.seconds = self._steps(), 0.0
        while self.seconds < seconds:
            self.round()
        return float((self._steps() - steps) / self.seconds)

    def _steps(self) -> float:
        return float(self.ctx.all_counters.column("steps")[0])


def measure(net: str, asked: argparse.Namespace) -> Row:
    """Rates of the arms in turn, and the ratios of every round."""
    arms = {name: Acting(name, net, asked) for name in (FOUR, ONE, WHOLE)}
    for arm in arms.values():
        arm.rate(asked.warm)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(asked.rounds):
        for name, arm in arms.items():
            rates[name].append(arm.rate(asked.seconds))
    ratios = {b: [x / y for x, y in zip(rates[FOUR], rates[b], strict=True)] for b in (ONE, WHOLE)}
    return {"net": net, "rates": rates, "ratios": ratios}


def page(rows: list[Row], what: Row, asked: argparse.Namespace) -> list[str]:
    aims = [
        verdict(f"{row['net']}: four agents / {name}, median of the rounds", spread(found)["median"], least=LEAST)
        for row in rows
        for name, found in row["ratios"].items()
    ]
    shown = [
        {"network": row["net"], "": name, "agent steps/s": said(spread(rates), 0),
         "four agents / this": said(spread(row["ratios"].get(name, ()))) if name != FOUR else None}
        for row in rows
        for name, rates in row["rates"].items()
    ]  # fmt: skip
    text = ["# Four agents at a table", "", *lines_about(what), f"- load average before: {what['load']:.1f}"]
    text += [f"- {asked.env}, {asked.lanes} lanes in {AGENTS} groups, rollouts of {asked.unroll} steps"]
    text += [f"- {asked.rounds} rounds of {asked.seconds:g} s for each arm", "", *aims, "", *table(shown)]
    return text


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--env", default="toy:skirmish", help="of four seats")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--unroll", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of acting, of an arm in a round")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of an arm that do not count, at first")
    parser.add_argument("--out", type=Path, default=RESULTS / "seats")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    what = {**about(), "load": os.getloadavg()[0]}
    rows = [measure(net, asked) for net in asked.nets]
    publish(asked.out, {**what, "rows": rows}, page(rows, what, asked))


if __name__ == "__main__":
    main()
