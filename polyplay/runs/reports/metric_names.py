"""What metrics are called in TensorBoard and W&B: Polyplay's names, CleanRL's or Stable-Baselines3's.

metrics.jsonl always has Polyplay's. Only names differ (and the sign of SB3's entropy_loss): a value is what
docs/guides/onnx_and_wandb.md says it is. The x axis is agent steps in every style, as in theirs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STYLES = ("polyplay", "cleanrl", "sb3")
# our name → theirs; what stands in no table is polyplay/NAME there
CLEANRL = {
    "sps": "charts/SPS",
    "learning_rate": "charts/learning_rate",
    "episodic_return": "charts/episodic_return",
    "episodic_length": "charts/episodic_length",
    "policy_loss": "losses/policy_loss",
    "value_loss": "losses/value_loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "explained_variance": "losses/explained_variance",
    "td_loss": "losses/td_loss",
    "q_values": "losses/q_values",
}
SB3 = {
    "episodic_return_mean": "rollout/ep_rew_mean",
    "episodic_length_mean": "rollout/ep_len_mean",
    "sps": "time/fps",
    "wall_seconds": "time/time_elapsed",
    "steps": "time/total_timesteps",
    "updates": "train/n_updates",
    "learning_rate": "train/learning_rate",
    "loss": "train/loss",
    "policy_loss": "train/policy_loss",
    "value_loss": "train/value_loss",
    "entropy": "train/entropy_loss",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "explained_variance": "train/explained_variance",
}
NEGATED = {("sb3", "entropy")}  # theirs is the loss, −H
CHARTS = ("episodic_return_mean", "episodic_length_mean", "frames", "episodes")
RUN = ("lag_mean", "lag_max", "queue_depth", "restarts", "memory_mb")
GAUGES = ("pps", "tps", "predict_batch", "train_batch", "prediction_queue", "agent_wait_ms", "cpu")
SEATS = ("agents", "predictors", "trainers")
KINDS = ("env", "infer", "learn", "replay", "wait")
TOLD = ("sps", "fps", "steps", "updates", "wall_seconds", *CHARTS, *(f"time_{k}" for k in KINDS), *RUN)

Scalars = dict[str, float | None]


def of_report(style: str, row: Mapping[str, Any], losses: Mapping[str, Any]) -> Scalars:
    """A line of metrics.jsonl under the names of `style`; `losses`: which of its keys are the learner's."""
    if style == "polyplay":
        return _ours(row, losses)
    names = CLEANRL if style == "cleanrl" else SB3
    keys = [*TOLD, *(k for k in (*GAUGES, *SEATS) if k in row), *(k for k in losses if k not in TOLD)]
    return {names.get(k, f"polyplay/{k}"): _signed(style, k, row[k]) for k in keys}


def of_episode(style: str, game: Mapping[str, float]) -> Scalars:
    """A finished game: SB3 only shows means."""
    return {} if style == "sb3" else {f"charts/{k}": v for k, v in game.items()}


def of_evaluation(style: str, row: Mapping[str, Any]) -> Scalars:
    """Games beside training."""
    means = {k: row[f"episodic_{k}_mean"] for k in ("return", "length")}
    if style == "sb3":
        return {"eval/mean_reward": means["return"], "eval/mean_ep_length": means["length"]}
    return {f"eval/episodic_{k}_mean": v for k, v in means.items()}


def _signed(style: str, key: str, value: float | None) -> float | None:
    return -value if value is not None and (style, key) in NEGATED else value


def _ours(row: Mapping[str, Any], losses: Mapping[str, Any]) -> Scalars:
    charts = [*CHARTS, *(k for k in losses if k == "learning_rate")]
    return {
        "charts/SPS": row["sps"],
        "charts/FPS": row["fps"],
        **{f"charts/{k}": row[k] for k in charts},
        **{f"losses/{k}": row[k] for k in losses if k not in charts},
        **{f"time/{k}": row[f"time_{k}"] for k in KINDS},
        **{f"run/{k}": row[k] for k in RUN},
        **{f"service/{k}": row[k] for k in (*GAUGES, *SEATS) if k in row},
    }
