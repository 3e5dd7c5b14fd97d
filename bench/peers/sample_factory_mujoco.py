"""Sample Factory's APPO on a MuJoCo environment until it is stopped.

    python bench/peers/sample_factory_mujoco.py --env mujoco_halfcheetah --num_workers 2 --log log.jsonl

Workers, shared buffers, inference, network (two layers of 64 tanh units, the value has its own), learner and loss are
Sample Factory's; so is every other flag (--num_workers, --num_envs_per_worker, --worker_num_splits, --rollout,
--batch_size, --num_epochs, --async_rl, --serial_mode …), on top of its own presets for MuJoCo, which normalize
observations and returns. Its Gymnasium has HalfCheetah-v4, of the same model and size. Steps are those that its learner
has learnt from. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from logs import Log
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory_pettingzoo import Count
from sf_examples.mujoco.mujoco_params import mujoco_override_defaults
from sf_examples.mujoco.mujoco_utils import make_mujoco_env


def settings(asked: argparse.Namespace, more: list[str], place: str) -> Any:
    """Its presets for MuJoCo, then what the contest fixes, then its own flags."""
    words = ["--env", asked.env, "--train_dir", place, "--device", "cpu", "--seed", str(asked.seed)]
    words += ["--actor_critic_share_weights", "False", "--save_every_sec", "100000"]
    words += ["--train_for_env_steps", str(10**10), *more]
    register_env(asked.env, make_mujoco_env)
    parser, part = parse_sf_args(argv=words)
    mujoco_override_defaults(part.env, parser)
    return parse_full_cfg(parser, words)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--env", default="mujoco_halfcheetah")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters, four a second at most")
    asked, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        _, runner = make_runner(settings(asked, more, place))
        runner.register_observer(Count(Log(asked.log)))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
