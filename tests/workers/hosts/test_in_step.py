"""Workers take turns on machines of their own, and lines carry all news after each turn. The weights equal, to the bit,
those of the same workers in one memory. Ape-X needs this: as processes it repeats itself nowhere.
"""

from __future__ import annotations

import math
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from polyplay.core.shared_memory import Semaphores
from polyplay.weights.params import Params
from polyplay.workers import crew as crews
from polyplay.workers.crew import Crew, WorkerHandle
from polyplay.workers.hosts import remote
from polyplay.workers.hosts.traffic import RemoteSeat
from polyplay.workers.process import Call, SerialWorker
from polyplay.workers.role import Role
from tests.systems import settings as of
from tests.systems.trained import wired
from tests.workers.hosts.by_hand import Wire

TURNS = 150
ONE = {**of.APEX, "actors": 1, "replay_workers": 1}


class InStep:
    """A crew that takes turns, with all news carried after each. machines: of roles, by name; others are at home."""

    def __init__(self, system: str, settings: dict[str, Any], machines: dict[str, int]):
        self.crew = Crew(3, serial=True, steps=10**6, log=lambda kind, text: None)
        wired(system, self.crew, **settings)
        self.crew.start(())
        self.wires, self.numbers = list[Wire](), remote.TwinNumbers()
        away = [role.holds for role in self.crew.roles if role.name in machines]
        found = remote.dump((away, self.crew.control, self.crew.counters), self.numbers)[1]
        found = [x for x in found if not isinstance(x, Semaphores)]
        things = sorted({id(x): x for x in found}.values(), key=lambda thing: isinstance(thing, Params))
        for number in sorted({*machines.values()}):
            self._open([role for role in self.crew.roles if machines.get(role.name) == number], things)

    def _open(self, roles: list[Role], things: list[Any]) -> None:
        """A machine, and the workers of these roles there instead of here."""
        wire = Wire(*things, relay=len(self.wires), numbers=self.numbers)
        for role in roles:
            ends = {id(edge): end for end, edge in role.edges().items()}
            held = tuple((i, ends[id(thing)]) for i, thing in enumerate(things) if id(thing) in ends)
            workers = self.crew._seats[role.name].workers
            for index, worker in list(workers.items()):
                call = cloudpickle.loads(remote.dump(Call(worker.ctx, role, 1), self.numbers)[0])
                runs = SerialWorker(call.role.work(call.ctx, **call.role.holds))
                workers[index] = WorkerHandle(call.ctx, call.role, runs)
                kinds = ("learner",) * role.learner
                wire.seat(RemoteSeat(role.name, index, worker.ctx.row, held, kinds))
        self.wires.append(wire)

    def go(self) -> tuple[int, np.ndarray]:
        """Updates, and the weights that were published last."""
        for _ in range(TURNS):
            for worker in self.crew.workers():
                crews._turn(worker)
                for _ in self.wires:  # what one machine sent home goes out to the next one
                    for wire in self.wires:
                        wire.both(math.inf)
        params: Any = self.crew.learner.holds["publish"]
        vector = torch.empty(params.size)
        return params._newest.read(vector, params.check), vector.numpy()


@pytest.mark.parametrize(
    ("system", "settings", "machines"),
    [
        ("apex", ONE, {"act": 1, "serve_replay": 2}),
        ("apex", ONE, {"serve_replay": 1, "learn": 2}),
        pytest.param("apex", of.APEX, {"act": 1, "serve_replay": 1}, marks=pytest.mark.long),
        pytest.param("r2d2", of.R2D2, {"act": 1}, marks=pytest.mark.long),
    ],
)
def test_where_workers_take_turns_the_weights_are_the_same_wherever_they_are(system, settings, machines):
    updates, there = InStep(system, settings, machines).go()
    same, here = InStep(system, settings, {}).go()
    assert updates == same > 30
    assert np.array_equal(there, here)
