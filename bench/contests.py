"""Who plays in which contest of compare.py, with which settings: the table, and nothing that measures.

A setting is a program's own flags, `lanes=32 groups=2` for `--lanes 32 --groups 2`. `fixed` is the task and the same
for all; of `settings` the first is the guess that plays without --probe. `like` follows another contender's choice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH = ("torch", "numpy")
ATARI = ("gymnasium", "ale-py", "opencv-python-headless")
MPE = ("pettingzoo", "mpe2")
SMALL = ("gymnasium", "mujoco")
PONG, SPREAD = "ALE/Pong-v5", "mpe2.simple_spread_v3:parallel_env"


@dataclass(frozen=True)
class Peer:
    """A script of bench/peers, run by the Python of the environment `venv`; perhaps on a checkout."""

    script: str
    venv: str
    packages: tuple[str, ...]
    checkout: str = ""
    dashes: bool = True  # --n-envs rather than --n_envs


PEERS = {
    "sb3": Peer("sb3.py", "sb3", ("stable-baselines3", *TORCH, *ATARI)),
    "cleanrl-like": Peer("cleanrl_like.py", "envpool", ("envpool", *TORCH)),
    "rlpyt": Peer("rlpyt_atari.py", "classics", (*TORCH, *ATARI), "rlpyt"),
    "monobeast": Peer("monobeast.py", "classics", (*TORCH, *ATARI), "torchbeast", dashes=False),
    "sample-factory": Peer(
        "sample_factory_atari.py", "sf", ("sample-factory", "envpool", "gymnasium", *TORCH), dashes=False
    ),
    "rllib": Peer("rllib.py", "rllib", ("ray", *TORCH, *ATARI)),
    "sb3-dqn": Peer("sb3_dqn.py", "sb3", ("stable-baselines3", *TORCH, *ATARI)),
    "cleanrl-like-dqn": Peer("cleanrl_like_dqn.py", "envpool", ("envpool", *TORCH)),
    "rlpyt-dqn": Peer("rlpyt_dqn.py", "classics", (*TORCH, *ATARI), "rlpyt"),
    "tianshou-dqn": Peer("tianshou_dqn.py", "tianshou", ("tianshou", *TORCH, *ATARI)),
    "torchrl-dqn": Peer("torchrl_dqn.py", "torchrl", ("torchrl", *TORCH, *ATARI)),
    "rllib-dqn": Peer("rllib_dqn.py", "rllib", ("ray", *TORCH, *ATARI)),
    "sb3-spread": Peer("sb3_pettingzoo.py", "ma", ("stable-baselines3", "SuperSuit", "gymnasium", *TORCH, *MPE)),
    "sample-factory-spread": Peer(
        "sample_factory_pettingzoo.py", "sf", ("sample-factory", "gymnasium", *TORCH, *MPE), dashes=False
    ),
    "rllib-spread": Peer("rllib_pettingzoo.py", "rllib", ("ray", "gymnasium", *TORCH, *MPE)),
    "sb3-small": Peer("sb3_small.py", "sb3", ("stable-baselines3", *TORCH, *SMALL)),
    "cleanrl-like-small": Peer("cleanrl_like_small.py", "sb3", (*TORCH, *SMALL)),
    "cleanrl-like-control": Peer("cleanrl_like_control.py", "sb3", (*TORCH, *SMALL)),
    "torchrl-small": Peer("torchrl_small.py", "torchrl", ("torchrl", *TORCH, *SMALL)),
    "sample-factory-mujoco": Peer("sample_factory_mujoco.py", "sf", ("sample-factory", *TORCH, *SMALL), dashes=False),
}


LIMITS = {
    "dqn-ceiling": "dqn_ceiling.py",
    "small-limit": "small_limits.py",
}  # programs of this folder that do a part of the work and nothing else


@dataclass(frozen=True)
class Contender:
    name: str
    program: str  # a system of Polyplay's, or a key of PEERS or LIMITS
    fixed: str
    settings: tuple[str, ...] = ()
    like: str = ""

    @property
    def ours(self) -> bool:
        return not self.peer and not self.limit

    @property
    def peer(self) -> bool:
        return self.program in PEERS

    @property
    def limit(self) -> bool:
        return self.program in LIMITS


@dataclass(frozen=True)
class Contest:
    title: str
    least: float | None  # what ours / the best peer shall be; None: only reported
    contenders: tuple[Contender, ...]
    window: float = 25.0  # seconds
    share: float | None = None  # what ours / the highest limit shall be; None: the contest has no limits
    parts: float | None = (
        0.88  # of what its parts allow: ours need not be faster, whatever `least` says; None: no parts
    )
    game: str = "Pong"
    aims: dict[str, float] = field(default_factory=dict)  # what ours shall be times each of these peers


def both(name: str, system: str, fixed: str, *settings: str) -> tuple[Contender, Contender]:
    """Ours in whatever precision is fastest here, and in float32."""
    auto = Contender(name, system, f"{fixed} precision=auto", settings)
    return auto, Contender(f"{name}, float32", system, f"{fixed} precision=float32", like=name)


# --------------------------------------------------------------------------------------------- settings

A2C = ("lanes=64", "lanes=32", "lanes=64 groups=2", "lanes=32 groups=2", "lanes=32 replicas=1")
ACCEL = ("lanes=64 groups=2", "lanes=32 groups=2", "lanes=64 groups=1", "lanes=64 groups=2 sync=chunked")
PPO = ("lanes=16", "lanes=8", "lanes=32", "lanes=16 groups=2")
ACCEL_PPO = ("lanes=16 groups=2", "lanes=8 groups=2", "lanes=32 groups=2", "lanes=16 groups=2 sync=chunked")
APPO4 = (
    "actors=2 lanes=4 batch=8",
    "actors=2 lanes=8 batch=16",
    "actors=2 lanes=8 batch=8 slots=3",
    "actors=1 lanes=16 batch=16",
)
IMPALA = (
    "actors=2 lanes=32 batch=32",
    "actors=2 lanes=16 batch=16",
    "actors=2 lanes=32 batch=64",
    "actors=2 lanes=16 batch=32",
)
APPO1 = (*IMPALA[:3], "actors=1 lanes=32 batch=32")

SB3_A2C = ("n_envs=32 threads=2", "n_envs=64 threads=2", "n_envs=16 threads=2", "n_envs=16 threads=1")
SB3_PPO = ("n_envs=16 threads=2", "n_envs=8 threads=2", "n_envs=32 threads=2", "n_envs=8 threads=2 vec=dummy")
CLEANRL_A2C = (
    "n_envs=64 threads=2 env_threads=2",
    "n_envs=32 threads=2 env_threads=2",
    "n_envs=64 threads=2",
    "n_envs=64 threads=1 env_threads=2",
)
CLEANRL_PPO = (
    "n_envs=16 threads=2 env_threads=2",
    "n_envs=8 threads=2 env_threads=2",
    "n_envs=32 threads=2 env_threads=2",
    "n_envs=16 threads=2",
)
RLPYT_A2C = (
    "lanes=32 workers=2 threads=2",
    "lanes=64 workers=2 threads=2",
    "lanes=16 workers=2 threads=2",
    "lanes=32 workers=2 threads=1",
)
RLPYT_PPO = (
    "lanes=16 workers=2 threads=2",
    "lanes=8 workers=2 threads=2",
    "lanes=32 workers=2 threads=2",
    "lanes=16 workers=2 threads=1",
)
SF = (
    "num_workers=2 env_agents=32 rollout=32 batch_size=1024",
    "num_workers=2 env_agents=64 rollout=32 batch_size=2048",
    "num_workers=2 env_agents=16 rollout=32 batch_size=512",
    "num_workers=1 num_envs_per_worker=2 worker_num_splits=2 env_agents=16 rollout=32 batch_size=512",
    "num_workers=1 env_agents=32 rollout=32 batch_size=1024 serial_mode=True async_rl=False",
)
SF4 = (
    "num_workers=2 env_agents=16 rollout=128 batch_size=1024",
    "num_workers=2 env_agents=8 rollout=128 batch_size=512",
    "num_workers=1 num_envs_per_worker=2 worker_num_splits=2 env_agents=8 rollout=128 batch_size=512",
    "num_workers=1 env_agents=16 rollout=128 batch_size=512 serial_mode=True async_rl=False",
)
MONOBEAST = (
    "num_actors=4 batch_size=8 unroll_length=20 num_learner_threads=1",
    "num_actors=4 batch_size=8 unroll_length=80 num_learner_threads=1",
    "num_actors=8 batch_size=16 unroll_length=20 num_learner_threads=1",
    "num_actors=4 batch_size=8 unroll_length=20 num_learner_threads=2",
)
RLLIB_IMPALA = (
    "runners=2 envs=16 unroll=20",
    "runners=2 envs=8 unroll=20",
    "runners=2 envs=32 unroll=20",
    "runners=1 envs=32 unroll=20",
    "runners=2 envs=16 unroll=20 threads=2",
)
RLLIB_PPO = ("runners=2 envs=8", "runners=2 envs=4", "runners=2 envs=16", "runners=0 envs=16 threads=2")

# Of DQN: every setting keeps an update of 32 per 4 agent steps.
DQN = (
    "lanes=8 unroll=1",
    "lanes=1 unroll=4",
    "lanes=8 unroll=1 replicas=2",
    "lanes=16 unroll=1 replicas=2",
    "lanes=32 unroll=1 replicas=2",
)
ACCEL_DQN = (
    "lanes=8 unroll=1 groups=2 replicas=1",
    "lanes=16 unroll=1 groups=2 replicas=2",
    "lanes=32 unroll=1 groups=2 replicas=2",
    "lanes=16 unroll=1 groups=1 replicas=2",
)
CEILING = (
    "threads=2",
    "threads=1",
    "threads=1 processes=2",
    "threads=2 layout=channels_last",
    "threads=2 net=ours",
    "threads=1 processes=2 net=ours",
)
SB3_DQN = (
    "n_envs=8 threads=2",
    "n_envs=4 threads=2",
    "n_envs=1 threads=2 vec=dummy",
    "n_envs=16 threads=2",
    "n_envs=8 threads=1",
)
CLEANRL_DQN = (
    "n_envs=8 threads=2 env_threads=2",
    "n_envs=1 threads=2",
    "n_envs=4 threads=2 env_threads=2",
    "n_envs=16 threads=2 env_threads=2",
)
RLPYT_DQN = (
    "lanes=1 unroll=4 threads=2",
    "lanes=8 unroll=1 threads=2",
    "lanes=8 unroll=2 threads=2 sampler=cpu",
    "lanes=16 unroll=1 threads=2 sampler=served",
)
TIANSHOU_DQN = ("n_envs=8 threads=2", "n_envs=1 threads=2", "n_envs=4 threads=2", "n_envs=8 threads=2 vec=subproc")
TORCHRL_DQN = (
    "frames=64 threads=2",
    "frames=64 threads=2 storage=tensor",
    "frames=16 threads=2",
    "frames=256 threads=2",
    "frames=64 threads=1",
)
RLLIB_DQN = ("runners=0 fragment=4", "runners=0 fragment=16", "runners=1 fragment=16", "runners=0 fragment=4 threads=2")

# Of simple_spread, three agents a match: 8, 16, 32 or 64 matches on both sides.
SPREAD_PPO = ("lanes=48", "lanes=24", "lanes=96", "lanes=192", "lanes=96 groups=2")
SPREAD_APPO = (
    "actors=2 lanes=24 batch=48",
    "actors=2 lanes=48 batch=96",
    "actors=2 lanes=24 batch=24 slots=3",
    "actors=1 lanes=48 batch=48",
)
SPREAD_SB3 = (
    "n_envs=16 batch=1536 num_cpus=2 threads=2",
    "n_envs=16 batch=1536 num_cpus=1 threads=2",
    "n_envs=8 batch=768 num_cpus=2 threads=2",
    "n_envs=32 batch=3072 num_cpus=2 threads=2",
    "n_envs=64 batch=6144 num_cpus=2 threads=2",
    "n_envs=32 batch=3072 num_cpus=2 threads=1",
    "n_envs=8 batch=768 num_cpus=1 threads=1",
)
SPREAD_SF = (
    "num_workers=2 num_envs_per_worker=8 rollout=128 batch_size=1536",
    "num_workers=2 num_envs_per_worker=16 rollout=128 batch_size=3072",
    "num_workers=2 num_envs_per_worker=8 worker_num_splits=1 rollout=128 batch_size=1536",
    "num_workers=1 num_envs_per_worker=16 rollout=128 batch_size=1536",
    "num_workers=1 num_envs_per_worker=16 rollout=128 batch_size=1536 serial_mode=True async_rl=False",
)
SPREAD_RLLIB = (
    "runners=2 envs=8",
    "runners=2 envs=16",
    "runners=2 envs=4",
    "runners=2 envs=1",
    "runners=0 envs=16 threads=2",
)

ENDLESS = "steps=1000000000"  # their presets' runs end within a window
# Of small networks: the task fixes lanes, rollouts and minibatches; threads, processes and groups are chosen.
SMALL_ON_POLICY = (
    ("replicas=1", "replicas=1 groups=2", "replicas=2", "replicas=2 groups=2"),
    ("threads=1 vec=dummy", "threads=2 vec=dummy", "threads=1 vec=subproc", "threads=2 vec=subproc"),
    ("threads=1 vec=sync", "threads=2 vec=sync", "threads=1 vec=async", "threads=2 vec=async"),
    ("threads=1 vec=serial compile=1", "threads=1 vec=serial", "threads=2 vec=serial", "threads=1 vec=parallel"),
)
SMALL_DQN = (
    ("lanes=8 unroll=8", "lanes=8 unroll=16", "lanes=8 unroll=1", "lanes=8 unroll=32"),
    (
        "n_envs=8 threads=1 vec=dummy",
        "n_envs=8 threads=1 vec=dummy burst=8",
        "n_envs=1 threads=1 vec=dummy",
        "n_envs=8 threads=2 vec=dummy",
        "n_envs=8 threads=1 vec=subproc",
    ),
    (
        "n_envs=8 threads=1 vec=sync",
        "n_envs=8 threads=1 vec=sync burst=8",
        "n_envs=1 threads=1 vec=sync",
        "n_envs=8 threads=2 vec=sync",
        "n_envs=8 threads=1 vec=async",
    ),
    (
        "n_envs=8 threads=1 frames=64 compile=1",
        "n_envs=8 threads=1 frames=64",
        "n_envs=1 threads=1 frames=64",
        "n_envs=8 threads=2 frames=64",
        "n_envs=8 threads=1 frames=256",
    ),
)
SMALL_IMPALA = ("actors=2 lanes=8", "actors=1 lanes=16", "actors=2 lanes=16", "actors=1 lanes=8")
SMALL_SF = (
    "num_workers=2 num_envs_per_worker=8 async_rl=True",
    "num_workers=2 num_envs_per_worker=16 async_rl=True",
    "num_workers=2 num_envs_per_worker=8 worker_num_splits=1 async_rl=True",
    "num_workers=1 num_envs_per_worker=16 serial_mode=True async_rl=False",
)


# --------------------------------------------------------------------------------------------- contests


def a2c(ours: str, theirs: str) -> tuple[Contender, ...]:
    """Five steps per environment and update on both sides."""
    return (
        *both("a2c", "a2c", f"network={ours} unroll=5", *A2C),
        *both("accel", "accel", f"network={ours} unroll=5 algo=a2c atari=baselines", *ACCEL),
        Contender("sb3", "sb3", f"algo=a2c network={theirs}", SB3_A2C),
        Contender("cleanrl-like", "cleanrl-like", f"algo=a2c network={theirs}", CLEANRL_A2C),
        Contender("rlpyt", "rlpyt", f"algo=a2c network={theirs}", RLPYT_A2C),
    )


def ppo(ours: str, theirs: str) -> tuple[Contender, ...]:
    """128 steps per environment, four passes in four parts each on both sides."""
    spec = f"network={ours} unroll=128 epochs=4 minibatches=4"
    return (
        *both("ppo", "ppo", spec, *PPO),
        *both("accel, PPO", "accel", f"{spec} algo=ppo atari=baselines", *ACCEL_PPO),
        *both("appo, 4 epochs", "appo", spec, *APPO4),
        Contender("sb3", "sb3", f"algo=ppo network={theirs}", SB3_PPO),
        Contender("cleanrl-like", "cleanrl-like", f"algo=ppo network={theirs}", CLEANRL_PPO),
        Contender("rlpyt", "rlpyt", f"algo=ppo network={theirs}", RLPYT_PPO),
        Contender("sample-factory", "sample-factory", f"epochs=4 network={theirs}", SF4),
        Contender("rllib", "rllib", f"algo=ppo network={theirs}", RLLIB_PPO),
    )


def impala(ours: str, theirs: str) -> tuple[Contender, ...]:
    """Acting and learning at the same time, every step learnt from once."""
    return (
        *both("impala", "impala", f"network={ours} unroll=20", *IMPALA),
        *both("appo", "appo", f"network={ours} unroll=20 epochs=1 minibatches=1", *APPO1),
        Contender("sample-factory", "sample-factory", f"epochs=1 network={theirs}", SF),
        Contender("monobeast", "monobeast", f"network={theirs}", MONOBEAST),
        Contender("rllib", "rllib", f"algo=impala network={theirs}", RLLIB_IMPALA),
    )


def dqn() -> tuple[Contender, ...]:
    """An update of 32 for every 4 agent steps on both sides, ε 0.05, a replay of 100,000; the window is of training."""
    ours = "network=nature batch=32 ratio=8 capacity=100000 learning_starts=1000 epsilon=0.05"
    ours += " epsilon_decay_steps=1 target_update=2500"
    return (
        *both("dqn", "dqn", f"{ours} atari=baselines optimizer=adam", *DQN),
        *both("accel_dqn", "accel_dqn", f"{ours} atari=baselines algo=dqn", *ACCEL_DQN),
        Contender("ceiling", "dqn-ceiling", "precision=auto", CEILING),
        Contender("ceiling, float32", "dqn-ceiling", "precision=float32", CEILING),
        Contender("sb3", "sb3-dqn", "", SB3_DQN),
        Contender("cleanrl-like", "cleanrl-like-dqn", "", CLEANRL_DQN),
        Contender("rlpyt", "rlpyt-dqn", "", RLPYT_DQN),
        Contender("torchrl", "torchrl-dqn", "", TORCHRL_DQN),
        Contender("tianshou", "tianshou-dqn", "", TIANSHOU_DQN),
        Contender("rllib", "rllib-dqn", "", RLLIB_DQN),
    )


def spread() -> tuple[Contender, ...]:
    """One policy in all seats; 128 steps of every agent, four passes in four parts each on both sides; all float32."""
    theirs, spec = f"env={SPREAD} epochs=4", f"env={SPREAD} network=separate unroll=128 epochs=4 minibatches=4"
    return (
        Contender("ppo", "ppo", f"{spec} precision=float32", SPREAD_PPO),
        Contender("appo, 4 epochs", "appo", f"{spec} precision=float32", SPREAD_APPO),
        Contender("sb3, SuperSuit", "sb3-spread", f"{theirs} n_steps=128 learning_rate=0.00025", SPREAD_SB3),
        Contender("sample-factory", "sample-factory-spread", f"{theirs} minibatches=4", SPREAD_SF),
        Contender("rllib", "rllib-spread", f"{theirs} minibatches=4 unroll=128", SPREAD_RLLIB),
    )


def small(system: str, env: str, ours: str, theirs: str, *settings: tuple[str, ...]) -> tuple[Contender, ...]:
    """Small networks, float32 and the same work on both sides: ours compiled and eager, peers, and what environments
    alone and updates alone allow. settings: of ours, Stable-Baselines3, CleanRL-like, TorchRL.
    """
    work, play = f"env={env} {ours} precision=float32 {ENDLESS}", f"env={env} {theirs}"
    mine, sb3, cleanrl, torchrl = settings
    return (
        Contender(system, system, f"{work} compile=auto", mine),
        Contender(f"{system}, eager", system, f"{work} compile=off", like=system),
        Contender("sb3", "sb3-small", play, sb3),
        Contender("cleanrl-like", "cleanrl-like-small", f"{play} compile=0", cleanrl),
        Contender("cleanrl-like, compiled", "cleanrl-like-small", f"{play} compile=1", cleanrl),
        Contender("torchrl", "torchrl-small", play, torchrl),
        *alone(system, f"{work} compile=on", mine[0], env),
    )


def alone(system: str, work: str, setting: str, env: str) -> tuple[Contender, Contender]:
    """Limits of a system with a setting."""
    return (
        Contender("environments alone", "small-limit", f"part=environments env={env}"),
        Contender("updates alone", "small-limit", f"part=updates system={system} {work} {setting}"),
    )


def small_ppo(env: str, ours: str, theirs: str, several: bool = True) -> tuple[Contender, ...]:
    """Policy and value have two layers of 64 tanh units each. several: lanes, which can be divided."""
    settings = SMALL_ON_POLICY if several else [one[:2] for one in SMALL_ON_POLICY]
    mine = settings[0] if several else ("replicas=1",)
    return small("ppo", env, f"network=separate {ours}", f"algo=ppo {theirs}", mine, *settings[1:])


def cheetah(lanes: int, unroll: int) -> tuple[Contender, ...]:
    """2,048 steps a rollout, ten passes in minibatches of 64; observations and rewards are normalized on both sides."""
    ours = f"lanes={lanes} unroll={unroll} epochs=10 minibatches=32 inputs=normalize reward=scale"
    theirs = f"n_envs={lanes} n_steps={unroll} epochs=10 batch=64 normalize=1"
    return small_ppo("HalfCheetah-v5", ours, theirs, lanes > 1)


def small_dqn() -> tuple[Contender, ...]:
    """128-128 ReLU, an update of 128 for every 8 agent steps on both sides, one at a time or several in a row; the
    window is of training.
    """
    ours = "network=mlp(128,128,relu) batch=128 ratio=16 capacity=100000 learning_starts=1000 epsilon=0.05 n_step=1"
    ours += " epsilon_decay_steps=1 target_update=125 double=false optimizer=adam"
    return small("dqn", "CartPole-v1", ours, "algo=dqn batch=128 every=8", *SMALL_DQN)


def small_impala() -> tuple[Contender, ...]:
    """Acting and learning at the same time: 1,024 steps an update, learnt from once; networks and inputs as PPO's."""
    work = "network=separate unroll=64 inputs=normalize reward=scale precision=float32"
    work += f" {ENDLESS}"
    fixed = f"env=HalfCheetah-v5 batch=16 {work}"
    sf = "env=mujoco_halfcheetah rollout=64 batch_size=1024 num_epochs=1 num_batches_per_epoch=1"
    passes = "epochs=1 minibatches=1"
    return (
        Contender("impala", "impala", f"{fixed} compile=auto", SMALL_IMPALA),
        Contender("impala, eager", "impala", f"{fixed} compile=off", like="impala"),
        Contender("appo", "appo", f"{fixed} {passes} compile=auto", SMALL_IMPALA),
        Contender("appo, eager", "appo", f"{fixed} {passes} compile=off", like="appo"),
        Contender("sample-factory", "sample-factory-mujoco", sf, SMALL_SF),
        *alone("impala", f"{fixed} compile=on", SMALL_IMPALA[0], "HalfCheetah-v5"),
    )


