"""The plan of a run: what it says, what it refuses, what a dry run measures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import polyplay
from polyplay import systems
from polyplay.buffers.rollout_queue import RolloutSlots
from polyplay.cli import main
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.files import write_json
from polyplay.envs import Envs
from polyplay.nets import layers
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.nets.policy import Torso
from polyplay.runs import plan, terminal
from polyplay.runs.directory import read_config
from polyplay.runs.options import RunOptions
from polyplay.workers.crew import Crew
from tests.envs.broken import Gray

TOY = {"env": "toy:catch", "network": "mlp"}
EXACT = "bitwise where the run repeats, unless a stop drops a slow rollout"


def make(name: str, done: int = 0, options: dict[str, Any] | None = None, **settings: Any) -> plan.Plan:
    page = systems.load(name)
    chosen = RunOptions(**{"steps": 8000, **(options or {})})
    crew = Crew(0, chosen.on, chosen.serial, steps=chosen.steps)
    return plan.make_plan(crew, page.build(page.Config(**{**TOY, **settings}), crew), chosen, done)


def line(made: plan.Plan, head: str) -> str:
    return dict(made.lines)[head]


@pytest.mark.parametrize("name", ["a2c", "dqn", "impala"])
def test_a_short_plan_is_its_workers_and_its_length(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan.platform, "describe", lambda: "")
    assert [head for head, _ in terminal.short_facts(make(name).lines)] == ["workers", "length"]
    monkeypatch.setattr(plan.platform, "describe", lambda: "portable (…)")
    assert [head for head, _ in terminal.short_facts(make(name).lines)] == ["workers", "length", "platform"]


SERIAL = {"serial": True}
PONG = {"env": "ALE/Pong-v5", "network": "a3c"}
SOME = {"lanes": 4, "batch": 8}
APART = {"actors": 3, "lanes": 2, "batch": 4}
TEAMS = {"env": "toy:skirmish", "event_rewards": ("kill=1",), "lanes": 8, "batch": 2, "unroll": 20, "core_size": 8}
PLAYING = {"agents": 2, "env": "toy:rps", "lanes": 8, "batch": 4}
ITSELF = "(stepped by the worker itself)"
FULL = "8,000 agent steps"
TOLD: list[Any] = [  # system, settings, options, the line, a pattern of the whole of it
    ("a2c", {"replicas": 1}, {}, "workers", rf"replica ×1 with 16 lanes each {ITSELF}; .*"),
    ("a2c", {}, SERIAL, "workers", ".*all workers take turns in one thread.*"),
    ("a2c", {"env": "CartPole-v1", "replicas": 2, "env_workers": 3}, {"on": "thread"}, "workers",
     "replica ×2 with 8 lanes each (3 environment processes); threads of one process, 1 compute.*"),
    ("a2c", {"env": "CartPole-v1", "replicas": 2, "lanes": 4}, {}, "workers",
     rf"replica ×2 with 2 lanes each {ITSELF}; .*"),
    ("impala", {**PONG, **SOME}, {}, "workers",
     "act ×2 with 4 lanes each (1 ale-py thread), learn ×1; 1 compute thread.*"),
    ("a2c", {"network": "auto"}, {}, "network", "mlp, chosen by auto; inputs raw; .*"),
    ("a2c", {**PONG, "network": "auto", "inputs": "center"}, {}, "network",
     "nature, chosen by auto; inputs center; .* parameters"),
    ("ppo", {"env": "CartPole-v1", "network": "mlp(8,relu)", "inputs": "normalize"}, {}, "network",
     "mlp(8,relu); inputs normalize; 67 parameters"),
    ("dqn", {"env": Gray, "network": "auto"}, SERIAL, "network",
     "nature, chosen by auto; inputs raw; .*"),
    ("dqn", {"env": Gray, "network": "mlp"}, SERIAL, "network",
     "mlp; inputs raw; it reads the image \\[1, 84, 84\\] as 7,056 numbers; .*"),
    ("a2c", {"lanes": 16, "unroll": 5}, {}, "updates", "about 100 updates of 80 rows"),
    ("impala", {**SOME, "unroll": 5, "done": 2000}, {"minutes": 3.0}, "length",
     f"{FULL}; 2,000 frames are already done; or until 3 minutes"),
    ("a2c", {**PONG, "done": 50}, {"steps": 100, "until_return": 19.0}, "length",
     "100 agent steps = 400 frames; 200 frames are already done; or until a return of 19"),
    ("a2c", {}, {}, "repeat", "bitwise reproducible.*"),
    ("impala", {}, SERIAL, "repeat", "bitwise reproducible.*"),
    ("impala", {"lag": 0}, {}, "repeat", "bitwise reproducible.*"),
    ("impala", {"lag": 0, "actors": 4, "batch": 32}, {}, "repeat", "not bitwise.*"),  # an update takes 2 of 4 rollouts
    ("impala", {}, {}, "repeat", "not bitwise.*"),
    ("a2c", {}, {}, "resume", f"restores all, environments too; {EXACT}"),
    ("a2c", {"env": "CartPole-v1"}, {}, "resume", f"restores all, environments too if they can be saved; {EXACT}"),
    ("a2c", PONG, {}, "resume", ".*environments start new episodes"),
    ("impala", APART, {}, "resume", ".*not bitwise: workers run freely"),
    ("impala", APART, SERIAL, "resume", f".*{EXACT}"),
    ("impala", {**APART, "auxiliary": "value"}, SERIAL, "resume",
     ".*not bitwise: recent rows of auxiliary tasks are lost"),
    ("league", PLAYING, {}, "resume", ".*matches under way are lost"),
    ("league", PLAYING, SERIAL, "resume", f".*environments too; {EXACT}"),
    ("ftw", {**TEAMS, "auxiliary": "reward"}, SERIAL, "resume", f".*environments too; {EXACT}"),
    ("apex", {}, SERIAL, "resume", ".*batches drawn ahead are drawn again"),
]  # fmt: skip


@pytest.mark.parametrize(("system", "settings", "options", "head", "says"), TOLD)
def test_what_a_plan_says(system: str, settings: Any, options: Any, head: str, says: str):
    told = line(make(system, options=options, **settings), head)
    assert re.fullmatch(says.replace("(", "[(]").replace(")", "[)]"), told), told


DRAWN: Any = {"lanes": 4, "unroll": 1, "batch": 32, "ratio": 8.0, "capacity": 5_000, "learning_starts": 500}


@pytest.mark.parametrize(
    ("system", "more", "updates"),
    [
        ("dqn", {"replicas": 1}, 375),
        ("dqn", {"replicas": 2}, 375),
        ("apex", {"actors": 2, "replay_workers": 2, "unroll": 10}, 375),
        ("gorila", {"learners": 2}, 250),  # each bundle has its own start
        ("r2d2", {"sequence": 8, "unroll": 4, "burn_in": 4, "actors": 1, "batch": 8}, 187),
    ],
)
def test_updates_from_a_replay_are_predicted_from_its_start_on(system, more, updates):
    text = line(make(system, options={"steps": 2_000}, **{**DRAWN, **more}), "updates")
    assert text.startswith(f"{updates} updates, one every")


def test_a_run_that_cannot_learn_says_so_first_and_at_the_end(tmp_path: Path, capfd):
    settings = {**TOY, **DRAWN, "capacity": 60_000, "learning_starts": 50_000, "replicas": 1}
    made = make("dqn", options={"steps": 3_000}, **settings)
    assert line(made, "updates").startswith("0 updates")
    assert made.warning.startswith("no update will be made: the run ends after 3,000 agent steps")
    run = polyplay.train("dqn", run=str(tmp_path / "run"), steps=100, tensorboard=False, **settings)
    assert run.summary["reason"] == "done, but no update was made"
    assert "polyplay: no update will be made: " in capfd.readouterr().err
    assert make("dqn", options={"steps": 51_000}, **settings).warning == ""
    made = make("a2c", **PONG, done=50, options={"steps": 100})
    assert (made.frames, made.left) == (400, 50.0)
    assert make("apex", options={"steps": 501}, **{**DRAWN, "ratio": 0.0}).warning == ""


def test_what_ends_an_episode():
    game = Envs("ALE/Pong-v5", 2, options={"life_loss": "terminate", "max_frames": 18_000})
    assert plan.episodes(game) == (
        "terminated by a lost game or life: value 0; truncated after 18000 frames: value of the last observation"
    )
    assert plan.episodes(Envs("ALE/Pong-v5", 2)).startswith("terminated by a lost game: value 0")
    text = plan.episodes(Envs("CartPole-v1", 2))
    assert text == "terminated: value 0; truncated (time limit: 500 steps): value of the last observation"


@pytest.mark.parametrize("name", ["adam", pytest.param("rmsprop_tf", marks=pytest.mark.long)])
def test_a_checkpoint_is_as_large_as_was_said(name: str, tmp_path: Path):
    more: dict[str, Any] = {"optimizer": name, "replicas": 1, "env": "CartPole-v1"}
    run = polyplay.train("a2c", **{**TOY, **more}, steps=80, serial=True, run=str(tmp_path / name))
    written = sum(f.stat().st_size for f in run.directory.rglob("agents/**/*.safetensors"))
    assert written == pytest.approx(make("a2c", **more).checkpoint, abs=4000)  # names, and Adam's counter


# ------------------------------------------------------------------------------------------------------ refusal
@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"replay": 3.0, "weights": 0.5}, "(replay 3 GB), but only 2 GB are available; lower --capacity to about 333"),
        ({"rollouts": 3.0, "replay": 0.5}, "(rollouts 3 GB), but only 2 GB are available; lower --lanes to about 21"),
        ({"weights": 3.0, "replay": 1.5}, "no smaller setting fits: use a larger machine"),
    ],
)
def test_too_much_is_refused_with_what_would_fit(parts: dict[str, float], says: str):
    settings = SimpleNamespace(capacity=1000, lanes=64, unroll=5, replicas=1, env="toy:catch")
    memory = {name: n * 2**30 for name, n in parts.items()}
    with pytest.raises(UserError, match=re.escape(says)):
        plan.check_plan(plan.Plan(memory, 2 * 2**30, 0, 0, 0.0), settings)
    small = plan.Plan(memory, 8 * 2**30, 0, 0, 0.0)
    assert plan.check_plan(small, settings) is small


HUGE: dict[str, dict[str, Any]] = {"five": {"preset": "paper"}, "impala": {**TOY, "lanes": 1 << 22, "batch": 1 << 22}}


@pytest.mark.parametrize("system", ["impala", pytest.param("five", marks=pytest.mark.long)])
def test_what_does_not_fit_is_refused_before_any_weights_are_drawn(system, monkeypatch, tmp_path):
    """However large the network is."""
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda x, *_, **__: x if x.is_meta else pytest.fail("drawn"))
    with pytest.raises(UserError, match=r"memory: this takes at least .*, but only .* are available; lower --"):
        polyplay.train(system, run=str(tmp_path / "run"), **HUGE[system])
    assert not (tmp_path / "run").exists()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_plan_holds_no_weights_but_of_a_network_that_is_run():
    factory = NetworkFactory("nature", Envs("ALE/Pong-v5", 1).spec, {"init": "orthogonal"})
    plain = build_network(factory, 3)
    with layers.outlines():
        run, planned = build_network(factory, 3), factory()
    assert equal(run, plain)
    assert all(x.is_meta for x in planned.state_dict().values())
    assert [x.shape for x in planned.parameters()] == [x.shape for x in plain.parameters()]
    assert not any(x.is_meta for x in factory().parameters())


class Strict(Torso):
    """A torso of a user's own, which refuses weights that are no numbers, as torch's distributions refuse logits."""

    features = 8

    def __init__(self, spec: Any):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(spec.obs.shape)), self.features)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if not self.layer.weight.isfinite().all():
            raise ValueError("a weight is no number")
        return self.layer(observations.float().flatten(1))


@pytest.mark.parametrize("name", [Strict, f"{__name__}:Strict"], ids=["a class", "by name"])
@pytest.mark.parametrize("values", [False, True], ids=["policy", "values"])
def test_a_plan_draws_the_weights_of_a_network_of_ones_own(name: Any, values: bool):
    factory = NetworkFactory(name, Envs("toy:catch", 2).spec, kind="values" if values else "policy")
    torch.manual_seed(0)
    with layers.outlines():
        planned = factory()
    torch.manual_seed(0)
    assert equal(planned, factory())


# --------------------------------------------------------------------------------------------------- dry runs
def test_a_dry_run_tells_the_plan_and_the_speed_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan.platform, "describe", lambda: "")
    monkeypatch.setattr(plan, "SECONDS", 0.3)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --replicas 1 --serial --steps 1M --dry-run"
    assert main.main(words.split()) == 0
    out = capsys.readouterr().out
    heads = " ".join(text.split()[0] for text in out.splitlines() if re.match(r"[a-z]+ ", text))
    assert heads.endswith("playing workers network memory disk length updates repeat resume episodes measured eta")
    assert re.search(r"^measured [\d,]+ agent steps/s for 0.3 s; [\d,]+ MB$", out, re.M)
    assert re.search(r"^eta      \d+:\d\d:\d\d at this speed$", out, re.M)
    assert "dry run: nothing is written" in out
    assert list(tmp_path.iterdir()) == []


def test_a_run_can_be_resumed_dry_and_by_a_version_with_more_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    run = tmp_path / "r"
    polyplay.train("a2c", **TOY, lanes=4, replicas=1, serial=True, steps=400, run=str(run))
    saved = read_config(run)
    for name in ("dry_run", "wandb", "metrics_style"):
        del saved["options"][name]  # as a version that did not have them wrote it
    write_json(run / "config.json", saved)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    monkeypatch.setattr(plan, "SECONDS", 0.2)
    assert main.main(["resume", str(run), "--steps", "1M", "--dry-run"]) == 0
    assert re.search(
        r"; 4\d\d frames are already done$", capsys.readouterr().out, re.M
    )  # and those that no update took
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def wired(name: str, **settings: Any) -> tuple[Crew, Any]:
    page = systems.load(name)
    crew = Crew(0, steps=1000)
    return crew, page.build(page.Config(**TOY, **settings), crew)


def test_bytes_for_people():
    assert [plan.size_text(n * 2**20) for n in (1.5, 12.34, 1536, 2**20)] == [
        "1.5 MB",
        "12.3 MB",
        "1.5 GB",
        "1.02e+03 GB",
    ]


def test_what_there_is_is_the_least_of_the_machine_and_its_control_groups(tmp_path: Path):
    own = tmp_path / Path("/proc/self/cgroup").read_text().partition("::/")[2].strip() / "inner"
    own.mkdir(parents=True)
    (own.parent / "memory.max").write_text("max\n")
    assert 2**26 < plan.memory_limit(tmp_path) <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("4096\n")
    assert plan.memory_limit(tmp_path) == 4096


def test_queues_between_workers_are_counted_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """Nothing is computed for it."""
    crew, system = wired("impala", lanes=4, batch=8)
    queue, net = crew.roles[0].holds["out"], system.policy()
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_: pytest.fail("a network was run"))
    joined = 2 * queue.block.nbytes / queue.slots
    assert plan.predict_memory(crew, net)["rollouts"] == queue.block.nbytes + joined


def test_slots_within_replicas_are_counted_as_they_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []

    class Spy(RolloutSlots):
        def __init__(self, *given: Any, **more: Any):
            super().__init__(*given, **more)
            made.append(sum(x.nbytes for _, x in tree.leaves({"rows": self.rows, "state": self.state})))

    crew, system = wired("a2c", lanes=4, replicas=1, groups=2)
    told = plan.predict_memory(crew, system.policy())["rollouts"]
    monkeypatch.setattr(sys.modules["polyplay.learning.loop"], "RolloutSlots", Spy)
    polyplay.train("a2c", **TOY, lanes=4, replicas=1, groups=2, steps=40, serial=True, run=str(tmp_path / "r"))
    assert told == made[0] * 2  # the slots of two groups are put together into one batch


@pytest.mark.parametrize(("name", "share"), [("adam", 2.0), ("rmsprop_tf", 1.0)])
@pytest.mark.parametrize(("replicas", "own"), [(1, 2), (2, 4)])
def test_weights_are_a_vector_its_gradient_and_what_the_optimizer_keeps(name, share, replicas, own):
    """Two replicas share weights and statistics; each has its gradient and half of the mean."""
    crew, system = wired("a2c", replicas=replicas, optimizer=name)
    net, more = plan.bytes_of(system.policy()), 600 if replicas > 1 else 16  # sums, arrivals, hyperparameters
    assert plan.predict_memory(crew, system.policy())["weights"] == pytest.approx(net * (own + share), abs=more)


def test_a_dry_run_of_what_does_not_fit_says_so_after_the_plan(capsys, tmp_path):
    """The paper's settings with a small network; only their replay is too large for any machine of today."""
    words = ["--preset", "paper", "--blocks", "1", "--filters", "8", "--learners", "2", "--capacity", "10_000_000_000"]
    assert main.main(["train", "alphago_zero", *words, "--dry-run", "--run", str(tmp_path / "run")]) == 2
    out, err = capsys.readouterr()
    assert re.search(r"^search +at most 1,600 evaluations per move; ", out, re.M)
    assert re.search(r"^memory +at least [\d,.e+]+ GB of", out, re.M)
    assert "measured" not in out, "a network was run for a plan that can't be"
    assert re.search(r"error: memory: this takes at least .* lower --capacity to about [\d,]+$", err, re.M)
    assert not (tmp_path / "run").exists()
