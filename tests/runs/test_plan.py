from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core import compiled
from polyplay.core.errors import UserError
from polyplay.core.files import write_json
from polyplay.envs import Envs
from polyplay.nets import layers
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.runs import plan, terminal
from polyplay.runs.directory import read_config
from polyplay.runs.options import RunOptions
from polyplay.workers.crew import Crew
from tests.envs.broken import Grey

TOY = {"env": "toy:catch", "network": "mlp"}
EXACT = "bitwise, unless a stop drops a slow rollout"


def make(name: str, done: int = 0, options: dict[str, Any] | None = None, **settings: Any) -> plan.Plan:
    page = systems.load(name)
    chosen = RunOptions(**{"steps": 8000, **(options or {})})
    crew = Crew(0, chosen.on, chosen.serial, frames=chosen.frames, steps=chosen.steps)
    return plan.make_plan(crew, page.build(page.Config(**{**TOY, **settings}), crew), chosen, done)


def line(made: plan.Plan, head: str) -> str:
    return dict(made.lines)[head]


@pytest.mark.parametrize("name", ["a2c", "dqn", "impala"])
def test_every_line_of_a_plan_is_told_at_once_or_with_verbose(name: str):
    """A new heading is printed before every run, unless it is one of DETAILS."""
    heads = [head for head, _ in make(name).lines]
    told = [*terminal.BRIEF, terminal.LAST]
    assert set(heads) <= {*told, *terminal.DETAILS}
    assert [head for head, _ in terminal.short_facts(make(name).lines)] == [head for head in told if head in heads]


def test_who_works():
    assert line(make("a2c", replicas=1), "workers").startswith(
        "replica ×1 with 16 lanes each (stepped by the worker itself); "
    )
    text = line(make("impala", env="ALE/Pong-v5", network="a3c", lanes=4, batch=8), "workers")
    assert text.startswith("act ×2 with 4 lanes each (1 ale-py thread), learn ×1; 1 compute thread")
    text = line(make("a2c", env="CartPole-v1", replicas=2, env_workers=3, options={"on": "thread"}), "workers")
    assert text.startswith("replica ×2 with 8 lanes each (3 environment processes); threads of one process, 1 compute")
    assert "all workers take turns in one thread" in line(make("a2c", options={"serial": True}), "workers")


def test_what_was_chosen():
    assert line(make("a2c", network="auto"), "network").startswith("mlp, chosen by auto; inputs raw; ")
    text = line(make("a2c", env="ALE/Pong-v5", network="auto", inputs="centre"), "network")
    assert text.startswith("nature, chosen by auto; inputs centre; ")
    assert text.endswith(" parameters")
    text = line(make("ppo", env="CartPole-v1", network="mlp(8,relu)", inputs="normalize"), "network")
    assert text == "mlp(8,relu); inputs normalize; 67 parameters"
    text = line(make("dqn", env=Grey, network="auto", options={"serial": True}), "network")
    assert text.startswith("mlp, chosen by auto; inputs raw; it reads the image [84, 84] as 7,056 numbers; ")
    text = line(make("a2c", env="CartPole-v1", replicas=1, options={"serial": True}), "workers")
    assert "with 16 lanes each (stepped by the worker itself)" in text


def test_one_of_a_kind_is_singular():
    assert line(make("a2c", lanes=1, replicas=1), "workers").startswith(
        "replica ×1 with 1 lane each (stepped by the worker itself); "
    )
    one = line(make("a2c", lanes=16, unroll=5, options={"steps": 80, "minutes": 1.0}), "length")
    assert one == "80 agent steps; or until 1 minute"
    assert plan.minutes_over(1.0) == "1 minute is over"
    assert plan.minutes_over(0.5) == "0.5 minutes are over"
    one = line(make("ppo", lanes=8, unroll=4, replicas=1, epochs=1, minibatches=1, options={"steps": 32}), "updates")
    assert one == "about 1 update: 1 rollout of 32 rows, 1 epoch of 1 minibatch each"
    many = line(make("ppo", lanes=8, unroll=4, replicas=1, epochs=2, minibatches=2, options={"steps": 64}), "updates")
    assert many == (
        "about 8 updates: 2 rollouts of 32 rows, 2 epochs of 2 minibatches each (lag 0 to 3 within a rollout)"
    )


