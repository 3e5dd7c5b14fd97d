from __future__ import annotations

import pytest

from polyplay.learning import returns
from polyplay.runs import reporter
from tests.reports import KEYS

ROW = {k: float(i + 1) for i, k in enumerate([*KEYS, *returns.COMMON, "grad_norm", "learning_rate"])}
LEARNT = {k: ROW[k] for k in (*returns.COMMON, "grad_norm", "learning_rate")}


@pytest.mark.parametrize(
    ("style", "names"),
    [
        (
            "polyplay",
            {"sps": "charts/SPS", "entropy": "losses/entropy", "lag_mean": "run/lag_mean", "time_env": "time/env"},
        ),
        (
            "cleanrl",
            {"sps": "charts/SPS", "learning_rate": "charts/learning_rate", "policy_loss": "losses/policy_loss"},
        ),
        ("cleanrl", {"approx_kl": "losses/approx_kl", "episodic_return_mean": "polyplay/episodic_return_mean"}),
        ("sb3", {"episodic_return_mean": "rollout/ep_rew_mean", "episodic_length_mean": "rollout/ep_len_mean"}),
        ("sb3", {"sps": "time/fps", "steps": "time/total_timesteps", "wall_seconds": "time/time_elapsed"}),
        ("sb3", {"value_loss": "train/value_loss", "updates": "train/n_updates", "fps": "polyplay/fps"}),
    ],
)
def test_names_are_those_that_a_styles_users_know(style: str, names: dict[str, str]):
    named = reporter.of_report(style, ROW, LEARNT)
    assert {k: named[name] for k, name in names.items()} == {k: ROW[k] for k in names}


@pytest.mark.parametrize("style", ["cleanrl", "sb3"])
def test_nothing_that_is_measured_is_left_out(style: str):
    named = reporter.of_report(style, ROW, LEARNT)
    shown = {abs(v) for v in named.values() if v is not None}
    assert shown == set(ROW.values())
    assert len(named) == len(ROW)


def test_sb3s_entropy_loss_is_minus_the_entropy():
    assert reporter.of_report("sb3", ROW, LEARNT)["train/entropy_loss"] == -ROW["entropy"]
    assert reporter.of_report("sb3", {**ROW, "entropy": None}, LEARNT)["train/entropy_loss"] is None


def test_single_games_are_shown_where_the_style_does():
    game = {"episodic_return": 3.0, "episodic_length": 9}
    assert reporter.of_episode("cleanrl", game) == {"charts/episodic_return": 3.0, "charts/episodic_length": 9}
    assert reporter.of_episode("polyplay", game) == reporter.of_episode("cleanrl", game)
    assert reporter.of_episode("sb3", game) == {}


def test_games_beside_training_have_names_of_their_own():
    row = {"episodic_return_mean": 3.0, "episodic_length_mean": 9.0, "frames": 4}
    assert reporter.of_evaluation("sb3", row) == {"eval/mean_reward": 3.0, "eval/mean_ep_length": 9.0}
    assert reporter.of_evaluation("cleanrl", row) == reporter.of_evaluation("polyplay", row)
    assert reporter.of_evaluation("polyplay", row)["eval/episodic_return_mean"] == 3.0