def control(system: str, width: int) -> tuple[Contender, ...]:
    """Two layers, batch 256, one environment and one update a step on both sides; the window is of training."""
    ours = f"env=HalfCheetah-v5 preset=paper hidden={width},{width} batch=256 ratio=256 learning_starts=1000"
    work = f"{ours} capacity=100000 precision=float32 {ENDLESS}"
    play = f"env=HalfCheetah-v5 algo={system} n_envs=1 batch=256 hidden={width}"
    limit = f"part=products system={system} rows=256 width={width}"
    return (
        Contender(system, system, f"{work} compile=auto", ("lanes=1",)),
        Contender(f"{system}, eager", system, f"{work} compile=off", ("lanes=1",)),
        Contender("sb3", "sb3-small", play, ("threads=1", "threads=2")),
        Contender("sb3, two threads", "sb3-small", play, ("threads=2",)),
        Contender("cleanrl-like", "cleanrl-like-control", f"{play} compile=0", ("threads=1", "threads=2")),
        Contender("cleanrl-like, compiled", "cleanrl-like-control", f"{play} compile=1", ("threads=1", "threads=2")),
        Contender("products alone", "small-limit", limit),
    )


def control_contest(system: str, width: int, parameters: str, least: float, share: float | None) -> Contest:
    aims = {"sb3": least, "sb3, two threads": least, "cleanrl-like, compiled": 1.3}
    title = f"{system.upper()}, {width}-{width}, batch 256, one update a step ({parameters} parameters)"
    return Contest(title, None, control(system, width), 12.0, share, None, "HalfCheetah", aims)