def test_how_long():
    text = make("a2c", lanes=16, unroll=5)
    assert (line(text, "length"), line(text, "updates")) == ("8,000 agent steps", "about 100 updates of 80 rows")
    text = make("impala", lanes=4, batch=8, unroll=5, done=2000, options={"minutes": 3.0})
    assert line(text, "length") == "8,000 agent steps; 2,000 frames are already done; or until 3 minutes"
    assert line(text, "updates") == "about 200 updates of 40 rows"
    made = make("a2c", env="ALE/Pong-v5", network="a3c", done=50, options={"steps": 100, "until_return": 19.0})
    assert line(made, "length") == "100 agent steps = 400 frames; 200 frames are already done; or until a return of 19"
    assert line(made, "updates") == "about 2 updates of 80 rows"
    assert (made.frames, made.left) == (400, 50.0)


DRAWN: Any = {"lanes": 4, "unroll": 1, "batch": 32, "ratio": 8.0, "capacity": 5_000, "start": 500}


@pytest.mark.parametrize(
    ("system", "more", "updates"),
    [
        ("dqn", {"replicas": 1}, 375),
        ("dqn", {"replicas": 2}, 375),
        ("apex", {"actors": 2, "memories": 2, "unroll": 10}, 375),
        ("gorila", {"learners": 2}, 250),  # each bundle has its own start
        ("r2d2", {"sequence": 8, "unroll": 4, "burn_in": 4, "actors": 1, "batch": 8}, 187),
    ],
)
def test_updates_from_a_replay_are_predicted_from_its_start_on(system, more, updates):
    text = line(make(system, options={"steps": 2_000}, **{**DRAWN, **more}), "updates")
    assert text.startswith(f"{updates} updates, one every")


def test_as_many_updates_are_made_as_were_predicted(tmp_path: Path):
    """Games of 9 steps: rows that begin one are not counted."""
    run = polyplay.train("dqn", run=str(tmp_path / "run"), steps=2_000, replicas=1, tensorboard=False, **TOY, **DRAWN)
    assert abs(run.summary["updates"] - 375) <= 1


def test_a_run_that_cannot_learn_says_so_first_and_at_the_end(tmp_path: Path, capfd):
    settings = {**TOY, **DRAWN, "capacity": 60_000, "start": 50_000, "replicas": 1}
    made = make("dqn", options={"steps": 3_000}, **settings)
    assert line(made, "updates").startswith("0 updates")
    assert made.warning.startswith("no update will be made: the run ends after 3,000 agent steps")
    run = polyplay.train("dqn", run=str(tmp_path / "run"), steps=100, tensorboard=False, **settings)
    assert run.summary["reason"] == "done, but nothing was learnt: no update was made"
    assert "polyplay: no update will be made: " in capfd.readouterr().err
    assert make("dqn", options={"steps": 51_000}, **settings).warning == ""
    assert make("apex", options={"steps": 501}, **{**DRAWN, "ratio": 0.0}).warning == ""


@pytest.mark.parametrize(
    ("system", "settings", "options", "repeats"),
    [
        ("a2c", {}, {}, "bitwise reproducible"),
        ("impala", {}, {"serial": True}, "bitwise reproducible"),
        ("impala", {"lag": 0}, {}, "bitwise reproducible"),
        (
            "impala",
            {"lag": 0, "actors": 4, "batch": 32},
            {},
            "not bitwise reproducible",
        ),  # an update takes 2 of 4 rollouts
        ("impala", {"lag": 1}, {}, "not bitwise reproducible"),
        ("impala", {}, {}, "not bitwise reproducible"),
    ],
)
def test_what_repeats(system: str, settings: dict[str, Any], options: dict[str, Any], repeats: str):
    assert line(make(system, options=options, **settings), "repeat").startswith(repeats)


def test_lag_0_repeats_to_the_bit_whatever_workers_are(tmp_path: Path):
    how: list[dict[str, Any]] = [{"serial": True}, {"on": "thread"}]
    small = {**TOY, "lanes": 4, "batch": 8, "unroll": 5, "lag": 0, "steps": 700, "trace": True}
    for i, more in enumerate(how):
        polyplay.train("impala", **small, **more, run=str(tmp_path / str(i)))
    one, two = ((tmp_path / str(i) / "updates.jsonl").read_text() for i in range(2))
    assert one == two
    assert one.count("\n") >= 17


