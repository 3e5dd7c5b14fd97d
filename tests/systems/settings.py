"""Settings with which systems learn small tasks within seconds."""

from __future__ import annotations

from typing import Any

from tests.games.traits import NAME as TRAITS

VALUES = ("accel_dqn", "apex", "dqn", "gorila", "r2d2", "rainbow")  # of Discrete actions alone
REAL = ("apex_dpg", "apex_sac", "sac", "td3")  # of a bounded Box alone
QUIET: Any = {"network": "mlp", "tensorboard": False, "report_every": 0.5}
ADAM: Any = {**QUIET, "optimizer": "adam", "optimizer_eps": 1e-5}
ON: Any = {**ADAM, "env": "toy:catch", "anneal": "constant"}
MEMORY: Any = {"env": "toy:memory", "core": "gru"}
REPLAY: Any = {**QUIET, "env": "toy:catch", "lanes": 8, "unroll": 1, "batch": 64, "ratio": 8.0, "capacity": 20_000}
REPLAY |= {"learning_starts": 500, "target_update": 50, "learning_rate": 2e-3, "epsilon": 0.05}
REPLAY["epsilon_decay_steps"] = 3_000
APART: Any = {"replay_workers": 2, "actors": 2, "lanes": 4, "unroll": 10, "prefetch": 2}

A2C: Any = {**ADAM, "env": "toy:catch", "lanes": 16, "unroll": 9, "learning_rate": 3e-3, "entropy_cost": 0.01}
A3C: Any = {**ON, "workers": 2, "unroll": 9, "lam": 0.95, "learning_rate": 2e-3, "max_grad_norm": 1.0}
ACCEL: Any = {**ON, "lanes": 16, "replicas": 2, "unroll": 9, "lam": 0.95, "learning_rate": 1e-2}
ACCEL |= {"normalize_advantage": True}
ACCEL_PPO: Any = {**ACCEL, "algo": "ppo", "unroll": 16, "learning_rate": 3e-3, "epochs": 2, "minibatches": 2}
# with ACCEL's, 1 run in 10 plays one way before it is good
CHUNKED: Any = {"sync": "chunked", "learning_rate": 3e-3, "entropy_cost": 0.05}
ACCEL_DQN: Any = {**REPLAY, "unroll": 2, "batch": 256, "ratio": 32.0, "target_update": 20, "learning_rate": 5e-3}
ACCEL_DQN |= {"max_grad_norm": 10.0, "epsilon_decay_steps": 1_500, "replicas": 2}
NARROW: Any = {k: v for k, v in ON.items() if "optimizer" not in k}  # pages that have one optimizer
APPO: Any = {**NARROW, "actors": 2, "lanes": 8, "batch": 16, "unroll": 9, "epochs": 2, "minibatches": 2}
APPO |= {"learning_rate": 5e-3, "clip_range": 0.2}
PPO: Any = {**NARROW, "lanes": 16, "unroll": 16, "learning_rate": 3e-3, "clip_range": 0.2, "normalize_advantage": True}
IMPALA: Any = {**ADAM, "env": "toy:catch", "lanes": 8, "batch": 16, "unroll": 9, "learning_rate": 3e-3}
IMPALA |= {"reduction": "mean", "max_grad_norm": 1.0, "entropy_cost": 0.01}
GA3C: Any = {**ADAM, "max_grad_norm": 0.5, "reduction": "mean", "schedule": "off", "learning_rate": 3e-3, "agents": 16}
GA3C |= {"min_batch": 40, "report_every": 1.0}
DQN: Any = {**REPLAY, "optimizer": "adam", "optimizer_eps": 1e-5, "reduction": "mean", "n_step": 3}
RAINBOW: Any = {**REPLAY, "v_max": 2.0}
APEX: Any = {**{k: v for k, v in REPLAY.items() if k != "epsilon_decay_steps"}, **APART, "epsilon": 0.2}
APEX |= {"optimizer": "adam", "optimizer_eps": 1e-5, "max_grad_norm": 10.0}
AIM: Any = {**APART, "env": f"{TRAITS}+continuous+questions=2", "batch": 64, "capacity": 20_000, "n_step": 1}
AIM |= {"gamma": 0.5}
AIM |= {"learning_rate": 3e-3, "target_update": 50, "ratio": 24.0, "learning_starts": 300, "width": 64, "noise": 0.5}
SAC: Any = {"tensorboard": False, "report_every": 0.5, "env": f"{TRAITS}+continuous+questions=2", "gamma": 0.5}
SAC |= {"lanes": 4, "batch": 64, "ratio": 64.0, "capacity": 20_000, "learning_starts": 300, "learning_rate": 3e-3}
SAC |= {"network": "mlp(32,32)", "tau": 0.02}
APEX_SAC: Any = {**SAC, **APART, "learning_starts": 300}
GORILA: Any = {**REPLAY, "lanes": 4, "capacity": 10_000, "learning_starts": 250, "learners": 2, "shards": 2}
GORILA |= {"n_step": 3, "optimizer": "adam", "optimizer_eps": 1e-5, "report_every": 60.0}  # the last one always comes
FREE: Any = {**GORILA, "unroll": 5, "actors": 2, "replay_workers": 2}
R2D2: Any = {**QUIET, "env": "toy:memory", "unroll": 8, "pull": 8, "sequence": 8, "burn_in": 4, "n_step": 2}
R2D2 |= {"core_size": 32, "gamma": 0.97, "actors": 1, "lanes": 8, "batch": 16, "ratio": 2.0, "capacity": 40_000}
R2D2 |= {"learning_starts": 2_000, "target_update": 50, "learning_rate": 3e-3, "optimizer_eps": 1e-5}
BOARD: Any = {"env": "game:tic_tac_toe", "games": 16, "simulations": 12, "temperature_plies": 6, "noise_alpha": 1.0}
BOARD |= {"blocks": 1, "filters": 8, "batch": 64, "ratio": 2.0, "capacity": 4_000}
BOARD |= {"learning_starts": 400, "learning_rate": 0.02}
