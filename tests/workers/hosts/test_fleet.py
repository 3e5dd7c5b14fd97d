"""Runs on several machines, local ones: what they learn, to the bit, what they survive, and new agents."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import polyplay
from polyplay.cli.main import main
from polyplay.core.errors import UserError
from polyplay.core.worker import RunControl
from polyplay.runs.reproduce import reproduce
from polyplay.workers.hosts import fleet as fleets
from polyplay.workers.hosts.cluster import MACHINES, MachineInfo, RayActor, node_names
from polyplay.workers.hosts.fleet import HOUR, Fleet
from tests.faults import injected
from tests.workers.hosts.runs import TOY, events, processes, updates

EXACT = {**TOY, "quiet": True, "lag": 0, "trace": True, "tensorboard": False, "anneal": "constant"}


def policy_of(run: Path) -> bytes:
    newest = max(path for path in (run / "checkpoints").iterdir() if path.name[:1].isdigit())
    return (newest / "agents/0/policy.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("place", ["learn=others,act=here", "learn=local-1,act=local-2"])
def test_a_learner_elsewhere_learns_the_same_to_the_bit(tmp_path, place):
    exact = {**EXACT, "trace": False, "steps": 8000}
    polyplay.train("impala", **exact, run=str(tmp_path / "here"))
    polyplay.train("impala", **exact, hosts="local:2", place=place, run=str(tmp_path / "there"))
    assert policy_of(tmp_path / "there") == policy_of(tmp_path / "here")
    polyplay.resume(str(tmp_path / "there"), steps=12_000, hosts="none")
    polyplay.resume(str(tmp_path / "here"), steps=12_000, hosts="local:1", place="learn=local-1,act=here")
    assert policy_of(tmp_path / "there") == policy_of(tmp_path / "here")


@pytest.mark.long
def test_a_run_that_lost_machines_and_workers_is_done_again_in_one_thread_to_the_bit(tmp_path):
    """So each row was learnt from at most once, as it was made, with the weights that it says."""
    given = {**TOY, "trace": True, "hosts": "local:8", "minutes": 0.6}
    with injected("kill=host:6,kill=act:4"):
        polyplay.train("impala", **given, quiet=True, seed=3, run=str(tmp_path / "run"))
    assert [row for row in events(tmp_path / "run") if row["event"] == "lost"]
    again = reproduce(tmp_path / "run")
    assert again["losses_equal"] == again["updates"] == len(updates(tmp_path / "run")) > 100


@pytest.mark.parametrize(
    ("system", "options", "said"),
    [
        ("impala", {"hosts": "local:0"}, "--hosts local:0: must be none, ray, ray:HOST:PORT, or local:N"),
        ("impala", {"hosts": "local:2", "serial": True}, "remove --serial"),
        ("impala", {"hosts": "local:2", "on": "thread"}, "remove --on thread"),
        ("impala", {"hosts": "ray:127.0.0.1:1"}, "no Ray cluster at 127.0.0.1:1: .*refused"),
        ("impala", {"hosts": "ray:nowhere"}, "no Ray cluster at nowhere: invalid literal"),
        ("impala", {"place": "act=others"}, "--place act=others: needs other machines; add --hosts"),
        ("impala", {"ship": "."}, "--ship .: needs other machines; add --hosts"),
        ("impala", {"hosts": "local:2", "ship": "nowhere"}, "--ship nowhere: no such folder"),
        ("impala", {"hosts": "local:2", "place": "act"}, "--place act: must be ROLE=WHERE"),
        (
            "impala",
            {"hosts": "local:2", "place": "act=locl-1"},
            r"no machine is called locl-1 \(known: local-1, local-2\)",
        ),
        ("impala", {"hosts": "local:2", "place": "act=here"}, "all workers of this run stay here, by --place or"),
        ("impala", {"hosts": "local:2", "place": "learn=others", "trace": True}, "on another machine, but --trace"),
        (
            "impala",
            {"hosts": "local:2", "place": "learn=others", "eval_every": 9},
            "on another machine, but --eval-every needs",
        ),
        ("a2c", {"hosts": "local:2", "replicas": 1}, "only one worker acts and learns; .*use --replicas 2 or more"),
        ("a3c", {"hosts": "local:2", "workers": 2}, "actor_learner shares a Hogwild with others"),
        ("accel", {"hosts": "local:2", "replicas": 2, "sync": "chunked"}, "replica shares a Chunked with others"),
    ],
)
def test_what_cannot_work_is_one_line_and_starts_nothing(system, options, said, tmp_path):
    given = {"env": "toy:catch", "network": "mlp", "steps": 1000, **options}
    with pytest.raises(UserError, match=said):
        polyplay.train(system, **given, run=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_replays_larger_than_a_machines_memory_are_refused(monkeypatch, tmp_path):
    called = RayActor.call
    small = lambda self, name, *given: {**called(self, name, *given), "memory": 10**6}  # noqa: E731
    monkeypatch.setattr(
        RayActor, "call", lambda self, name, *given: (small if name == "about" else called)(self, name, *given)
    )
    given = {"env": "toy:catch", "network": "mlp", "capacity": 50_000, "quiet": True, "place": "serve_replay=others"}
    with pytest.raises(UserError, match=r"^--hosts: local-1 has 0.0 GB of memory, 1 replays there take .* --capacity"):
        polyplay.train("apex", **given, steps=1000, hosts="local:1", run=str(tmp_path / "run"))
    assert not processes()


OWN = """
import gymnasium