AIMS = {"sb3": 3.0, "cleanrl-like, compiled": 1.5}  # of PPO on small networks
ONE_LANE = {**AIMS, "sb3": 2.0}
CONTESTS = {
    "a2c-nature": Contest("A2C, Nature CNN (1,687,719 parameters)", 2.0, a2c("nature", "nature")),
    "a2c-small": Contest("A2C, A3C's small network (677,943 parameters)", 2.0, a2c("a3c", "small")),
    "ppo-nature": Contest("PPO, Nature CNN (1,687,719 parameters)", 2.0, ppo("nature", "nature"), 30.0),
    "impala-nature": Contest("IMPALA and APPO, Nature CNN (1,687,719 parameters)", 2.0, impala("nature", "nature")),
    "impala-small": Contest("IMPALA and APPO, A3C's small network (677,943 parameters)", 1.7, impala("a3c", "small")),
    "impala-deep": Contest(
        "IMPALA and APPO, IMPALA's deep network (1,091,031 parameters)", None, impala("impala", "deep")
    ),
    "dqn-nature": Contest(
        "DQN, Nature CNN (1,687,206 parameters), batch 32, 4 steps an update", 2.0, dqn(), 30.0, 0.85, None
    ),
    "ppo-spread": Contest(
        "PPO, one policy in all seats (11,142 parameters)", 2.0, spread(), 60.0, parts=None, game="simple_spread"
    ),
    "ppo-cartpole": Contest(
        "PPO, 64-64, 8 × 32 steps, 20 passes (9,155 parameters)", None,
        small_ppo(
            "CartPole-v1",
            "lanes=8 unroll=32 epochs=20 minibatches=1 gamma=0.98 lam=0.8",
            "n_envs=8 n_steps=32 epochs=20 batch=256 gamma=0.98 lam=0.8",
        ),
        10.0, parts=None, game="CartPole", aims=AIMS,
    ),
    "ppo-cheetah": Contest(
        "PPO, 64-64, 8 × 256 steps, 320 updates (11,085 parameters)", None, cheetah(8, 256),
        10.0, parts=None, game="HalfCheetah", aims=AIMS,
    ),
    "ppo-cheetah-1": Contest(
        "PPO, 64-64, 1 × 2,048 steps, 320 updates (11,085 parameters)", None, cheetah(1, 2048),
        12.0, parts=None, game="HalfCheetah", aims=ONE_LANE,
    ),
    "a2c-cartpole": Contest(
        "A2C, 64-64, 8 × 5 steps (9,155 parameters)", 2.5,
        small(
            "a2c", "CartPole-v1", "network=separate lanes=8 unroll=5 optimizer=rmsprop_torch entropy_cost=0.0",
            "algo=a2c n_envs=8 n_steps=5", *SMALL_ON_POLICY,
        ),
        10.0, parts=None, game="CartPole",
    ),
    "dqn-cartpole": Contest(
        "DQN, 128-128, batch 128, 8 steps an update (17,410 parameters)", 3.0, small_dqn(), 10.0, parts=None,
        game="CartPole",
    ),
    "sac-cheetah": control_contest("sac", 256, "217,871", 1.5, 0.8),
    "td3-cheetah": control_contest("td3", 256, "216,328", 1.5, 0.8),
    "sac-cheetah-64": control_contest("sac", 64, "17,615", 3.0, None),
    "td3-cheetah-64": control_contest("td3", 64, "17,224", 3.0, None),
    "impala-cheetah": Contest(
        "IMPALA and APPO, 64-64, 1,024 steps an update (11,085 parameters)", 2.5, small_impala(), 10.0, parts=None,
        game="HalfCheetah",
    ),
}  # fmt: skip