def test_what_resumes():
    assert line(make("a2c"), "resume") == f"restores all, environments too; {EXACT}"
    assert (
        line(make("a2c", env="CartPole-v1"), "resume")
        == f"restores all, environments too if they can be saved; {EXACT}"
    )
    assert line(make("a2c", env="ALE/Pong-v5"), "resume").endswith("environments start new episodes")
    together = {"actors": 3, "lanes": 2, "batch": 4}
    assert line(make("impala", **together), "resume").endswith("not bitwise: workers run freely")
    assert line(make("impala", **together, options={"serial": True}), "resume").endswith(EXACT)
    replayed = line(make("impala", **together, auxiliary="value", options={"serial": True}), "resume")
    assert replayed.endswith("not bitwise: recent rows of auxiliary tasks are lost")
    playing = {"agents": 2, "env": "toy:rps", "lanes": 8, "batch": 4}
    assert line(make("league", **playing), "resume").endswith("matches under way are lost")
    assert line(make("league", **playing, options={"serial": True}), "resume").endswith(f"environments too; {EXACT}")
    teams = {"env": "toy:skirmish", "points": ("kill=1",), "network": "mlp", "lanes": 8, "batch": 2, "unroll": 20}
    teams |= {"auxiliary": "reward", "core_size": 8}
    assert line(make("ftw", **teams, options={"serial": True}), "resume").endswith(f"environments too; {EXACT}")
    ahead = line(make("apex", options={"serial": True}), "resume")
    assert ahead.endswith("batches drawn ahead are drawn again")


def test_what_ends_an_episode():
    game = Envs("ALE/Pong-v5", 2, options={"life_loss": "terminate", "max_frames": 18_000})
    assert plan.episodes(game) == (
        "terminated by a lost game or life: value 0; truncated after 18,000 frames: value of the last observation"
    )
    assert plan.episodes(Envs("ALE/Pong-v5", 2)).startswith("terminated by a lost game: value 0")
    text = plan.episodes(Envs("CartPole-v1", 2))
    assert text == "terminated: value 0; truncated (time limit: 500 steps): value of the last observation"


def test_what_becomes_of_real_actions():
    pendulum = {"env": "toy:pendulum", "replicas": 1}
    assert line(make("ppo", **pendulum), "actions") == "a policy's −1 … 1 is scaled to [-2, 2]"
    assert line(make("ppo", **pendulum, actions="clip"), "actions") == "a policy's numbers are clipped to [-2, 2]"
    dpg = {"env": "toy:pendulum", "network": "auto"}
    assert line(make("apex_dpg", **dpg), "actions") == "a policy's −1 … 1 is scaled to [-2, 2]"
    assert "actions" not in dict(make("a2c", replicas=1).lines)


def test_a_checkpoint_is_as_large_as_was_said(tmp_path: Path):
    for name in ("adam", "rmsprop_tf"):
        more: dict[str, Any] = {"optimizer": name, "replicas": 1, "env": "CartPole-v1"}
        run = polyplay.train("a2c", **{**TOY, **more}, steps=80, serial=True, run=str(tmp_path / name))
        written = sum(f.stat().st_size for f in run.directory.rglob("agents/**/*.safetensors"))
        assert written == pytest.approx(make("a2c", **more).checkpoint, abs=4000)  # names, and Adam's counter


# ------------------------------------------------------------------------------------------------------ refusal


def test_too_much_is_refused_with_the_nearest_that_fits(monkeypatch: pytest.MonkeyPatch):
    page = systems.load("impala")
    settings = page.Config(**TOY, actors=1, lanes=1 << 16, batch=1 << 16)

    def planned(other: Any) -> plan.Plan:
        crew = Crew(0, steps=10)
        return plan.make_plan(crew, page.build(other, crew), RunOptions(), 0)

    def again(other: Any) -> Any:
        return planned(other).memory

    whole = planned(settings)
    assert plan.check_plan(whole, settings, again) is whole
    enough = whole.memory["processes"] + 0.3 * (whole.needs - whole.memory["processes"])
    monkeypatch.setattr(plan, "memory_limit", lambda: int(enough))
    with pytest.raises(
        UserError, match=r"memory: this takes at least .* GB .*, there are .*; what fits: --lanes 16384 --batch 16384"
    ):
        plan.check_plan(planned(settings), settings, again)


