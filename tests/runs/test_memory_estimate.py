from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.buffers.rollout_queue import RolloutSlots
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.runs import plan as memory
from polyplay.workers.crew import Crew
from tests.reports import rows

TOY: dict[str, Any] = {"env": "toy:catch", "network": "mlp"}


def wired(name: str, **settings: Any) -> tuple[Crew, Any]:
    page = systems.load(name)
    crew = Crew(0, steps=1000)
    return crew, page.build(page.Config(**TOY, **settings), crew)


def predict(crew: Crew, system: Any) -> dict[str, float]:
    return memory.predict_memory(crew, system.envs.spec, system.policy())


@pytest.mark.parametrize(
    ("n", "text"), [(3 * 2**19, "1.5 MB"), (12.34 * 2**20, "12.3 MB"), (2**40, "1.02e+03 GB"), (1.5 * 2**30, "1.5 GB")]
)
def test_bytes_for_people(n: float, text: str):
    assert memory.size_text(n) == text


def test_what_there_is_is_the_least_of_the_machine_and_its_control_groups(tmp_path: Path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("4096\n")
    assert memory._of_group("", "/a/b", str(tmp_path)) == [4096]
    old = tmp_path / "memory" / "x"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("8192")
    (old.parent / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert min(memory._of_group("memory", "/x", str(tmp_path))) == 8192
    assert memory._of_group("cpu,cpuacct", "/x", str(tmp_path)) == []
    assert 2**26 < memory.memory_limit() <= memory.psutil.virtual_memory().total


def test_queues_between_workers_are_counted_as_they_are():
    crew, system = wired("impala", lanes=4, batch=8)
    queue = crew.roles[0].out
    joined = 2 * queue.block.nbytes / queue.slots
    assert predict(crew, system)["rollouts"] == queue.block.nbytes + joined


def test_slots_within_replicas_are_counted_as_they_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []

    class Spy(RolloutSlots):
        def __init__(self, *given: Any, **more: Any):
            super().__init__(*given, **more)
            made.append(sum(x.nbytes for _, x in tree.leaves({"rows": self.rows, "state": self.state})))

    crew, system = wired("a2c", lanes=4, replicas=1, groups=2)
    told = predict(crew, system)["rollouts"]
    monkeypatch.setattr(sys.modules["polyplay.learning.loop"], "RolloutSlots", Spy)
    polyplay.train("a2c", **TOY, lanes=4, replicas=1, groups=2, steps=40, serial=True, run=str(tmp_path / "r"))
    assert told == made[0] * 2  # the slots of two groups are put together into one batch


@pytest.mark.parametrize(("name", "share"), [("adam", 2.0), ("rmsprop_tf", 1.0)])
def test_weights_are_a_vector_its_gradient_and_what_the_optimiser_keeps(name: str, share: float):
    crew, system = wired("a2c", replicas=1, optimizer=name)
    net = memory.bytes_of(system.policy())
    hyperparameters = 16
    assert predict(crew, system)["weights"] == pytest.approx(net * (2 + share), abs=hyperparameters)


@pytest.mark.parametrize(("name", "share"), [("adam", 2.0), ("rmsprop_tf", 1.0)])
def test_replicas_share_what_the_optimiser_keeps(name: str, share: float):
    """Each has its gradient and half of the mean; weights and statistics are there once."""
    crew, system = wired("a2c", replicas=2, optimizer=name)
    net = memory.bytes_of(system.policy())
    assert predict(crew, system)["weights"] == pytest.approx(
        net * (2 + 1 + 1 + share), abs=600
    )  # and sums, arrivals, knobs


def recent_rows_of_ftw(**settings: Any) -> float:
    page, crew = systems.load("ftw"), Crew(0, steps=1000)
    made = {"agents": 4, "learners": 2, "lanes": 8, "unroll": 40, "batch": 8, "ranges": ()}
    return predict(crew, page.build(replace(page.quick(), **made | settings), crew))["recent rows"]


def test_rows_that_auxiliary_tasks_are_learnt_from_are_counted_for_every_agent():
    game = Envs(systems.load("ftw").quick().env, 4, agents=4).spec
    row = tree.nbytes(game.obs) + 4 + 1 + 1  # the reward, first, and what may be drawn
    assert recent_rows_of_ftw(auxiliary="reward") == pytest.approx(4 * (2000 // 41) * 41 * row)
    assert recent_rows_of_ftw(auxiliary="none") == 0.0


@pytest.mark.parametrize(("name", "env"), [("a2c", "ALE/Pong-v5"), ("five", None), ("alphago_zero", None)])
def test_nothing_is_computed_to_tell_what_is_needed(name: str, env: str | None, monkeypatch: pytest.MonkeyPatch):
    page, crew = systems.load(name), Crew(0, steps=1000)
    system = page.build(replace(page.PRESETS["quick"](), **({} if env is None else {"env": env})), crew)
    net = system.policy()
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_: pytest.fail("a network was run"))
    parts = memory.predict_memory(crew, system.envs.spec, net)
    assert parts["weights"] > 0
    assert parts["rollouts"] > 0


@dataclass(frozen=True)
class Settings:
    capacity: int = 4096
    lanes: int = 64
    batch: int = 1
    actors: int = 1
    name: str = "text"


class Asked:
    """What settings need: 10 bytes a lane, and a replay."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, c: Settings) -> dict[str, float]:
        self.times += 1
        if c.batch > c.lanes:
            raise UserError("--batch: more than --lanes")
        return {"processes": 5.0, "rollouts": 10.0 * c.lanes * c.actors, "replay": float(c.capacity)}


@pytest.mark.parametrize(
    ("given", "limit", "found"),
    [
        ({}, 2000, {"capacity": 1024}),  # halved as little as will do
        ({"capacity": 64, "actors": 4}, 1000, {"lanes": 16}),
        ({"capacity": 64, "batch": 64}, 400, {"lanes": 32, "batch": 32}),  # what follows it is lowered too
        ({"capacity": 64, "lanes": 1, "actors": 64}, 400, {"actors": 32}),
        ({"actors": 4}, 1000, {"capacity": 256, "lanes": 16}),  # the largest part first, then the next
        ({}, 4, {}),
    ],
)
def test_the_largest_part_is_made_smaller_until_all_fits(given: Any, limit: int, found: dict[str, int]):
    settings, again = Settings(**given), Asked()
    assert memory.nearest_fit(again(settings), limit, settings, again) == found
    assert again.times < 20


def test_more_workers_and_environment_processes_take_more():
    crews, page = [wired("a2c", replicas=n)[0] for n in (1, 2)], systems.load("a2c")
    crews.append(Crew(0))
    page.build(page.Config(env="CartPole-v1", network="mlp", replicas=1, env_workers=3), crews[-1])
    one, two, stepped = (memory.processes(crew) / memory.MB for crew in crews)  # with what this process takes now
    assert two - one == pytest.approx(memory.IDLE_PROCESS_MB["learn"], abs=5)
    servers = memory.IDLE_PROCESS_MB["env server"] + 3 * memory.IDLE_PROCESS_MB["env"]
    assert stepped - one == pytest.approx(servers, abs=5)


def test_a_real_run_takes_about_what_was_predicted(tmp_path: Path):
    words = (
        "train a2c --env toy:catch --network mlp --lanes 8 --replicas 1 --report-every 0.2 --steps 8000 --verbose --run"
    )
    command = [sys.executable, "-m", "polyplay", *words.split(), str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    told = re.search(r"^memory   at least (\d+) MB", done.stdout, re.M)
    assert told
    used = max(r["memory_mb"] for r in rows(tmp_path / "r" / "metrics.jsonl"))
    assert 0.65 <= used / float(told[1]) <= 1.5  # another build of torch has other libraries
