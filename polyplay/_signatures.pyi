"""Written by docs/generate.py from the pages of systems; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from gymnasium import Env

from polyplay.api import Run as Run
from polyplay.api import check as check
from polyplay.api import evaluate as evaluate
from polyplay.api import export as export
from polyplay.api import load as load
from polyplay.api import resume as resume

class RunOptions(TypedDict, total=False):
    frames: int | None  # stop after this many frames of the environment (with frame skip 4: four per agent step)
    steps: int | None  # stop after this many agent steps (also --total-timesteps, -n); instead of --frames
    minutes: float | None  # stop after this many minutes of wall time
    until_return: float | None  # stop when the mean return of the last 100 full games reaches this
    seed: int  # seed of everything random
    run: str | Path | None  # directory of the run (none: runs/SYSTEM-ENV-SEED-TIME)
    resume: Literal['never', 'auto']  # auto: begin, or go on with what --run holds, for jobs that are queued again. What `polyplay resume` may change may differ from before, all else that is given has to agree
    preset: str  # named set of defaults of the system (auto: paper for Atari games, else the one tuned for such environments)
    serial: bool  # everything in one process and one thread: deterministic, and a debugger works
    on: Literal['process', 'thread']  # what workers are
    step_timeout: float  # seconds that a step or reset of an environment in a process may take; then the process is replaced
    max_restarts: int  # faults of its environments (an exception, a hang, a lost process) that a worker repairs within an hour and within 10,000 of its steps; one more ends the run
    report_every: float  # seconds between reports
    checkpoint_every: float  # seconds between checkpoints
    keep: int  # how many of the newest checkpoints to keep, besides the best
    quiet: bool  # print warnings, errors and the last line only
    tensorboard: bool  # write tensorboard/ in the run directory
    trace: bool  # write the losses of every single update to updates.jsonl
    metrics_style: Literal['polyplay', 'cleanrl', 'sb3']  # whose names TensorBoard and W&B show metrics under
    wandb: str | None  # project of Weights & Biases that metrics go to as well (none: not used)
    env_kwargs: Mapping[str, object] | tuple[str, ...]  # options of the environment, NAME=VALUE each: what its function takes, or for Atari games docs/guides/atari.md
    wrapper: tuple[str, ...]  # module:callable each: what is put around a Gymnasium environment, the first innermost
    hidden: tuple[int, ...]  # sizes of the network's hidden layers: 256 256 for an mlp, one size behind convolutions (none: its own)
    activation: Literal['tanh', 'relu'] | None  # what stands between an mlp's layers (none: its own, tanh)
    precision: Literal['float32', 'bfloat16', 'auto']  # what networks are computed in; weights stay float32. bfloat16 is faster in batches where the processor multiplies such numbers itself at full speed (auto: there only, measured at start)
    device: Literal['auto', 'cpu', 'cuda']  # where learners and replicas compute, and GA3C's predictors (auto: on CUDA where there is a GPU); a3c uses the CPU
    actors_on: Literal['cpu', 'device']  # where actors of impala and appo compute: on the CPU, a core each, or where learners do (large networks, with few actors of many lanes)
    cores: int | None  # use so many of the machine's cores (none: all that this process may use); what a system leaves open, such as its replicas and environments' threads, is divided among them
    eval_every: int | None  # play games during training every so many frames, with the weights of then (none: not); their scores go to evaluations.jsonl, the best weights to checkpoints/best-…
    eval_episodes: int  # how many games these are
    eval_protocol: Literal['run', 'null-op', 'null-op-30min', 'null-op-1-30', 'sticky']  # how these games start and end, as `polyplay evaluate --protocol`
    eval_epsilon: float | None  # the chance of a uniform random action in them (none: the system's own for evaluation, mostly 0)
    reuse: bool  # learn from the outputs that were computed while acting, where the weights are the same (a2c, accel with a2c, of convolutional networks); --no-reuse computes them again
    chaos: str | None  # harm the run's own workers to see it recover: kill=ROLE:SECONDS, hang=ROLE:SECONDS:FOR, slow=ROLE:FACTOR, several with commas between; ROLE is a role's name, or any (docs/guides/fault_injection.md)
    dry_run: bool  # show the plan, measure the speed for two seconds, write nothing

class A2C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    lanes: int  # environments stepped in one batch, over all replicas
    replicas: int  # copies of the loop, each with its share of lanes and a core or GPU (0: one for each)
    groups: int  # of a replica's lanes, served in turn: with 2 one half steps while the policy serves the other
    env_workers: int  # threads or processes of a replica that step its environments (0: chosen)
    unroll: int  # agent steps per lane between two updates (nsteps)
    gamma: float  # discount
    lam: float  # λ of generalised advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    core_size: int  # width of the recurrent core
    learning_rate: float  # at the start; see --anneal
    optimizer: str  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimiser's ε
    alpha: float  # RMSProp's decay
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'constant']  # how the learning rate falls over the run
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a batch
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    reward_scale: float  # multiplies rewards before that
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    life_loss: Literal['auto', 'ignore', 'terminate']  # does a lost life end an episode (auto: as --atari)
    budget: int  # frames to train for when neither --frames nor --steps is given (80M steps)

class A3C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    workers: int  # each with one environment and one core (0: as many as cores; the paper had 16)
    unroll: int  # agent steps between two updates of a worker (t_max)
    gamma: float  # discount
    lam: float  # λ of generalised advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    core_size: int  # width of the recurrent core
    init: Literal['auto', 'orthogonal', 'torch']  # initial weights (auto: as the network was published)
    learning_rate: float  # at the start; see --anneal
    optimizer: str  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; all share its statistics
    optimizer_eps: float  # the optimiser's ε
    alpha: float  # RMSProp's decay
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off; muupan/async-rl's
    anneal: Literal['linear', 'constant']  # how the learning rate falls over all workers' steps
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss (R − V)²; muupan/async-rl: 0.25
    reduction: Literal['sum', 'mean']  # over a rollout: with sum (the paper) the step grows with it
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a rollout
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    reward_scale: float  # multiplies rewards before that
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    life_loss: Literal['auto', 'ignore', 'terminate']  # does a lost life end an episode (auto: as --atari)
    budget: int  # frames to train for when neither --frames nor --steps is given ("1 day")

class Accel(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    algo: Literal['a2c', 'ppo']  # the loss, and one pass over a rollout or several
    sync: Literal['allreduce', 'chunked']  # how replicas learn together: in step, or each at its own pace
    lanes: int  # environments over all replicas
    replicas: int  # copies of the loop, each with its share of lanes and a core or GPU (0: one for each)
    groups: int  # of a replica's lanes, served in turn
    unroll: int  # agent steps per lane in a rollout (horizon)
    epochs: int  # ppo: passes over a rollout
    minibatches: int  # ppo: parts of a pass, an update each; with a core parts of the lanes
    clip_range: float  # ppo: ε; falls with the learning rate
    gamma: float  # discount
    lam: float  # λ of generalised advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # accel, accel_large, auto, nature, a3c, …, mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    learning_rate: float  # at the start; see --anneal
    optimizer: str  # rmsprop_a3c is Lasagne's; rmsprop_tf, rmsprop_torch or adam
    optimizer_eps: float  # the optimiser's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'constant']  # how the learning rate falls over the run
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss (R − V)²
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a batch
    reward: Literal['clip', 'sign', 'none']  # for the learner
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    budget: int  # frames to train for when neither --frames nor --steps is given (50M steps)

class AccelDqn(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    algo: Literal['dqn', 'catdqn', 'rainbow']  # rainbow: ε-Rainbow, without noisy layers
    sync: Literal['allreduce', 'chunked']  # how replicas learn together: in step, or each at its own pace
    lanes: int  # environments over all replicas
    replicas: int  # copies of the loop, each with its share of everything, and one core (0: as many as cores)
    groups: int  # of a replica's lanes, served in turn
    unroll: int  # agent steps per lane between updates (horizon)
    ratio: float  # draws per agent step (training intensity)
    batch: int  # transitions in one update, over all replicas
    capacity: int  # transitions kept, over all replicas
    start: int  # agent steps before the first update
    target: int  # updates between two copies to the target network: 10,000 agent steps at batch 2,048
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    network: str | Callable[..., Any]  # accel, accel_large, auto, nature, a3c, …, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    dueling: bool  # value and advantages in streams of their own; rainbow: always
    bound: float  # the largest return that a distribution knows; the least is minus that
    epsilon: float  # how often to play at random, in the end
    epsilon_over: int  # agent steps over which it falls to that, from 1
    learning_rate: float  # constant
    optimizer: str  # adam, or rmsprop_a3c, which is Lasagne's, with decay 0.95
    optimizer_eps: float  # the optimiser's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    budget: int  # frames to train for when neither --frames nor --steps is given

class Apex(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # environments of one actor
    memories: int  # workers that remember, each what its share of the actors does
    learners: int  # copies of the learner, whose gradients are averaged
    unroll: int  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    reward: Literal['clip', 'sign', 'none']  # for the learner
    network: str | Callable[..., Any]  # auto, nature, a3c, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    batch: int  # transitions in one update, over all learners
    ratio: float  # draws per agent step; 0: neither side waits for the other
    capacity: int  # transitions kept, over all memories; for a while an eighth more
    trim: int  # updates between two times that what is beyond the capacity goes, the oldest first
    start: int  # agent steps before the first update
    target: int  # updates between two copies of the network to the target network
    prefetch: int  # batches that each memory keeps ready for each learner
    priority: float  # exponent α of priorities by error
    epsilon: float  # of the lane that plays at random most; a ladder down to its 8th power
    learning_rate: float  # constant
    optimizer: str  # rmsprop_dqn (centred, ε in the root), adam, …: docs/reference/optimizers.md
    optimizer_eps: float  # the optimiser's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    budget: int  # frames to train for when neither --frames nor --steps is given

class ApexDpg(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: a Gymnasium id, module:callable, or toy:NAME; its actions are a bounded Box
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # environments of one actor
    memories: int  # workers that remember, each what its share of the actors does
    learners: int  # copies of the learner, whose gradients are averaged
    unroll: int  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    reward_scale: float  # multiplies rewards: the critic learns soonest where values are of a few units
    network: str | Callable[..., Any]  # auto, mlp, or module:callable: first layers of both actor and critic
    width: int  # of the critic's first layer; its second has ¾ of that, the actor's two ¾ and ½
    batch: int  # transitions in one update, over all learners
    ratio: float  # draws per agent step; 0: neither side waits for the other
    capacity: int  # transitions kept, over all memories; for a while an eighth more
    trim: int  # updates between two times that what is beyond the capacity goes, the oldest first
    start: int  # agent steps before the first update
    target: int  # updates between two copies of the network to the target network
    prefetch: int  # batches that each memory keeps ready for each learner
    priority: float  # exponent α of priorities by error
    noise: float  # deviation of the normal noise on each number of an action, in half ranges
    slope: float  # bound of each number of dQ/da, per half range; 0 is off
    rein: float  # how hard the actor is pulled back from the ends of its range (DPGLoss), 0 is off
    learning_rate: float  # constant, of actor and critic
    optimizer: str  # adam, or another of docs/reference/optimizers.md
    budget: int  # frames to train for when neither --frames nor --steps is given

class Appo(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights (0: by measurement, two on two cores)
    lanes: int  # environments of one actor; a slot of the stream is one rollout of all of them
    learners: int  # synchronous learners; their gradients are averaged
    slots: int  # rollouts per actor in flight: one it fills, the others wait for a learner or are being learnt
    lag: int  # rounds that acting may run ahead of learning: 0 is synchronous, 1 overlaps, -1 runs free
    unroll: int  # agent steps per lane in a rollout
    batch: int  # trajectories that passes are made over, over all learners
    epochs: int  # passes over them
    minibatches: int  # parts of a pass, whole trajectories, an update each
    clip_range: float  # ε: how far π/μ may go
    gamma: float  # discount
    lam: float  # λ in V-trace's traces
    network: str | Callable[..., Any]  # auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    learning_rate: float  # at the start; see --anneal
    optimizer_eps: float  # Adam's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'constant']  # how the learning rate falls over the run
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss (v − V)²
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a minibatch
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    budget: int  # frames to train for when neither --frames nor --steps is given

class Dqn(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    lanes: int  # environments over all replicas
    replicas: int  # copies of the loop, each with its share of lanes, memory and batch, and one core
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    reward: Literal['clip', 'sign', 'none']  # for the learner
    network: str | Callable[..., Any]  # auto, nature, dqn (as released), a3c, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    double: bool  # the network chooses the next action, the target network values it
    head: Literal['plain', 'shared', 'dueling']  # shared: one bias for all actions; dueling: Wang et al. 2016
    batch: int  # transitions in one update, over all replicas
    ratio: float  # draws per agent step: 32 every 4 steps
    capacity: int  # transitions kept, over all replicas
    start: int  # agent steps before the first update
    target: int  # updates between two copies of the network to the target network
    priority: float  # exponent α of priorities by error, 0 draws uniformly
    weighting: float  # exponent β of importance weights at the start; 1 at the end
    epsilon: float  # how often to play at random, in the end
    epsilon_over: int  # agent steps over which it falls to that, from 1
    learning_rate: float  # constant
    optimizer: str  # rmsprop_dqn (centred, ε in the root), adam, …: docs/reference/optimizers.md
    optimizer_eps: float  # the optimiser's ε
    reduction: Literal['sum', 'mean']  # over a batch, of errors clipped to ±1
    budget: int  # frames to train for when neither --frames nor --steps is given

class Ga3C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    agents: int  # at first; each a process with one environment
    predictors: int  # at first; threads that serve whoever waits for an action
    trainers: int  # at first; threads that learn
    schedule: Literal['off', 'climb', 'annealing', 'released']  # the rule that changes these three
    predict_batch: int  # agents served at once, at most
    min_batch: int  # transitions of an update, at least (0: one chunk)
    queue: int  # chunks that may wait for a trainer
    unroll: int  # transitions of a chunk (t_max); fewer where its episode ends
    gamma: float  # discount
    network: str | Callable[..., Any]  # ga3c, ga3c_large4 … ga3c_large1, a3c, nature, impala, mlp, separate, auto, module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    learning_rate: float  # at the start; see --anneal
    optimizer: str  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; trainers share its statistics
    optimizer_eps: float  # the optimiser's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'constant']  # how the learning rate falls over the run
    entropy_cost: float  # weight of the entropy bonus
    correction: Literal['none', 'plus', 'max', 'vtrace']  # of lag: log(π+1e-6), log(max(π, 1e-6)), V-trace
    init: Literal['auto', 'orthogonal', 'torch']  # initial weights (auto: as the network was published)
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a batch
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    reduction: Literal['sum', 'mean']  # over a batch: with sum (as published) the step grows with it
    inputs: Literal['raw', 'signed', 'centre', 'normalize']  # of images: x/255, x/128 − 1, or less their mean
    budget: int  # frames to train for when neither --frames nor --steps is given

class Gorila(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    actors: int  # free mode: workers that only act; 0: bundled, each learner has an actor and a memory
    memories: int  # free mode: workers that remember, each its share of actors; 1: global, one each: local
    learners: int  # bundles, or free: workers that only learn (0: as many as cores or GPUs; the paper had 100)
    shards: int  # parts of the parameter server, a process each; the paper had 31 machines
    lanes: int  # environments of each actor
    unroll: int  # agent steps per lane between two pulls of the weights
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    reward: Literal['clip', 'sign', 'none']  # for the learner
    network: str | Callable[..., Any]  # auto, nature, a3c, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    batch: int  # transitions of a gradient, whose mean it is; as in DQN
    ratio: float  # draws per agent step: a gradient each, as listed; DQN has 8 (0: free mode, no bound)
    capacity: int  # transitions kept in each memory
    start: int  # agent steps in each memory before it is drawn from; as in DQN
    target: int  # updates of the server between two pulls of the target network
    epsilon: float  # how often to play at random, in the end
    epsilon_over: int  # agent steps of all actors over which it falls to that, from 1
    learning_rate: float  # constant; not published
    optimizer: str  # adagrad, rmsprop_dqn, adam, or another of docs/reference/optimizers.md
    optimizer_eps: float  # the optimiser's ε; not published
    stale: int  # updates of a shard after which a gradient is too old for it (0: 10 a learner); not published
    outlier: float  # deviations above the mean from which on a loss is left out, 0 is off; not published
    budget: int  # frames to train for when neither --frames nor --steps is given

class Impala(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights (0: by measurement, two on two cores)
    lanes: int  # environments of one actor; a slot of the stream is one rollout of all of them
    learners: int  # synchronous learners; their gradients are averaged
    slots: int  # rollouts per actor in flight: one it fills, the others wait for a learner or are being learnt
    lag: int  # rounds that acting may run ahead of learning: 0 is synchronous, 1 overlaps, -1 runs free
    unroll: int  # agent steps per lane in a rollout
    batch: int  # trajectories in one update, over all learners
    gamma: float  # discount
    rho: float  # V-trace's bound of importance weights, for the value's fixed point and the policy gradient
    network: str | Callable[..., Any]  # auto, nature, a3c, ga3c, impala (the deep net), mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    init: Literal['auto', 'orthogonal', 'torch', 'sonnet']  # initial weights; auto: as published
    learning_rate: float  # at the start; see --anneal
    optimizer: str  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimiser's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'constant']  # how the learning rate falls over the run
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    reduction: Literal['sum', 'mean']  # over a batch: with sum (the paper) the step grows with it
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a batch
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    budget: int  # frames to train for when neither --frames nor --steps is given

class Ppo(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    lanes: int  # environments stepped in one batch, over all replicas
    replicas: int  # copies of the loop, each with its share of lanes and a core or GPU (0: one for each)
    groups: int  # of a replica's lanes, served in turn: with 2 one half steps while the policy serves the other
    unroll: int  # agent steps per lane in a rollout
    epochs: int  # passes over a rollout
    minibatches: int  # parts of a pass, an update each; with a core parts of the lanes
    clip_range: float  # ε: how far π/μ may go
    value_clip: bool  # the value may go as far from what was said while acting, as baselines' ppo2
    target_kl: float  # approximate KL divergence that ends the passes over a rollout, 0 is off
    gamma: float  # discount
    lam: float  # λ of generalised advantage estimation
    network: str | Callable[..., Any]  # auto, nature, rlpyt, a3c, ga3c, impala, mlp, separate, or module:callable
    core: Literal['none', 'lstm', 'gru']  # recurrent core
    core_size: int  # width of the recurrent core
    learning_rate: float  # at the start; see --anneal
    optimizer_eps: float  # Adam's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    anneal: Literal['linear', 'rate', 'constant']  # what falls over the run: rate and clip range, or rate
    entropy_cost: float  # weight of the entropy bonus
    value_cost: float  # weight of the value loss (R − V)²
    normalize_advantage: bool  # advantages to mean 0 and deviation 1 over a minibatch
    reward: Literal['clip', 'sign', 'none', 'scale']  # for the learner; scale: by the size of returns
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    budget: int  # frames to train for when neither --frames nor --steps is given (10M steps)

class R2D2(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # environments of one actor
    unroll: int  # agent steps per lane in a rollout, and between the starts of two sequences
    pull: int  # agent steps per lane between two pulls of the weights, in whole rollouts
    sequence: int  # rows of a sequence that are learnt from
    burn_in: int  # rows before them that only bring the recurrent state up to date
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    network: str | Callable[..., Any]  # auto, nature, a3c, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    core_size: int  # width of the LSTM, which also hears the previous action and reward
    batch: int  # sequences in one update
    ratio: float  # rows drawn to be learnt from per agent step: 25.6K of 66.6K a second in the paper
    capacity: int  # agent steps kept
    start: int  # agent steps before the first update
    target: int  # updates between two copies of the network to the target network
    priority: float  # exponent α of a sequence's priority, η·max + (1 − η)·mean of its errors, η = 0.9
    weighting: float  # exponent β of importance weights, constant
    epsilon: float  # of the lane that plays at random most; a ladder down to its 8th power
    learning_rate: float  # constant
    optimizer_eps: float  # Adam's ε
    max_grad_norm: float  # bound of the gradient's global norm, 0 is off
    rescale: float  # ε of value rescaling h, 0 is off
    budget: int  # frames to train for when neither --frames nor --steps is given

class Rainbow(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    atari: str  # how Atari games are played and shown: a preset of docs/guides/atari.md
    lanes: int  # environments over all replicas
    replicas: int  # copies of the loop, each with its share of lanes, memory and batch, and one core
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    n_step: int  # rewards summed before the value of the state after them counts
    reward: Literal['clip', 'sign', 'none']  # for the learner
    network: str | Callable[..., Any]  # auto, nature, dopamine, a3c, mlp, or module:callable
    inputs: Literal['raw', 'centre', 'normalize']  # centre: images minus their mean; normalize: real numbers
    code: Literal['paper', 'zoo', 'dopamine']  # whose details: see CODES; dopamine's is not double
    bound: float  # the largest return that it knows; the least is minus that
    sigma: float  # noisy layers' first σ; 0: none, and ε-greedy instead
    batch: int  # transitions in one update, over all replicas
    ratio: float  # draws per agent step: 32 every 4 steps
    capacity: int  # transitions kept, over all replicas
    start: int  # agent steps before the first update
    target: int  # updates between two copies to the target network: 32,000 frames
    priority: float  # exponent α of priorities
    weighting: float  # exponent β of importance weights at the start
    epsilon: float  # without noisy layers: how often to play at random, in the end
    epsilon_over: int  # agent steps over which it falls to that, from 1
    learning_rate: float  # constant
    optimizer_eps: float  # Adam's ε
    max_grad_norm: float  # bound of the gradient's global norm (dqn_zoo), 0 is off
    budget: int  # frames to train for when neither --frames nor --steps is given

@overload
def train(
    system: Literal["a2c"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[A2C]
) -> Run: ...
@overload
def train(
    system: Literal["a3c"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[A3C]
) -> Run: ...
@overload
def train(
    system: Literal["accel"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Accel]
) -> Run: ...
@overload
def train(
    system: Literal["accel_dqn"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[AccelDqn]
) -> Run: ...
@overload
def train(
    system: Literal["apex"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Apex]
) -> Run: ...
@overload
def train(
    system: Literal["apex_dpg"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[ApexDpg]
) -> Run: ...
@overload
def train(
    system: Literal["appo"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Appo]
) -> Run: ...
@overload
def train(
    system: Literal["dqn"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Dqn]
) -> Run: ...
@overload
def train(
    system: Literal["ga3c"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Ga3C]
) -> Run: ...
@overload
def train(
    system: Literal["gorila"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Gorila]
) -> Run: ...
@overload
def train(
    system: Literal["impala"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Impala]
) -> Run: ...
@overload
def train(
    system: Literal["ppo"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Ppo]
) -> Run: ...
@overload
def train(
    system: Literal["r2d2"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[R2D2]
) -> Run: ...
@overload
def train(
    system: Literal["rainbow"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Rainbow]
) -> Run: ...
@overload
def train(
    system: str | None = None, config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Any
) -> Run: ...