"""The head of a Ray cluster is watched; who knows of other machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedObject
from polyplay.core.worker import Counters, Hyperparameters, RunControl
from polyplay.weights.params import AgentParams, Params
from polyplay.workers.hosts import cluster
from polyplay.workers.hosts import fleet as fleet_module
from polyplay.workers.hosts.cluster import Cluster, MachineInfo
from polyplay.workers.hosts.fleet import Fleet
from tests.weights.ends import POLICY
from tests.workers.hosts.by_hand import Vector, Wire, queue_of
from tests.workers.hosts.runs import wait_for


def test_a_head_without_an_answer_for_some_seconds_is_lost_and_one_answer_sets_that_back(monkeypatch):
    """A call that waits for the head may wait for ever."""
    monkeypatch.setattr(cluster, "EVERY", 0.01)
    found = Cluster("ray:10.0.0.1:6379")
    ray: Any = SimpleNamespace(nodes=list)
    slow: Any = SimpleNamespace(nodes=lambda: threading.Event().wait())
    threading.Thread(target=found._count, args=(None,), daemon=True).start()
    threading.Thread(target=found._look, args=(slow,), daemon=True).start()
    wait_for(found.failing)
    assert found.failing().startswith("--hosts: the head of the Ray cluster, 10.0.0.1:6379, has not answered for")
    threading.Thread(target=found._look, args=(ray,), daemon=True).start()
    wait_for(lambda: not found.failing())
    found._over.set()


def test_a_lost_head_ends_the_run_in_order_with_a_checkpoint_and_status_1(monkeypatch, tmp_path, capfd):
    """Of a fleet of no machines, whose cluster fails once something was learnt."""
    run, lines, no = tmp_path / "run", ["machine a has joined"], lambda *who: 0
    why = "--hosts: the head, 10.0.0.1:6379, has given no answer for 20 s"
    failing = SimpleNamespace(failing=lambda: why * (run / "metrics.jsonl").exists())
    fleet = SimpleNamespace(cluster=failing, check=lambda crew: "none", report=dict, prepare=no, close=no)
    vars(fleet).update(is_away=no, learner_away=no, cores=no, news=lambda: [lines.pop() for _ in lines[:]])
    monkeypatch.setattr(cluster, "fleet_of", lambda options: fleet)
    given = {"env": "toy:catch", "network": "mlp", "hidden": (8,), "serial": True, "report_every": 0.1}
    result = polyplay.train("a2c", **given, steps=10**9, tensorboard=False, run=str(run))
    assert (result.exit_code, result.reason) == (1, why)
    assert json.loads((run / "summary.json").read_text())["reason"] == why
    saved = checkpoint.everything(run)[-1]
    assert checkpoint.update_of(saved) == result.summary["updates"] > 0
    said = capfd.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "machine a has joined" in text
    assert "has given no answer for 20 s: saving a checkpoint" in text


# What a fleet finds that crosses, and what cannot be.


def prepared(monkeypatch, *held: SharedObject) -> Fleet:
    """A fleet of no machines, for a role that holds these."""
    role: Any = SimpleNamespace(name="act", n=1, holds=held, spec=None, edges=lambda: {"params": held[0]})
    crew: Any = SimpleNamespace(directory=None, control=RunControl(), counters=Counters(1), roles=[])
    none: Any = SimpleNamespace(connect=lambda: None, machines=list)
    monkeypatch.setattr(fleet_module, "roles_elsewhere", lambda *of: [role])
    monkeypatch.setattr(fleet_module, "threads_of", lambda *of: 1)
    monkeypatch.setattr(fleet_module, "check_memory", lambda *of: None)
    monkeypatch.setattr(Fleet, "_look_for_more", lambda self: None)
    fleet = Fleet(none)
    fleet.prepare(crew)
    return fleet


def test_weights_of_several_agents_cross_as_one_thing_and_wake_who_waits_elsewhere(monkeypatch):
    """Were each agent's a thing of its own too, nobody would be at that, and its bells would ring the line."""
    agents = AgentParams(POLICY, 2)
    things = prepared(monkeypatch, agents)._things
    assert [type(x) for x in things] == [RunControl, Hyperparameters, Counters, AgentParams]
    wire = Wire(*things)
    wire.seat("params", thing=3)
    there = wire.twins[3].each[1]
    there._waiting[0] = 1
    wire.back()
    agents.each[1].publish(Vector([1.0] * agents.each[1].size), 1, 1)
    wire.out()
    assert there._bells[0].wait(0)


def test_weights_come_after_all_else_that_a_run_shares(monkeypatch):
    params, queue = Params(5), queue_of()
    assert prepared(monkeypatch, params, queue)._things[-1] is params


@pytest.mark.parametrize("hosts", ["", "local", "local:0", "local:65", "local:two", "here"])
def test_a_word_that_names_no_machines_is_refused(hosts):
    with pytest.raises(UserError, match="must be none, ray, ray:HOST:PORT, or local:N with N from 1 to 64"):
        Cluster(hosts)


def test_other_versions_on_a_machine_are_refused():
    info, same = MachineInfo("red", "10.0.0.1", 4), cluster.needed_versions()
    info.check_versions(same)
    with pytest.raises(UserError, match=r"red \(10\.0\.0\.1\) has torch 0\.1 there and .* here, numpy None there"):
        info.check_versions({**{k: v for k, v in same.items() if k != "numpy"}, "torch": "0.1"})


@pytest.mark.parametrize(("given", "what"), [({"place": "act=here"}, "--place"), ({"ship": "x"}, "--ship")])
def test_places_and_modules_take_other_machines(given, what):
    options = SimpleNamespace(**{"hosts": "none", "place": None, "ship": None, **given})
    with pytest.raises(UserError, match=f"{what} .*: needs other machines; add --hosts"):
        cluster.fleet_of(options)


@pytest.mark.parametrize(("serial", "on", "how"), [(True, None, "--serial"), (False, "thread", "--on thread")])
def test_machines_take_workers_that_are_processes(serial, on, how):
    options = SimpleNamespace(hosts="local:2", serial=serial, on=on)
    with pytest.raises(UserError, match=f"local:2: workers must be processes; remove {how}"):
        cluster.fleet_of(options)


def test_a_plan_of_local_machines_starts_nothing_and_an_address_where_nobody_listens_is_refused():
    assert [info.name for info in Cluster("local:2").machines()] == ["local-1", "local-2"]
    with pytest.raises(UserError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*refused"):
        Cluster("ray:127.0.0.1:1").connect()


# The page that starts clusters.


def clusters_page(kind: str) -> list[str]:
    text = (Path(__file__).parents[3] / "docs/guides/clusters.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def test_ray_takes_the_file_of_the_cloud():
    util, yaml = pytest.importorskip("ray.autoscaler._private.util"), pytest.importorskip("yaml")
    (text,) = clusters_page("yaml")
    config = yaml.safe_load(text)
    util.validate_config(util.prepare_config(config))
    assert config["available_node_types"][config["head_node_type"]]
    assert all("token" in word for word in (config["head_start_ray_commands"][-1], str(config["file_mounts"])))


def test_bash_takes_the_script_of_slurm_and_ray_its_words():
    pytest.importorskip("ray")
    script = clusters_page("sh")[-1]
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    words = re.findall(r"(?<=ray )symmetric-run|--(?:address|min-nodes)(?= )", script)
    assert words == ["symmetric-run", "--address", "--min-nodes"]
    ray = Path(sys.executable).parent / "ray"
    said = subprocess.run([ray, "symmetric-run", "--help"], capture_output=True, check=True).stdout.decode()
    assert all(word in said for word in words)