# -------------------------------------------------------------------------------------- command lines


def flags(setting: str, dashes: bool = True) -> list[str]:
    """'n_envs=16 threads=2' → --n-envs 16 --threads 2"""
    pairs = [word.split("=", 1) for word in setting.split()]
    return [word for k, v in pairs for word in (f"--{k.replace('_', '-') if dashes else k}", v)]


def python(peer: Peer, peers: Path) -> Path:
    return peers / peer.venv / "bin/python"


def missing(who: Contender, peers: Path, systems: list[str]) -> str:
    """Why a contender cannot play; empty if it can."""
    if who.ours:
        return "" if who.program in systems else f"no system {who.program} in this version"
    if who.limit:
        return ""
    peer = PEERS[who.program]
    if not python(peer, peers).exists():
        return f"no {peer.venv}/bin/python in --peers"
    if peer.checkout and not (peers / "src" / peer.checkout).is_dir():
        return f"no checkout src/{peer.checkout} in --peers"
    return ""


def words(
    who: Contender, setting: str, place: Path, seed: int, peers: Path, report: float, minutes: float = 20.0
) -> tuple[list[str], Path]:
    """Its command line, and the file of its lines; it runs until it is ended, ours for so many minutes at most."""
    if who.ours:
        run = place / "run"
        own = [*flags(who.fixed), *flags(setting), "--seed", str(seed), "--report-every", f"{report:g}"]
        env = [] if "--env" in own else ["--env", PONG]
        train = [sys.executable, "-m", "polyplay", "train", who.program, *env, *own]
        return [*train, "--minutes", f"{minutes:g}", "--run", str(run)], run / "metrics.jsonl"
    log = place / "log.jsonl"
    if who.limit:
        more = [*flags(who.fixed), *flags(setting), "--seed", str(seed), "--log", str(log)]
        return [sys.executable, str(HERE / LIMITS[who.program]), *more], log
    peer = PEERS[who.program]
    own = [*flags(who.fixed, peer.dashes), *flags(setting, peer.dashes), "--seed", str(seed), "--log", str(log)]
    code = ["--path", str((peers / "src" / peer.checkout).resolve())] if peer.checkout else []
    return [str(python(peer, peers).absolute()), str(HERE / "peers" / peer.script), *code, *own], log
