"""Sample Factory's APPO on Pong until it is stopped.

    python bench/peers/sample_factory_atari.py --epochs 1 --network nature --num_workers 2 --log log.jsonl

Workers, shared buffers, inference, learner and loss are Sample Factory's; so is every other flag (--num_workers,
--env_agents, --worker_num_splits, --rollout, --batch_size, --async_rl, --serial_mode …), on top of its own presets for
Atari. --envs envpool: an EnvPool of `env_agents` per worker; --envs gym: its wrappers around Gymnasium,
`num_envs_per_worker` per worker. Steps are those that its learner has learnt from. Knows nothing of Polyplay.
"""

from __future__ import annotations

import tempfile
import threading
import time
from typing import Any

import gymnasium
import torch
from logs import Log, command_line
from networks import NETWORKS, ActorCritic, Torso, count
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import EPISODIC
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from torch import Tensor

GAME = "atari_pong"
ALE = {"game": "pong", "obs_type": "rgb", "frameskip": 1, "repeat_action_probability": 0.0}
gymnasium.register("PongNoFrameskip-v4", "ale_py.env:AtariEnv", kwargs=ALE)  # in every process; ale-py leaves it out


class Convolutions(Encoder):
    """All of the network but its heads; images come as floats in 0 … 1."""

    def __init__(self, cfg: Any, obs_space: Any):
        super().__init__(cfg)
        self.torso = Torso(cfg.network, obs_space["obs"].shape)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.torso(obs["obs"])

    def get_out_size(self) -> int:
        return self.torso.features


class Count(AlgoObserver):
    """Writes the learner's counter down from a thread, and the games that its workers' statistics tell of."""

    def __init__(self, log: Log):
        self.log = log

    def on_start(self, runner: Any) -> None:
        runner.register_episodic_stats_handler(self.games)
        threading.Thread(target=self.watch, args=(runner,), daemon=True).start()

    def games(self, runner: Any, message: dict, policy: int) -> None:
        for score in message[EPISODIC].get("score", ()):
            self.log.game(score)

    def watch(self, runner: Any) -> None:
        last = -1
        while True:
            steps = runner.env_steps.get(0, 0)
            if steps != last:
                self.log.write(steps=steps)
            last = steps
            time.sleep(0.25)


class Scores(gymnasium.Wrapper):
    """Its BatchedRecordEpisodeStatistics sums EnvPool's unclipped rewards, as `r`; only a tensor comes further."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.num_agents = env.num_agents

    def step(self, action: Any) -> tuple:
        *seen, info = self.env.step(action)
        return (*seen, {"score": torch.tensor(info["r"])})


def pool(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Its EnvPool; today's EnvPool and the Gymnasium that it asks for disagree on how a pool is closed."""
    from sf_examples.envpool.atari.envpool_atari_utils import make_atari_env

    env = make_atari_env(name, cfg, env_config, render_mode)
    env.unwrapped.closed = True
    return Scores(env)


def settings(asked: Any, more: list[str], place: str) -> Any:
    """Its presets for Atari, then what throughput asks for, then its own flags."""
    parts = ["--num_batches_per_epoch", "4" if asked.epochs > 1 else "1"]
    words = ["--env", GAME, "--device", "cpu", "--train_dir", place, "--num_epochs", str(asked.epochs), *parts]
    words += ["--summaries_use_frameskip", "False", "--seed", str(asked.seed), "--save_every_sec", "100000", *more]
    if asked.envs == "envpool":
        from sf_examples.envpool.atari import envpool_atari_params as presets
    else:
        from sf_examples.atari import atari_params as presets
        from sf_examples.atari.atari_utils import make_atari_env
    register_env(GAME, pool if asked.envs == "envpool" else make_atari_env)
    parser, part = parse_sf_args(argv=words)
    if asked.envs == "envpool":
        presets.add_atari_env_args(part.env, parser)
    presets.atari_override_defaults(part.env, parser)
    falls = "linear_decay" if asked.anneal else "constant"
    parser.set_defaults(train_for_env_steps=asked.anneal or 10**10, lr_schedule=falls)
    parser.add_argument("--network", default=asked.network)
    return parse_full_cfg(parser, words)


def main() -> None:
    parser = command_line(__doc__, NETWORKS)
    parser.add_argument("--epochs", type=int, default=1, help="passes over each sample; in 4 parts if more than one")
    parser.add_argument("--anneal", type=int, default=0, help="steps until the learning rate is 0, and that it trains")
    parser.add_argument("--envs", choices=("envpool", "gym"), default="envpool")
    asked, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        cfg = settings(asked, more, place)
        print(f"{count(ActorCritic(asked.network, 6))} parameters", flush=True)  # as many as its own actor-critic
        global_model_factory().register_encoder_factory(Convolutions)
        _, runner = make_runner(cfg)
        runner.register_observer(Count(Log(asked.log)))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
