"""What pages wire: figures and plans say it, and what cannot be wired is refused in one line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from polyplay import systems
from polyplay.core import machine
from polyplay.core.errors import UserError
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.systems import accel_dqn
from polyplay.workers import role
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems.settings import VALUES
from tests.systems.trained import wired

CATCH = {"env": "toy:catch", "network": "mlp"}
CHUNKS = {**CATCH, "replicas": 2, "sync": "chunked"}
PENDULUM, CONDITIONAL = ({"env": f"toy:tests.toys:{name}"} for name in ("Pendulum", "ConditionalGame"))


IMPALA = """\
┌─ act × 2 ──────────────────────┐
│ envs    ALE/Pong-v5 × 16 lanes │
│ policy  impala                 │
│ rollout 20 steps, free         │
│ if lost replace                │
└────────────────────────────────┘

┌─ learn × 1 ───────────────────────────┐
│ policy  impala                        │
│ batch   2 slots × 16 lanes × 20 steps │
│ loss    VTrace                        │
│ update  Local(rmsprop_tf)             │
│ if lost fail                          │
└───────────────────────────────────────┘

act ──► RolloutQueue: 4 slots × 21 rows × 16 lanes ──► learn
learn ──► Params: 1,091,031 weights ──► act
"""


def test_the_figure_is_drawn_from_the_wiring():
    page = systems.load("impala")
    assert diagram(page, page.Config(), RunOptions()) == IMPALA


FIGURES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a3c": (
        {**CATCH, "workers": 2, "optimizer": "rmsprop_a3c"},
        ("actor_learner × 2", "Hogwild(rmsprop_a3c), no lock", "if lost replace",
         "weights and rmsprop_a3c's square ──► actor_learner"),
    ),
    "accel in chunks": (
        CHUNKS,
        ("rollout 5 steps, free", "Chunked(rmsprop_a3c), 3 parts", "weights and rmsprop_a3c's square ──► replica",
         "if lost replace"),
    ),
    "apex": (
        {**CATCH, "replay_workers": 2},
        ("replay  1,000,000 agent steps, soft", "draws   512 transitions of 3 steps: free, proportional",
         "trims   every 100 updates", "batch   512 transitions of 3 steps, 16 ready from each"),
    ),
    "dqn": (
        CATCH,
        ("replay  1,000,000 agent steps", "draws   32 transitions: 8 per agent step, uniform",
         "ε       LinearEpsilon to 0.1"),
    ),
    "gorila, free": (
        {"actors": 4, "learners": 3},
        ("learn × 3", "batch   32 transitions, 2 ready from each", "drops   gradients more than 30 of its updates old",
         "act ──► RolloutQueue: 16 slots × 2 rows × 1 lanes ──► serve_replay", "──► act + learn",
         "serve_replay ──► SampleQueue: 6 batches of 32 ──► learn"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_is_done(name):
    system, (settings, said) = name.split()[0].strip(","), FIGURES[name]
    page = systems.load(system)
    figure = diagram(page, page.Config(**settings), RunOptions())
    assert [words for words in said if words not in figure] == []
    if system.startswith("apex"):
        flows = [line.split(" ──► ") for line in figure.splitlines() if " ──► " in line]
        assert sorted((of, what.split(":")[0], to) for of, what, to in flows) == [
            ("act", "RolloutQueue", "serve_replay"),
            ("learn", "Params", "act"),
            ("serve_replay", "SampleQueue", "learn"),
        ]


BITWISE = "bitwise reproducible"
FOUR, THREE = (f"10 rollouts of 1,024 rows, {n} epochs of 4 minibatches each" for n in (4, 3))
PLANS: list[Any] = [
    ("a3c", {**CATCH, "workers": 2}, 1_000, "about 200 updates of 5 rows", "not bitwise"),
    ("a3c", {**CATCH, "workers": 1}, 1_000, "about 200 updates of 5 rows", BITWISE),
    ("accel", {**CATCH, "replicas": 2, "algo": "ppo", "unroll": 64}, 10_240, f"160 updates: {FOUR}", BITWISE),
    ("accel", CHUNKS, 1_000, "about 25 updates of 40 rows", "not bitwise"),
    ("appo", CATCH, 10_240, f"about 160 updates: {FOUR}", "not bitwise"),
    ("dqn", CATCH, 100_000, "12,500 updates, one every 4 agent steps after the first 50,000", BITWISE),
    ("ppo", {**CATCH, "replicas": 2}, 10_240, f"about 120 updates: {THREE}", BITWISE),
]  # fmt: skip


@pytest.mark.parametrize(("system", "settings", "steps", "updates", "repeat"), PLANS)
def test_a_plan_counts_updates_and_says_what_repeats(system, settings, steps, updates, repeat):
    crew = Crew(0, steps=steps)
    made = plan.make_plan(crew, wired(system, crew, **settings), RunOptions(steps=steps))
    lines = dict(made.lines)
    assert updates in lines["updates"]
    assert lines["repeat"].startswith(repeat)
    assert (made.memory.get("replay", 0) > 0) == (system == "dqn")
    if repeat != BITWISE and system != "appo":
        assert lines["resume"].endswith("environments start new episodes")


@pytest.mark.parametrize(
    ("system", "settings"), [("a3c", {"workers": 3}), ("accel", {"sync": "chunked", "lanes": 12, "replicas": 3})]
)
def test_memory_counts_shared_weights_and_statistics_once(system, settings):
    crew = Crew(0, steps=1000)
    made = wired(system, crew, **CATCH, optimizer="adam", **settings)
    net = plan.bytes_of(made.policy())
    told = plan.predict_memory(crew, made.policy())["weights"]
    assert told == pytest.approx((3 * 2 + 1 + 2) * net, abs=1024)


REPLICAS = [
    ("ppo", CATCH, 1),
    ("a2c", {"env": "CartPole-v1"}, 1),
    ("accel_dqn", CATCH, 1),
    ("accel", {**CATCH, "sync": "chunked"}, 4),
    ("ppo", {"env": "ALE/Pong-v5"}, 4),
    ("accel_dqn", {"env": "ALE/Pong-v5"}, 4),
    ("ppo", {**CATCH, "replicas": 2}, 2),
]


@pytest.mark.parametrize(("system", "settings", "n"), REPLICAS)
def test_small_networks_have_one_replica_and_images_one_per_core(system, settings, n, monkeypatch):
    for module in (role, machine, accel_dqn):
        monkeypatch.setattr(module, "cores", lambda: 4)
    made = wired(system, Crew(0), **settings, lanes=16)
    assert made.resolved["replicas"] == n


FREE = {"actors": 2, "replay_workers": 2}
REFUSED: list[Any] = [
    ("alphago_zero", {"env": "game:tic_tac_toe", "batch": 100, "learners": 3},
     "--batch 100 does not divide among --learners 3: make it a multiple"),
    ("a2c", {"lanes": 9, "replicas": 2}, "--lanes 9 does not divide"),
    ("accel", {"lanes": 16, "replicas": 3}, "does not divide among --replicas 3 x --groups 2; make it a multiple of 6"),
    ("accel", {"replicas": 2, "lanes": 8, "algo": "ppo", "core": "gru"}, "--minibatches 4; make it a multiple of 16"),
    ("accel", {"optimizer": "adamm"}, "did you mean 'adam'"),
    ("accel", {"env": "ALE/Pong-v5", "atari": "acel"}, "did you mean 'accel'"),
    ("a2c", {"env": "ALE/Pong-v5", "atari": "impala:fast"}, "allowed: native, plain"),
    ("a2c", {"env": "CartPole-v1", "atari": "impala"}, "--env CartPole-v1 is not an Atari game"),
    ("apex", {"actors": 3, "replay_workers": 2}, "--actors 3 does not divide among --replay-workers 2"),
    ("apex", {"learners": 3, "batch": 64}, "--batch 64 does not divide among --learners 3"),
    ("apex_dpg", {}, "apex_dpg needs bounded real actions, this has 3 discrete; .*a2c, dqn, sac, apex_sac take these"),
    ("apex_dpg", {"env": f"{TRAITS}+hybrid+continuous"}, "needs bounded real actions, this has .*; ppo, impala"),
    ("appo", {"minibatches": 9}, "--minibatches 9 of 8 trajectories per learner: lower it, or raise --batch"),
    ("appo", {"batch": 9}, "--batch 9 is not a multiple of --learners 1 x --lanes 4"),
    ("appo", {"batch": 8, "lag": 0, "actors": 3}, "--batch 8 takes 2 rollouts .*--lag 0 allow 1"),
    ("dqn", {"replicas": 2}, "--lanes 1 does not divide among --replicas 2: make it a multiple of 2"),
    ("dqn", PENDULUM, "dqn needs discrete .* .1. real.*a2c, sac, apex_sac, td3, apex_dpg take these"),
    ("dqn", CONDITIONAL, r"dqn needs discrete actions, this has verb: 4 discrete, unit.*\(verb 1, 3\)"),
    ("ga3c", {"min_batch": 200}, "--min-batch 200 may need more than --queue 100 chunks: raise --queue"),
    ("gorila", {"shards": 0}, "--shards: 0 given"),
    ("gorila", {**FREE, "actors": 0}, "--replay-workers 2 has no effect without --actors: give both, or leave it out"),
    ("gorila", {**FREE, "actors": 3}, "--actors 3 does not divide among --replay-workers 2"),
    ("gorila", {"replay_workers": 1, "actors": 0, "ratio": 0.0}, "ratio=0.0: must be above 0"),
    ("impala", {"actors": 3, "lanes": 4, "batch": 8, "lag": 0}, "--lag 0 allow 1"),
    ("impala", {"actors": 2048}, "at most 2048 workers"),
    ("ppo", {"core": "gru", "lanes": 6}, "--lanes 6 does not divide among --replicas 1 x --groups 1 x --minibatches 4"),
    *((name, {"env": f"{TRAITS}+{x}"}, "needs discrete actions, this has")
      for name in VALUES for x in ("continuous", "hybrid")),
]  # fmt: skip


ACTORS: list[Any] = [
    ("sac", {"tau": 0.0}, "--tau: 0 given, allowed: above 0, at most 1"),
    ("sac", {"learning_starts": 200, "capacity": 100}, "--learning-starts: 200 given, allowed: up to --capacity"),
    ("td3", {"batch": 300, "capacity": 200, "learning_starts": 9}, "--batch: 300 given, allowed: up to the 200 trans"),
    ("sac", {"entropy": 0.7}, "--entropy: 0.7 given, allowed: below 0.693, the entropy of uniform actions of Pend"),
    ("sac", {"env": "CartPole-v1", "entropy": 0.7}, "--entropy: 0.7 given, allowed: below 0.693, the entropy of unif"),
    ("sac", {"subset": 3}, "--subset: 3 given, allowed: at most the 2 of --critics"),
    ("sac", {"dropout": 1.0}, "--dropout: 1 given, allowed: from 0, below 1"),
    ("sac", {"beta1": 1.0}, "--beta1: 1 given, allowed: from 0, below 1"),
    ("td3", {"env": "CartPole-v1"}, "this has 2 discrete; ppo, impala, a2c, dqn, sac, apex_sac take these"),
]
REFUSED += [(system, {"env": "Pendulum-v1", **settings}, said) for system, settings, said in ACTORS]


@pytest.mark.parametrize(("system", "settings", "said"), REFUSED)
def test_what_cannot_be_wired_is_one_line(system, settings, said):
    with pytest.raises(UserError, match=said) as e:
        wired(system, Crew(0), **{**({} if system == "apex_dpg" else CATCH), "env": "toy:catch", **settings})
    assert "\n" not in str(e.value)
    assert re.search("--|needs|is 0|mean|allowed|must", str(e.value))