def test_where_nothing_fits_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(plan, "memory_limit", lambda: 2**20)
    with pytest.raises(UserError, match="there are 1 MB; no smaller setting fits: take a larger machine"):
        polyplay.train("a2c", **TOY, lanes=4, steps=80, run=str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()


HUGE: dict[str, dict[str, Any]] = {
    "five": {"preset": "paper"},
    "impala": {**TOY, "lanes": 1 << 22, "batch": 1 << 22},
    "alphago_zero": {"preset": "paper"},
}
LONG = pytest.mark.long


@pytest.mark.parametrize("system", ["five", "impala", pytest.param("alphago_zero", marks=LONG)])
def test_what_does_not_fit_is_refused_before_any_weights_are_drawn(system, monkeypatch, tmp_path):
    """However many smaller settings are tried, and however large the network is."""
    made, factory = [], NetworkFactory if system != "alphago_zero" else BoardNetworkFactory
    make = factory._make

    def count(self: Any) -> Any:
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(factory, "_make", count)
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda *_: pytest.fail("weights were drawn"))
    begun = time.process_time()
    with pytest.raises(UserError, match=r"memory: this takes at least .*, there are .*; what fits: --"):
        polyplay.train(system, run=str(tmp_path / "run"), **HUGE[system])
    assert time.process_time() - begun < 20
    assert len(made) <= 2, "one for the wiring, one for all plans"
    assert not (tmp_path / "run").exists()


def test_networks_that_are_run_have_their_weights_drawn():
    factory = NetworkFactory("mlp", Envs("toy:catch", 2).spec)
    with layers.outlines():
        first, again, run = factory(), factory(), build_network(factory, 3)
    assert first is again
    plain = build_network(factory, 3)
    assert all(torch.equal(a, b) for a, b in zip(run.parameters(), plain.parameters(), strict=True))
    assert all(a.shape == b.shape for a, b in zip(first.parameters(), plain.parameters(), strict=True))
    assert factory() is not first


@pytest.mark.parametrize("name", ["nature", "mlp", "accel_large"])
def test_nothing_is_computed_of_weights_that_nobody_draws(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.nn.init, "orthogonal_", lambda *_: pytest.fail("orthogonal weights were computed"))
    factory = NetworkFactory(
        name, Envs("ALE/Pong-v5" if name != "mlp" else "toy:catch", 1).spec, {"init": "orthogonal"}
    )
    with layers.outlines():
        assert factory() is factory()
    with pytest.raises(pytest.fail.Exception, match="computed"):
        factory()


class Strict(nn.Module):
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
    factory = NetworkFactory(name, Envs("toy:catch", 2).spec, values=values)
    torch.manual_seed(0)
    with layers.outlines():
        planned = factory()
        assert factory() is planned
    torch.manual_seed(0)
    drawn = factory()
    assert all(torch.equal(a, b) for a, b in zip(planned.parameters(), drawn.parameters(), strict=True))


# --------------------------------------------------------------------------------------------------- dry runs


def test_a_dry_run_tells_the_plan_and_the_speed_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.3)
    words = "train a2c --env toy:catch --network mlp --lanes 4 --replicas 1 --serial --steps 1M --dry-run"
    assert main.main(words.split()) == 0
    out = capsys.readouterr().out
    heads = [text.split()[0] for text in out.splitlines() if re.match(r"[a-z]+ ", text)]
    text = [
        "playing",
        "workers",
        "network",
        "memory",
        "disk",
        "length",
        "updates",
        "repeat",
        "resume",
        "episodes",
        "measured",
        "eta",
    ]
    assert heads[-len(text) :] == text
    assert re.search(r"^measured [\d,]+ agent steps/s for 0.3 s; [\d,]+ MB$", out, re.M)
    assert re.search(r"^eta      \d+:\d\d:\d\d at that speed$", out, re.M)
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


def test_what_is_compiled_first_is_said_where_it_was_not_yet(monkeypatch):
    monkeypatch.setattr(compiled, "is_compiled", lambda loop: False)
    assert "are compiled first" in line(make("dqn"), "once")
    assert "once" not in dict(make("a2c").lines)
    monkeypatch.setattr(compiled, "is_compiled", lambda loop: True)
    assert "once" not in dict(make("dqn").lines)