def make():
    with open(SEEN, "a") as file:
        file.write(__file__ + "\\n")
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.long
def test_a_module_that_is_missing_elsewhere_is_named_with_the_machine(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    lost = "\nif '/runtime_resources/' in __file__:\n    import an_engine\n"
    (tmp_path / "mine/lostenv.py").write_text(f"SEEN = {str(tmp_path / 'seen')!r}" + OWN + lost)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    given = {**TOY, "env": "lostenv:make", "hosts": "local:1", "ship": str(tmp_path / "mine"), "steps": 100}
    said = "--env: lostenv:make given, no module 'an_engine', which lostenv imports; .*; this is on local-1, to which"
    with pytest.raises(UserError, match=said):
        polyplay.train("impala", **given, run=str(tmp_path / "run"))


def test_a_diagram_says_who_works_elsewhere(capsys):
    assert main(["systems", "impala", "--diagram", "--env", "toy:catch", "--network", "mlp", "--hosts", "local:2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tops = {i: line.split("─ ")[1].split(" ─")[0] for i, line in enumerate(lines) if "┌" in line}
    boxes = {title: lines[i + 1].strip("│ ") for i, title in tops.items()}
    assert list(boxes)[:3] == ["act × 2", "learn × 1", "here"]
    assert (boxes["here"], boxes["local-1 (2 cores)"], boxes["local-2 (2 cores)"]) == ("learn 0", "act 0", "act 1")


def test_ray_that_is_not_installed_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed: pip install .*\[ray\]'"):
        polyplay.train("impala", env="toy:catch", network="mlp", hosts="ray", steps=1000, run=str(tmp_path / "run"))


REPLICAS_TOY = {"env": "toy:catch", "network": "mlp", "quiet": True, "trace": True, "tensorboard": False}


SYSTEMS = {
    "impala": {},
    "a2c": {"steps": 8000},
    "ppo": {"lanes": 8, "steps": 8000},
    "dqn": {"learning_starts": 500, "capacity": 2000, "lanes": 2, "steps": 3000},
}


@pytest.mark.long
def test_they_learn_the_same_to_the_bit_and_modules_are_taken_along(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    seen = tmp_path / "seen"
    (tmp_path / "mine/ownenv.py").write_text(f"SEEN = {str(seen)!r}" + OWN)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    given = {**REPLICAS_TOY, "env": "ownenv:make", "preset": "paper", "replicas": 2, "steps": 1000}
    polyplay.train("a2c", **given, run=str(tmp_path / "here"))
    polyplay.train("a2c", **given, hosts="local:1", ship=str(tmp_path / "mine"), run=str(tmp_path / "there"))
    there = {line for line in seen.read_text().splitlines() if "/runtime_resources/" in line}
    assert {Path(line).name for line in there} == {"ownenv.py"}, "Ray has put it there"
    assert len(updates(tmp_path / "here")) > 5
    assert updates(tmp_path / "there") == updates(tmp_path / "here")
    assert [row["event"] for row in events(tmp_path / "there")] == ["opened"]
    last = max(p for p in (tmp_path / "there/checkpoints").iterdir() if p.name[0] == "0")
    assert {p.name.partition(".")[0] for p in (last / "workers").iterdir()} == {"replica-0", "replica-1"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("impala", {**TOY, "lag": 0, "anneal": "constant", "steps": 20_000}),
        ("a2c", {"replicas": 4, "anneal": "constant"}),
        ("ppo", {"anneal": "constant"}),
        ("dqn", {"epsilon_decay_steps": 1, "epsilon": 0.1}),
    ],
)
@pytest.mark.parametrize(("first", "then"), [("none", "local:2"), ("local:2", "local:1")])
def test_a_run_goes_on_to_the_bit_on_other_machines(tmp_path, system, more, first, then):
    own = {} if system == "impala" else {"replicas": 2}
    settings = {**REPLICAS_TOY, **own, **SYSTEMS[system], **more}
    steps = settings.pop("steps")
    polyplay.train(system, **settings, steps=steps, run=str(tmp_path / "whole"))
    polyplay.train(system, **settings, steps=steps // 2, hosts=first, run=str(tmp_path / "parts"))
    polyplay.resume(str(tmp_path / "parts"), steps=steps, hosts=then)
    assert updates(tmp_path / "parts") == updates(tmp_path / "whole")


class Machines:
    """An engine whose machines all live, opened without processes; `refuses`: those on which no agent starts."""

    own_cores = False

    def __init__(self, monkeypatch, *names: str):
        self.infos, self.refuses, self.now = [MachineInfo(name, "127.0.0.1", 2) for name in names], set[str](), 1000.0
        self.lost = set[str]()
        monkeypatch.setattr(fleets, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.fleet = Fleet(self)
        self.fleet._control, self.fleet._log = RunControl(), None
        monkeypatch.setattr(self.fleet, "_open", self.open)
        self.look()

    def machines(self) -> list[MachineInfo]:
        return self.infos

    def open(self, info: MachineInfo) -> bool:
        if info.name in self.refuses:
            raise UserError(f"no crew on {info.name}")
        old = [m for m in self.fleet.opened if m.info.name == info.name]
        self.fleet.opened[:] = [m for m in self.fleet.opened if m not in old]
        actor, end = SimpleNamespace(end=int), SimpleNamespace(traffic=None)
        number = self.fleet._lines.pop()
        self.fleet.opened.append(SimpleNamespace(info=info, lost=None, workers={}, number=number, actor=actor, end=end))
        return bool(old)

    def look(self, after: float = 0.0) -> list[str]:
        """What is said of a look, once all that it began is over."""
        self.now += after
        once = iter((False, True))
        self.fleet._over = SimpleNamespace(wait=lambda seconds: next(once))
        self.fleet._look_for_more()
        for thread in self.fleet._threads:
            thread.join(10)
        return sorted(self.fleet.news())

    def lose(self, name: str) -> None:
        self.fleet._lose(next(m for m in self.fleet.opened if m.info.name == name), "killed")

    def live(self) -> list[str]:
        there = [m for m in self.fleet.opened if m.lost is None]
        assert {m.number for m in there} | self.fleet._lines == {*range(MACHINES)}, (
            "numbers of lost lines are given anew"
        )
        return sorted(m.info.name for m in there)


def test_lost_machines_get_new_agents_after_pauses_that_grow_and_others_join(monkeypatch):
    machines = Machines(monkeypatch, "a", "b")
    for pause in (2.0, 4.0, 8.0, 16.0, 32.0):
        machines.lose("a")
        assert machines.look(pause - 1.0) == []
        assert machines.look(1.0) == ["machine a has a new crew"]
    assert machines.live() == ["a", "b"]
    machines.now += 2 * HOUR
    machines.lose("a")
    machines.refuses.add("a")
    machines.infos.append(MachineInfo("c", "127.0.0.1", 2))
    assert machines.look(2.0) == [
        "machine a gets no crew; the next try is in 4 s: no crew on a",
        "machine c has joined",
    ]
    assert machines.live() == ["b", "c"], "one without an agent keeps no other waiting"
    machines.refuses.clear()
    assert machines.look(4.0) == ["machine a has a new crew"]
    machines.lose("b")
    gone = machines.infos.pop(1)
    assert machines.look(2.0) == [], "it has left"
    machines.infos.append(gone)
    machines.fleet._control.halt()
    assert machines.look() == [], "the run ends"


def test_nodes_keep_their_names():
    alike = {"id1111x": "m", "id2222x": "m"}
    assert [*node_names({"id1111x": "m", "id2222x": "n"}, {}).values()] == ["m", "n"]
    assert [*node_names(alike, {}).values()] == ["m-id1111", "m-id2222"]
    assert [*node_names(alike, {"id1111x": "m"}).values()] == ["m", "m-id2222"], "one joins"
    assert node_names(alike, {"id1111x": "m"}, {"id1111x"}) == {"id1111x": "m"}, "it may be the lost one"
    assert node_names({"id2222x": "m"}, {"id1111x": "m"}, {"id1111x"}) == {"id2222x": "m"}, "the same machine is back"
