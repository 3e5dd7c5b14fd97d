"""Written by docs/generate.py from the pages of systems; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from gymnasium import Env

from polyplay.api import Callback, Run, check, evaluate, export, load, resume
from polyplay.systems import Page

__all__ = ["Callback", "Run", "check", "evaluate", "export", "load", "resume", "train"]

class RunOptions(TypedDict, total=False):
    steps: int | None  # stop after this many agent steps, at the end of a rollout (also --total-timesteps, -n); instead of --frames
    minutes: float | None  # stop after this many minutes of wall time
    until_return: float | None  # stop at this mean return of the last 100 full games; with several tasks, at this mean score over tasks
    seed: int  # seed of all random numbers
    run: str | Path | None  # directory of the run (none: runs/SYSTEM-ENV-SEED-TIME)
    resume: Literal['never', 'auto']  # auto: resume the run in --run, or start a run if none exists there; for jobs that a cluster restarts. Only options that `polyplay resume` takes may differ from the existing run
    preset: str  # named set of defaults of the system (auto: chosen by --env; paper for Atari games, else a tuned set)
    change: tuple[str, ...]  # schedule hyperparameters: NAME=VALUE@AT,VALUE@AT. Each value holds from AT, a fraction of the run (0, 0.5) or agent steps (10M), until the next one. The option may be repeated (docs/guides/runs_and_plots.md)
    loss: str | Callable[..., Any] | None  # your own loss, as module:callable: a function that takes the system's Loss and returns a Loss (docs/guides/own_loss.md; none: the system's loss)
    serial: bool  # run all workers in one process and one thread: deterministic, and a debugger works
    on: Literal['process', 'thread']  # run workers as processes or as threads
    step_timeout: float  # seconds that a step or reset of an environment may take before its process is replaced
    max_restarts: int  # number of environment faults (exception, hang, lost process) that a worker repairs within an hour and within 10,000 of its steps; one more fault ends the run
    report_every: float  # seconds between reports
    checkpoint_every: float  # seconds between checkpoints
    keep: int  # number of newest checkpoints to keep; the best one is always kept
    quiet: bool  # print only warnings, errors and the last line
    verbose: bool  # print every value with its source, and the whole plan, at the start
    tensorboard: bool  # write tensorboard/ in the run directory
    trace: bool  # write the losses of every update to updates.jsonl
    log_episodes: bool  # write every full game to episodes.jsonl
    metrics_style: Literal['polyplay', 'cleanrl', 'sb3']  # names of metrics in TensorBoard and W&B: Polyplay's, CleanRL's or Stable-Baselines3's
    wandb: str | None  # Weights & Biases project to which metrics are also sent (none: not sent)
    env_kwargs: Mapping[str, object] | tuple[str, ...]  # keyword arguments of the environment, as NAME=VALUE; for Atari games see docs/guides/atari.md
    env_options: Mapping[str, object] | Callable[[float], Mapping[str, object]] | tuple[str, ...]  # options of every reset, as NAME=VALUE; or a curriculum, as module:callable: a function that takes the run's progress (0 to 1; in evaluations 1) and returns the options of a reset
    wrapper: tuple[str, ...]  # wrappers of a Gymnasium environment, each as module:callable; the first is innermost
    images: str  # names of observation parts that are images: LEAF,LEAF or none (auto: uint8 parts of at least 24 pixels a side); a single part is called obs
    stack: int | None  # frames stacked in every image, newest last (none: the environment's own number)
    gray: bool  # convert images to gray
    size: str | None  # resize images by area averaging, to SIDE or HEIGHTxWIDTH pixels (none: do not resize)
    frame_skip: int | None  # number of frames per action; their rewards are added (none: the environment's own number)
    task_input: Literal['none', 'onehot', 'embedding']  # if --env lists several tasks, how the network gets the task: as a one-hot vector or a learned embedding
    hidden: tuple[int, ...]  # sizes of the network's hidden layers, such as 256 256 (only one after convolutions; none: the network's own)
    activation: Literal['tanh', 'relu'] | None  # activation function of an mlp's hidden layers (none: tanh)
    precision: Literal['float32', 'bfloat16', 'auto']  # number type of the networks' computations; weights stay float32. bfloat16 is faster on processors with fast bfloat16 instructions (auto: bfloat16 if a measurement at the start finds it faster)
    device: Literal['auto', 'cpu', 'cuda']  # device of learners, replicas and GA3C's predictors (auto: CUDA if there is a GPU); a3c always uses the CPU
    actors_on: Literal['cpu', 'device']  # device of the actors of impala and appo: the CPU, one core per actor, or the learners' device (for large networks, and few actors with many lanes)
    cores: int | None  # number of cores to use (none: all that this process may use); numbers of workers and threads that you do not set are chosen to fit
    eval_every: int | None  # frames between evaluations of the current weights (none: no evaluations); scores go to evaluations.jsonl, the best weights to checkpoints/best-…
    eval_episodes: int  # games per evaluation
    eval_protocol: Literal['run', 'null-op', 'null-op-30min', 'null-op-1-30', 'sticky']  # protocol of evaluations during training: how games start and end, as in `polyplay evaluate --protocol`
    eval_epsilon: float | None  # probability of a uniform random action in evaluations during training (none: the system's value, mostly 0)
    reuse: bool  # reuse layer outputs computed while acting if the weights are unchanged (a2c, accel with a2c, convolutional networks); --no-reuse recomputes them
    compile: Literal['auto', 'on', 'off']  # compile updates of small networks ahead of time, and act without torch (on a GPU: CUDA graphs, for all networks); auto: compile in the background, but not with --serial or --trace; on: wait for the compiler at the start
    hosts: str | None  # other machines to run actors on: ray or ray:HOST:PORT, those of a Ray cluster; local:N, N Ray nodes that the run starts on this machine (none: this machine alone; docs/guides/many_machines.md)
    place: str | None  # assign workers to machines: ROLE=WHERE or ROLE[A-B]=WHERE, separated by commas; WHERE is here, others, even, a machine's name or address, or res:NAME, a Ray resource (none: actors on other machines, replicas evenly)
    ship: str | None  # folder with the modules of your environment or network: other machines get a copy and import from it (none: the modules must be installed there)
    host_timeout: float  # seconds of silence before a machine counts as lost
    host_wait: float  # seconds to wait for a machine that replaces a lost one; then the run ends
    dry_run: bool  # print the plan and measure the speed for two seconds; write nothing

class A2C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    value: Literal['plain', 'popart', 'heads']  # outputs of the value head; heads: one per task of --env, popart: one per task, normalized by running statistics
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: int  # groups of a replica's lanes; with 2, one steps while the policy acts for the other
    env_workers: int  # threads or processes of a replica that step its environments (0: chosen automatically)
    unroll: int  # agent steps per lane between updates (nsteps)
    gamma: float  # discount
    lam: float  # λ of generalized advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # network: auto (nature or mlp), nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core_size: int  # width of the recurrent core
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    decay: float  # RMSProp's decay
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: float  # weight of the value loss (R − V)²
    entropy_cost: float  # weight of the entropy bonus
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    reward_scale: float  # factor of rewards, before --reward applies
    life_loss: Literal['auto', 'ignore', 'terminate']  # whether a lost life ends an episode (auto: as --atari)
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given (80M steps)

class A3C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    workers: int  # workers, each with one environment and one core (0: one per core; the paper had 16)
    unroll: int  # agent steps between updates of a worker (t_max)
    gamma: float  # discount
    lam: float  # λ of generalized advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # network: auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core_size: int  # width of the recurrent core
    previous: bool  # the core, or the head, also takes the previous action and reward
    auxiliary: str  # UNREAL's tasks on recent rows: pixel, reward, value, with or without =COST; or none
    init: Literal['auto', 'orthogonal', 'torch']  # initial weights (auto: as the network was published)
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; workers share the statistics
    optimizer_eps: float  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    decay: float  # RMSProp's decay
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off; 40 is muupan/async-rl's
    anneal: Literal['linear', 'constant']  # schedule; linear: the rate falls to 0 over all workers' steps
    value_cost: float  # weight of the value loss (R − V)²; muupan/async-rl: 0.25
    entropy_cost: float  # weight of the entropy bonus
    reduction: Literal['sum', 'mean']  # how the loss is reduced over a rollout; sum is the paper's
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a rollout
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    reward_scale: float  # factor of rewards, before --reward applies
    life_loss: Literal['auto', 'ignore', 'terminate']  # whether a lost life ends an episode (auto: as --atari)
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given ("1 day")

class Accel(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal['a2c', 'ppo']  # loss; a2c: one pass over a rollout, ppo: several
    sync: Literal['allreduce', 'chunked']  # how replicas learn: in step, or asynchronously (chunked)
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: int  # groups of a replica's lanes, stepped in turn
    unroll: int  # agent steps per lane in a rollout (horizon)
    epochs: int  # passes over a rollout, with ppo
    minibatches: int  # minibatches per pass, with ppo; with a recurrent core each has whole lanes
    clip_range: float  # ε of ppo's clipped ratio π/μ; falls with the learning rate
    gamma: float  # discount
    lam: float  # λ of generalized advantage estimation; 1 is the n-step return
    network: str | Callable[..., Any]  # network: accel (16, 32 filters), accel_large (DQN's), auto, nature, …, or module:callable
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_a3c (Lasagne's), rmsprop_tf, rmsprop_torch or adam
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: float  # weight of the value loss (R − V)²
    entropy_cost: float  # weight of the entropy bonus
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal['clip', 'sign', 'none']  # how rewards are transformed; sign: −1, 0 or 1
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given (50M steps)

class AccelDqn(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal['dqn', 'catdqn', 'rainbow']  # loss; rainbow: ε-Rainbow, without noisy layers
    sync: Literal['allreduce', 'chunked']  # how replicas learn: in step, or asynchronously (chunked)
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop, each with a share of everything (0: one; with images one per core)
    groups: int  # groups of a replica's lanes, stepped in turn
    unroll: int  # agent steps per lane between updates (horizon)
    ratio: float  # transitions drawn per agent step (training intensity)
    batch: int  # transitions in one update, over all replicas
    capacity: int  # transitions in the replays of all replicas together
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network: 10,000 agent steps at batch 2,048
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping (--preset rainbow sets 3)
    network: str | Callable[..., Any]  # network: accel, accel_large (DQN's), auto, nature, …, or module:callable
    dueling: bool  # separate streams for value and advantages; rainbow: always
    v_max: float  # largest return of the value distribution; the smallest is -v_max
    epsilon: float  # probability of a random action at the end of the schedule
    epsilon_decay_steps: int  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: adam, or rmsprop_a3c (Lasagne's, with decay 0.95)
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class AlphagoZero(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # a board game: game:go+size=9+komi=7, game:othello+size=6, game:connect_four, …
    players: int  # workers that play, each with its own copy of the weights
    games: int  # games that a player searches at once, with joint batches for the network
    simulations: int  # simulations per search; one search per move
    leaves: int  # leaves of a search evaluated in one batch; until then each counts as a lost visit
    fast_simulations: int  # simulations of three in four searches, which are not learned from; 0: all are full
    exploration: Literal['alphago_zero', 'alphazero']  # exploration term: c·P·√N/(1 + n); alphazero: c grows with log N
    c: float  # weight of the exploration term; AlphaZero's: the paper gives none
    fpu: Literal['zero', 'parent']  # value of an untried move
    root: Literal['puct', 'gumbel', 'gumbel_mctx']  # rule at the root; gumbel: Danihelka et al. 2022; gumbel_mctx: with mctx's q
    gumbel_actions: int  # moves that a Gumbel root visits at first
    noise: float  # share of Dirichlet noise in the root's priors
    noise_alpha: float  # α of Dirichlet noise; about 10 ÷ the number of legal moves
    temperature_plies: int  # first plies, with drawn moves; afterwards the best is played
    symmetries: Literal['all', 'learning', 'none']  # random board symmetries; learning: not in searches
    evaluator: Literal['torch', 'openvino', 'auto']  # library that runs self-play's network; auto: fastest
    keep_tree: bool  # keep the part of the tree below the move that was played
    resign: str  # resign below this value, as -0.9; auto: learned from the tenth of games played out; off
    blocks: int  # residual blocks of the network
    filters: int  # filters of each convolution
    learners: int  # learners, whose gradients are averaged; batch norm is over each learner's share
    batch: int  # positions in one update, over all learners
    ratio: float  # how often each position is learned from, on average
    capacity: int  # positions kept: about 500,000 games
    window: int  # positions after which the replay grows more slowly, up to capacity; 0: capacity from the start
    learning_starts: int  # moves before the first update
    learning_rate: float  # learning rate at the start; see --anneal
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    drops: tuple[int, ...]  # updates at which the learning rate is divided by 10
    optimizer: str | Callable[..., Any]  # optimizer: sgd, another of docs/reference/optimizers.md, or module:callable
    momentum: float  # momentum of sgd
    l2: float  # weight of ‖θ‖² in the loss, with sgd only
    gate: float  # share of points that a candidate must exceed to become champion; 0: no gate
    gate_games: int  # games per match; the champion draws each opening: half of --temperature-plies
    gate_every: int  # fewest updates between matches
    champion_games: int  # fewest games that a champion plays before the next match
    frames: int  # moves to train for, unless --steps is given

class Apex(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # parallel environments (num-envs) of each actor
    replay_workers: int  # replay workers, each for a share of the actors
    learners: int  # copies of the learner, whose gradients are averaged
    unroll: int  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: float  # discount
    reward: Literal['clip', 'sign', 'none']  # how rewards are transformed; clip: limited to ±1
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto, nature, a3c, mlp, or module:callable
    batch: int  # transitions in one update, over all learners
    ratio: float  # transitions drawn per agent step; 0: neither side waits for the other
    capacity: int  # transitions in all replays together; up to an eighth more between trims
    evict_every: int  # updates between trims of the replay to --capacity, oldest transitions first
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network
    prefetch: int  # batches that each replay holds ready for each learner
    alpha: float  # exponent α of priorities (TD errors)
    epsilon: float  # largest probability ε of a random action; the lanes' values go down to ε⁸
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_dqn (centered, ε inside the root), adam, … (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class ApexDpg(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: a Gymnasium id, module:callable, or toy:NAME; its actions are a bounded Box
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # parallel environments (num-envs) of each actor
    replay_workers: int  # replay workers, each for a share of the actors
    learners: int  # copies of the learner, whose gradients are averaged
    unroll: int  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    reward_scale: float  # factor of rewards; the critic learns fastest if values are a few units
    network: str | Callable[..., Any]  # network of the first layers of both actor and critic: auto, mlp, or module:callable
    width: int  # width of the critic's first layer; second: ¾ of that; actor's layers: ¾ and ½
    batch: int  # transitions in one update, over all learners
    ratio: float  # transitions drawn per agent step; 0: neither side waits for the other
    capacity: int  # transitions in all replays together; up to an eighth more between trims
    evict_every: int  # updates between trims of the replay to --capacity, oldest first; paper: by priority
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network
    prefetch: int  # batches that each replay holds ready for each learner
    alpha: float  # exponent α of priorities (TD errors)
    noise: float  # standard deviation of noise on each element of an action, in half ranges
    dqda_clip: float  # clip each element of dQ/da to this, per half range; 0: off
    saturation_cost: float  # weight of a penalty for actions at the ends of their range (DPGLoss); 0: off
    learning_rate: float  # learning rate of actor and critic, constant
    optimizer: str | Callable[..., Any]  # optimizer: adam, or another of docs/reference/optimizers.md
    frames: int  # agent steps to train for, unless --steps is given

class ApexSac(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: a Gymnasium id, module:callable, or toy:NAME; see sac
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # parallel environments (num-envs) of each actor
    replay_workers: int  # replay workers, each for a share of the actors
    learners: int  # copies of the learner, whose gradients are averaged
    unroll: int  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: int  # number of critics; their least value is the target
    temperature: float  # a fixed temperature; 0: it is learned
    entropy: float | None  # target entropy in nats; none: as in sac
    tau: float  # fraction of the distance the target network moves in an update
    batch: int  # transitions in one update, over all learners
    ratio: float  # transitions drawn per agent step: one update per step; 0: neither side waits
    capacity: int  # transitions in all replays together; up to an eighth more between trims
    evict_every: int  # updates between trims of the replay to --capacity, oldest transitions first
    learning_starts: int  # agent steps before the first update
    prefetch: int  # batches that each replay holds ready for each learner
    alpha: float  # exponent α of priorities (TD errors)
    learning_rate: float  # learning rate of all parts, constant
    optimizer: str | Callable[..., Any]  # optimizer: adam, or another of docs/reference/optimizers.md
    frames: int  # agent steps to train for, unless --steps is given

class Appo(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    value: Literal['plain', 'popart', 'heads']  # outputs of the value head; heads: one per task of --env, popart: one per task, normalized by running statistics
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: int  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: int  # synchronous learners, whose gradients are averaged
    slots: int  # rollout buffers per actor: one is filled, others wait for a learner or are in an update
    lag: int  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: int  # agent steps per lane in a rollout
    batch: int  # trajectories in one batch, over all learners
    epochs: int  # passes over a batch
    minibatches: int  # minibatches per pass, of whole trajectories
    clip_range: float  # ε: the ratio π/μ is clipped to 1 ± ε (Sample Factory: 1/(1+ε) to 1+ε)
    gamma: float  # discount
    lam: float  # λ of V-trace
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    network: str | Callable[..., Any]  # network: auto (nature or mlp), nature, a3c, impala, five (unit sets), …, or module:callable
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: float  # weight of the value loss (v − V)²
    entropy_cost: float  # weight of the entropy bonus
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a minibatch
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Dqn(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop, each with one core and a share of the lanes, replay and batch
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    reward: Literal['clip', 'sign', 'none']  # how rewards are transformed; clip: limited to ±1
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto, nature, dqn (as released), a3c, mlp, or module:callable
    double: bool  # double DQN: the online network chooses the next action, the target network evaluates it
    head: Literal['plain', 'shared', 'dueling']  # last layer; shared: one bias for all actions; dueling: Wang et al. 2016
    batch: int  # transitions in one update, over all replicas
    ratio: float  # transitions drawn per agent step: 32 every 4 steps
    capacity: int  # transitions in the replays of all replicas together
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network
    alpha: float  # exponent α of priorities (TD errors); 0: uniform draws
    beta: float  # exponent β of importance weights at the start; rises to 1
    epsilon: float  # probability of a random action at the end of the schedule
    epsilon_decay_steps: int  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_dqn (centered, ε inside the root), adam, … (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimizer's ε
    reduction: Literal['sum', 'mean']  # reduction of the loss over a batch; TD errors are clipped to ±1
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Five(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # a game of two teams, whose heroes are seats
    learners: int  # learners (the paper's optimizers), whose gradients are averaged
    actors: int  # acting workers per learner, each with two teams
    lanes: int  # heroes in matches (num-envs) of each actor
    lag: int  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: int  # agent steps per lane in a rollout; advantages use the whole rollout
    window: int  # agent steps in a window, which starts from the recurrent state stored while acting
    batch: int  # windows per learner in an update
    capacity: int  # newest windows that each learner draws from
    sample_reuse: float  # windows drawn per window received (0: no limit)
    publish: int  # updates between weight publications to actors
    staleness: int  # delay actors by this many weight versions, for experiments
    opponents: str  # opponents of the agent: latest (itself), or past:P (past agents, probability P)
    games_per_matchup: int  # matches per actor between opponent draws
    snapshot_every: int  # updates per past agent
    rate_every: int  # updates between ratings against bots (0: off)
    team_spirit: float  # τ: share of the team's mean in a hero's reward
    horizon: float  # horizon H in seconds: the discount is 1 − --step-time / H
    step_time: float  # seconds per agent step
    lam: float  # λ of generalized advantage estimation
    clip_range: float  # ε: the ratio π/μ is clipped to 1 ± ε
    entropy_cost: float  # weight of the entropy bonus
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: Adam on gradients within ±5·√v; others: docs/reference/optimizers.md
    network: str | Callable[..., Any]  # network: five (sets of units), or one of other systems
    core_size: int  # width of the LSTM
    inputs: Literal['raw', 'normalize']  # how observations are scaled; normalize: scale and clip numbers
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    frames: int  # agent steps over all heroes, unless --steps is given

class Ftw(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # game of teams that counts events
    agents: int  # agents in the population
    players: int  # agents in an actor's matches, each with a group of lanes
    actors: int  # acting workers
    lanes: int  # seats in matches (num-envs) of each actor, divided among its players
    learners: int  # learner processes, each for some of the agents in turn (0: one per core or agent)
    lag: int  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: int  # agent steps per lane in a rollout
    batch: int  # trajectories in one update of an agent
    opponents: str  # matchmaking: latest, uniform, or elo (evenly matched players)
    games_per_matchup: int  # matches per actor between draws of its players
    evolve: bool  # draw agents' first hyperparameters from --ranges, and copy better agents; false: use the middle of each range
    exploit_every: int  # matches per agent between checks for a better agent to copy
    ranges: tuple[str, ...]  # hyperparameters: NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=VALUE, with names of docs/systems/ftw.md's table
    rewards: Literal['events', 'game']  # source of rewards: an agent's own weights of events, or the game
    event_rewards: tuple[str, ...]  # fixed weights, as EVENT=WEIGHT; other events have 0
    network: str | Callable[..., Any]  # network: ftw (convolutions for the view's size), mlp, impala, or module:callable
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: two LSTMs
    core_size: int  # width of each LSTM, and of z
    auxiliary: str  # auxiliary tasks: pixel, reward, separated by a comma; or none
    memory: int  # words of the memory that both LSTMs share (0: no memory)
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    gamma: float  # discount
    lam: float  # λ of V-trace
    max_grad_norm: float  # clip the gradient's global norm to this (0: off)
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    normalize_advantage: bool  # scale advantages to mean 0, deviation 1; the loss is then a mean, not a sum
    frames: int  # agent steps over all agents, unless --steps is given

class Ga3C(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'signed', 'center', 'normalize']  # how inputs are scaled; raw: images x/255, signed: x/128 − 1, center: minus the mean image, normalize: scaled numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    agents: int  # agents at the start; each is a process with one environment
    predictors: int  # threads that compute actions, at the start
    trainers: int  # threads that learn, at the start
    schedule: Literal['off', 'annealing']  # rule for numbers of agents, predictors and trainers
    predict_batch: int  # most agents in one batch of actions
    min_batch: int  # fewest transitions in an update (0: one chunk's)
    queue: int  # chunks that may wait for a trainer
    gamma: float  # discount
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    entropy_cost: float  # weight of the entropy bonus
    unroll: int  # transitions in a chunk (t_max); fewer if an episode ends
    network: str | Callable[..., Any]  # network: ga3c, ga3c_large4 … ga3c_large1, a3c, nature, impala, mlp, separate, auto, or module:callable
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; trainers share the statistics
    optimizer_eps: float  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    correction: Literal['none', 'plus', 'max', 'vtrace']  # how log π stays finite; plus: log(π + 1e-6), max: log(max(π, 1e-6)), vtrace: V-trace instead
    init: Literal['auto', 'orthogonal', 'torch']  # initial weights (auto: as the network was published)
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a batch
    reduction: Literal['sum', 'mean']  # how the loss is reduced over a batch; sum is as published
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Gorila(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: int  # acting workers in free mode; 0: bundled mode, where a learner also acts and has a replay
    replay_workers: int  # replay workers in free mode; 1: a global replay; one per actor: local replays
    learners: int  # bundles, or learners in free mode (0: one per core or GPU; the paper had 100)
    shards: int  # parts of the parameter server, a process each; the paper had 31 machines
    lanes: int  # parallel environments (num-envs) of each actor
    unroll: int  # agent steps per lane between pulls of the weights
    gamma: float  # discount
    reward: Literal['clip', 'sign', 'none']  # how rewards are transformed; clip: limited to ±1
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto, nature, a3c, mlp, or module:callable
    batch: int  # transitions averaged in one gradient; as in DQN
    ratio: float  # transitions drawn per agent step (32: one gradient; DQN: 8; 0 in free mode: no limit)
    capacity: int  # transitions in each replay
    learning_starts: int  # agent steps in each replay before batches are drawn; as in DQN
    target_update: int  # updates of the server between two updates of the target network
    epsilon: float  # probability of a random action at the end of the schedule
    epsilon_decay_steps: int  # agent steps of all actors over which ε falls from 1 to --epsilon
    learning_rate: float  # learning rate, constant; not published
    optimizer: str | Callable[..., Any]  # optimizer: adagrad, rmsprop_dqn, adam, or another of docs/reference/optimizers.md
    optimizer_eps: float  # the optimizer's ε; not published
    stale: int  # discard gradients older than this many updates of a shard (0: 10 per learner); not published
    outlier: float  # discard losses this many deviations above the mean; 0: off; not published
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Impala(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    value: Literal['plain', 'popart', 'heads']  # outputs of the value head; heads: one per task of --env, popart: one per task, normalized by running statistics
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: int  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: int  # synchronous learners, whose gradients are averaged
    slots: int  # rollout buffers per actor: one is filled, others wait for a learner or are in an update
    lag: int  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: int  # agent steps per lane in a rollout
    batch: int  # trajectories in one update, over all learners
    gamma: float  # discount
    rho: float  # V-trace's ρ̄, which also bounds the policy gradient's weights
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    network: str | Callable[..., Any]  # network: auto, nature, a3c, ga3c, impala (deep), mlp, separate, or module:callable
    auxiliary: str  # UNREAL's tasks on recent rows: pixel, reward, value, with or without =COST; or none
    init: Literal['auto', 'orthogonal', 'torch', 'sonnet']  # initial weights; auto: as published
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    optimizer_eps: float  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: float  # weight of the value loss ½(v − V)²
    entropy_cost: float  # weight of the entropy bonus
    reduction: Literal['sum', 'mean']  # how the loss is reduced over a batch; sum is the paper's
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a batch
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class League(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment with several players: toy:rps, one of PettingZoo, or module:callable
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    agents: int  # agents that train, each on its own games
    players: int  # players in an actor's matches, each with a group of lanes
    actors: int  # acting workers
    lanes: int  # seats in matches (num-envs) of each actor, divided among its players
    learners: int  # learner processes, each for some of the agents in turn (0: one per core or agent)
    lag: int  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: int  # agent steps per lane in a rollout
    opponents: str  # opponents of an actor's first player; latest: agents, uniform: past agents and bots too, elo: equally strong ones, past:P: past agents with probability P
    games_per_matchup: int  # matches per actor between draws of its players
    snapshot_every: int  # updates of an agent per past agent
    exploit_every: int  # matches per agent between checks for a better agent to copy (0: never)
    batch: int  # trajectories in one update of an agent; with ppo, in one batch
    algo: Literal['vtrace', 'ppo']  # loss; vtrace: IMPALA's; ppo: clipped ratio on V-trace, several passes
    epochs: int  # passes over a batch, with ppo
    clip_range: float  # ε: ppo clips the ratio π/μ to 1 ± ε
    gamma: float  # discount
    entropy_cost: float  # weight of the entropy bonus
    lam: float  # λ of V-trace
    network: str | Callable[..., Any]  # network: auto, nature, a3c, ga3c, impala, mlp, separate, five, or module:callable
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    anneal: Literal['linear', 'constant']  # schedule; linear: the learning rate falls to 0 over the run
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Pbt(RunOptions, total=False):
    over: str  # system of the members, or module:NAME; give its options as in `polyplay train SYSTEM`
    population: int  # members (0: 8; with --exploit none and only lists in --vary, one for each combination)
    every: int  # agent steps that a member trains between exploit/explore decisions
    vary: tuple[str, ...]  # options to vary: NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=A,B,C
    exploit: Literal['truncation', 'tournament', 'ttest', 'none']  # rule for copying a better member
    explore: Literal['perturb', 'resample', 'both', 'none']  # how copied values change; perturb: times 0.8 or 1.2; resample: one in four is drawn again; both: one in four is drawn again, the others are perturbed
    score: Literal['games', 'evaluations']  # mean return of 10 training games, or of --eval-every games
    at_once: int  # trainers, each with its share of the cores (0: one per core)

class Ppo(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    core: Literal['none', 'lstm', 'gru', 'temporal']  # recurrent core; temporal: FTW's two LSTMs
    actions: Literal['scale', 'clip']  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    value: Literal['plain', 'popart', 'heads']  # outputs of the value head; heads: one per task of --env, popart: one per task, normalized by running statistics
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: int  # groups of a replica's lanes; with 2, one steps while the policy acts for the other
    unroll: int  # agent steps per lane in a rollout
    epochs: int  # passes over a rollout
    minibatches: int  # minibatches per pass; with a recurrent core each has whole lanes
    clip_range: float  # ε: the ratio π/μ is clipped to 1 ± ε
    value_clip: bool  # also clip the value's change to ± --clip-range, as baselines' ppo2 does
    target_kl: float  # end the passes over a rollout at this approximate KL divergence; 0: off
    gamma: float  # discount
    lam: float  # λ of generalized advantage estimation
    network: str | Callable[..., Any]  # network: auto (nature or mlp), rlpyt, a3c, impala, separate, five (unit sets), …, or module:callable
    core_size: int  # width of the recurrent core
    deviation: float  # standard deviation of real actions at the start; unit: see --actions
    learning_rate: float  # learning rate at the start; see --anneal
    optimizer: str | Callable[..., Any]  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    anneal: Literal['linear', 'rate', 'constant']  # schedule; linear: the learning rate and the clip range fall to 0 over the run; rate: only the learning rate falls
    value_cost: float  # weight of the value loss (R − V)²
    entropy_cost: float  # weight of the entropy bonus
    reward: Literal['clip', 'sign', 'none', 'scale']  # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    normalize_advantage: bool  # scale advantages to mean 0 and deviation 1 over a minibatch
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given (10M steps)

class R2D2(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: int  # acting workers, each with its own copy of the weights
    lanes: int  # parallel environments (num-envs) of each actor
    unroll: int  # agent steps per lane in a rollout, and between the starts of two sequences
    pull: int  # agent steps per lane between two pulls of the weights, in whole rollouts
    sequence: int  # agent steps of a sequence that are learned from
    burn_in: int  # steps before a sequence that only update the recurrent state
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto, nature, a3c, mlp, or module:callable
    core_size: int  # width of the LSTM, which also gets the previous action and reward
    batch: int  # sequences in one update
    ratio: float  # steps learned from per agent step: 25.6K of 66.6K per second in the paper
    capacity: int  # agent steps in the replay
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network
    alpha: float  # exponent α of a sequence's priority, η·max + (1 − η)·mean of TD errors, η = 0.9
    beta: float  # exponent β of importance weights, constant
    epsilon: float  # largest probability ε of a random action; the lanes' values go down to ε⁸
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this; 0: off
    rescale: float  # ε of value rescaling h; 0: off
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Rainbow(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME; several with commas (NAME:2 has two shares)
    inputs: Literal['raw', 'center', 'normalize']  # how observations are scaled; center: subtract the mean image, normalize: scale numbers
    atari: str  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: int  # parallel environments (num-envs), over all replicas
    replicas: int  # copies of the loop, each with one core and a share of the lanes, replay and batch
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    reward: Literal['clip', 'sign', 'none']  # how rewards are transformed; clip: limited to ±1
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto, nature, dopamine, a3c, mlp, or module:callable
    variant: Literal['paper', 'zoo', 'dopamine']  # implementation; dopamine: not double, not dueling
    v_max: float  # largest return of the value distribution; the smallest is -v_max
    sigma: float  # initial σ of the noisy layers; 0: ε-greedy instead
    batch: int  # transitions in one update, over all replicas
    ratio: float  # transitions drawn per agent step: 32 every 4 steps
    capacity: int  # transitions in the replays of all replicas together
    learning_starts: int  # agent steps before the first update
    target_update: int  # updates between two updates of the target network: 32,000 frames
    alpha: float  # exponent α of priorities
    beta: float  # exponent β of importance weights at the start
    epsilon: float  # probability of a random action at the end of the schedule, without noisy layers
    epsilon_decay_steps: int  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: float  # learning rate, constant
    optimizer: str | Callable[..., Any]  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: float  # the optimizer's ε
    max_grad_norm: float  # clip the gradient's global norm to this (dqn_zoo); 0: off
    frames: int  # frames to train for (Atari: four per agent step), unless --steps is given

class Sac(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: a Gymnasium id, module:callable, or toy:NAME
    lanes: int  # parallel environments (num-envs)
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: int  # number of critics; their least value is the target
    critic_width: int  # units of each critic layer; 0: as in the actor
    subset: int  # critics drawn for each update, whose least value is the target; 0: all
    actor_value: Literal['min', 'mean']  # value that the actor maximizes, over the critics
    delay: int  # updates of the critics per update of the actor and of the temperature
    normalization: Literal['none', 'layer', 'batch']  # normalization in critics; batch: no target network
    dropout: float  # share of critic units that a pass leaves out
    log_std: Literal['clip', 'tanh']  # how log σ is bounded: clipped to −20 … 2, or by tanh to −5 … 2
    temperature: float  # a fixed temperature; 0: it is learned
    entropy: float | None  # target entropy in nats; none: −dim of a Box, 0.89·ln of the number of legal actions
    tau: float  # fraction of the distance the target network moves in an update
    target_update: int  # updates between two updates of the target network
    batch: int  # transitions in one update
    ratio: float  # transitions drawn per agent step: one update per step
    capacity: int  # transitions in the replay
    learning_starts: int  # agent steps before the first update; their actions are uniform
    alpha: float  # exponent α of priorities (TD errors); 0: uniform draws
    learning_rate: float  # learning rate of the actor, constant
    critic_rate: float  # learning rate of the critics, as a multiple of --learning-rate
    temperature_rate: float  # learning rate of the temperature, as a multiple of --learning-rate
    optimizer: str | Callable[..., Any]  # optimizer: adam; others (docs/reference/optimizers.md) need all rates equal and --delay 1
    beta1: float  # β₁ of Adam
    frames: int  # agent steps to train for, unless --steps is given

class Td3(RunOptions, total=False):
    env: str | Callable[..., Any] | Env[Any, Any]  # environment: a Gymnasium id, module:callable, or toy:NAME; its actions are a bounded Box
    lanes: int  # parallel environments (num-envs)
    unroll: int  # agent steps per lane between updates
    gamma: float  # discount
    n_step: int  # n of n-step returns: rewards summed before bootstrapping
    network: str | Callable[..., Any]  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: int  # number of critics; their least value is the target
    noise: float  # standard deviation of noise on each element of an action, in half ranges
    smoothing: float  # standard deviation of noise on the target network's actions; 0: none
    noise_clip: float  # bound of the --smoothing noise
    delay: int  # updates of the critics per update of the actor and of the target network
    tau: float  # fraction of the distance the target network moves in an update
    batch: int  # transitions in one update
    ratio: float  # transitions drawn per agent step: one update per step
    capacity: int  # transitions in the replay
    learning_starts: int  # agent steps before the first update; their actions are uniform
    alpha: float  # exponent α of priorities (TD errors); 0: uniform draws
    learning_rate: float  # learning rate of the actor, constant
    critic_rate: float  # learning rate of the critics, as a multiple of --learning-rate
    optimizer: str | Callable[..., Any]  # optimizer: adam; others (docs/reference/optimizers.md) need --critic-rate 1 and --delay 1
    frames: int  # agent steps to train for, unless --steps is given

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
    system: Literal["alphago_zero"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[AlphagoZero]
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
    system: Literal["apex_sac"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[ApexSac]
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
    system: Literal["five"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Five]
) -> Run: ...
@overload
def train(
    system: Literal["ftw"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Ftw]
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
    system: Literal["league"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[League]
) -> Run: ...
@overload
def train(
    system: Literal["pbt"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Any
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
    system: Literal["sac"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Sac]
) -> Run: ...
@overload
def train(
    system: Literal["td3"], config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Unpack[Td3]
) -> Run: ...
@overload
def train(
    system: str | Page | None = None, config: str | Path | None = None, callbacks: Sequence[object] = (), **overrides: Any
) -> Run: ...