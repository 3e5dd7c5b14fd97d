"""What metrics are called in TensorBoard and W&B: Polyplay's names, CleanRL's or Stable-Baselines3's.

metrics.jsonl always has Polyplay's. Only names differ (and the sign of SB3's entropy_loss): a value is what
docs/guides/onnx_and_wandb.md says it is. The x axis is agent steps in every style, as in theirs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
KINDS = ("env", "infer", "learn", "replay", "wait")
CHARTS = ("episodic_return_mean", "episodic_length_mean", "frames", "episodes", "learning_rate")
RUN = ("lag_mean", "lag_max", "queue_depth", "restarts", "memory_mb")
RATES = ("pps", "tps", "predict_batch", "train_batch", "prediction_queue", "agent_wait_ms", "cpu")
SERVICE = (*RATES, "agents", "predictors", "trainers")
POLYPLAY = {
    "sps": "charts/SPS",
    "fps": "charts/FPS",
    **{k: f"charts/{k}" for k in CHARTS},
    **{f"time_{k}": f"time/{k}" for k in KINDS},
    **{k: f"run/{k}" for k in RUN},
    **{k: f"service/{k}" for k in SERVICE},
}
OTHERS = ("steps", "updates", "wall_seconds")  # of a report, not shown under Polyplay's names

Scalars = Mapping[str, float | None]


def of_report(style: str, row: Scalars, losses: Collection[str]) -> Scalars:
    """A line of metrics.jsonl under the names of `style`; `losses`: which of its keys learners report."""
    if style == "polyplay":
        return {POLYPLAY.get(k, f"losses/{k}"): v for k, v in row.items() if k in POLYPLAY or k in losses}
    names = CLEANRL if style == "cleanrl" else SB3
    shown = {k: v for k, v in row.items() if k in POLYPLAY or k in OTHERS or k in losses}
    entropy = shown.get("entropy")
    if style == "sb3" and entropy is not None:
        shown["entropy"] = -entropy  # theirs is the loss, −H
    return {names.get(k, f"polyplay/{k}"): v for k, v in shown.items()}


def of_episode(style: str, game: Mapping[str, float]) -> Scalars:
    """A finished game; SB3 only shows means."""
    return {} if style == "sb3" else {f"charts/{k}": v for k, v in game.items()}


def of_evaluation(style: str, row: Scalars) -> Scalars:
    """An evaluation during training."""
    means = {k: row[f"episodic_{k}_mean"] for k in ("return", "length")}
    if style == "sb3":
        return {"eval/mean_reward": means["return"], "eval/mean_ep_length": means["length"]}
    return {f"eval/episodic_{k}_mean": v for k, v in means.items()}
