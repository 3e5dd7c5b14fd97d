"""Who runs in score_race.py, with which settings: the table, and nothing that measures.

Peers run with the hyper-parameters that they publish for Atari or Pong. Only what a hyper-parameter does not fix is
chosen for the machine: threads, processes, how environments are stepped. Ours run with `--preset quick`.
"""

from __future__ import annotations

from dataclasses import dataclass

from contests import PEERS


@dataclass(frozen=True)
class Racer:
    name: str
    program: str  # a system of Polyplay's, or a key of contests.PEERS
    fixed: str  # its flags, as in contests.py
    source: str  # where they are published, and what was chosen here

    @property
    def ours(self) -> bool:
        return self.program not in PEERS


SF = "epochs=4 rollout=128 batch_size=256 anneal=10000000"
ATARI = "num_workers=1 env_agents=8 serial_mode=True async_rl=False normalize_input=True normalize_returns=True"
RACERS = (
    Racer("ppo", "ppo", "preset=quick precision=auto", "`quick`"),
    Racer("accel", "accel", "preset=quick precision=auto", "`quick`, which is PPO"),
    Racer("appo", "appo", "preset=quick precision=auto", "`quick`"),
    Racer("impala", "impala", "preset=quick precision=auto", "`quick`"),
    Racer("a2c", "a2c", "preset=quick precision=auto", "`quick`"),
    Racer(
        "sb3 PPO",
        "sb3",
        "algo=ppo network=nature n_envs=8 anneal=10000000 threads=2",
        "rl-zoo3's ppo.yml, `atari`; its CnnPolicy, a process per environment",
    ),
    Racer(
        "sb3 A2C",
        "sb3",
        "algo=a2c network=nature n_envs=16 threads=2",
        "rl-zoo3's a2c.yml, `atari`; its CnnPolicy, a process per environment",
    ),
    Racer(
        "cleanrl-like PPO",
        "cleanrl-like",
        "algo=ppo network=nature n_envs=8 anneal=10000000 threads=2 env_threads=2",
        "CleanRL's ppo_atari_envpool.py",
    ),
    Racer(
        "sample-factory, envpool",
        "sample-factory",
        f"{SF} num_workers=2 env_agents=16",
        "its presets for Atari with EnvPool (asynchronous); 2 workers of 16 environments instead of 4 of 64",
    ),
    Racer(
        "sample-factory, atari",
        "sample-factory",
        f"{SF} {ATARI}",
        "its presets for Atari (synchronous, 8 environments, inputs and returns normalised); EnvPool steps them",
    ),
    Racer(
        "rlpyt A2C",
        "rlpyt",
        "algo=a2c network=own lanes=32 unroll=5 decorrelation=1000 workers=2 threads=2",
        "its atari_ff_a2c.py, `0`: its network and frames; 2 sampling processes",
    ),
    Racer(
        "rlpyt PPO",
        "rlpyt",
        "algo=ppo network=own lanes=32 unroll=64 anneal=50000000 decorrelation=1000 workers=2 threads=2",
        "its atari_ff_ppo.py, `0`: its network and frames; 2 sampling processes",
    ),
    Racer(
        "monobeast",
        "monobeast",
        "network=own num_actors=8 total_steps=30000000 learning_rate=0.0004 epsilon=0.01 entropy_cost=0.01 "
        "batch_size=4 unroll_length=80 num_buffers=60 num_learner_threads=1",
        "its README's command for Pong, its network; 8 actors instead of 45, 1 learner thread instead of 4",
    ),
)
