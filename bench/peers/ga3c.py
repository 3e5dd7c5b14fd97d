"""Runs NVlabs/GA3C (2018-08, c291be5) from its own checkout, on Python 3, PyTorch and gymnasium.

    python bench/peers/ga3c.py --path GA3C --log log.jsonl

Server, agents, predictors, trainers, queues and the pickled float32 states are the repository's own files. Replaced:
`gym` and `scipy.misc.imresize` (oldgym.py), `NetworkVP` (ga3c_network.py). With --frames cv2 its preparation of a
frame (float64 gray, then scipy) gives way to OpenCV's, which costs a fraction. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from ga3c_network import NetworkVP
from logs import Log
from oldgym import Env, imresize, install


def fast(frame: np.ndarray) -> np.ndarray:
    """RGB [210, 160, 3] → float32 [84, 84] in −1 … 0.99, by OpenCV."""
    import cv2

    gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    return cv2.resize(gray, (84, 84), interpolation=cv2.INTER_LINEAR).astype(np.float32) / 128.0 - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True, help="a checkout of NVlabs/GA3C")
    parser.add_argument("--log", required=True, help="file for a line of counters twice a second")
    parser.add_argument("--env", default="PongDeterministic-v0")
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--predictors", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--min-batch", type=int, default=0, help="TRAINING_MIN_BATCH_SIZE")
    parser.add_argument("--dynamic", action="store_true", help="its dynamic adjustment of the three numbers")
    parser.add_argument("--threads", type=int, default=1, help="torch.set_num_threads")
    parser.add_argument("--frames", choices=("own", "cv2"), default="own")
    parser.add_argument("--seed", type=int, default=0, help="of the weights; its agents seed themselves by the clock")
    asked = parser.parse_args()
    code = (asked.path / "ga3c").resolve()
    log = Path(asked.log).resolve()
    multiprocessing.set_start_method("fork")
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    sys.path.insert(0, str(code))
    install("gym", make=Env, undo_logger_setup=lambda: None)
    install("scipy.misc", imresize=imresize)
    from Config import Config

    NetworkVP.config, NetworkVP.log = Config, Log(str(log))
    install("NetworkVP", NetworkVP=NetworkVP)
    if asked.frames == "cv2":
        import cv2

        cv2.setNumThreads(1)
        from Environment import Environment

        Environment._preprocess = staticmethod(fast)
    counts = [f"AGENTS={asked.agents}", f"PREDICTORS={asked.predictors}", f"TRAINERS={asked.trainers}"]
    more = [f"TRAINING_MIN_BATCH_SIZE={asked.min_batch}", f"ATARI_GAME={asked.env}", "SAVE_MODELS="]
    dynamic = "1" if asked.dynamic else ""  # it casts strings to bool
    sys.argv = [str(code / "GA3C.py"), *counts, *more, f"DYNAMIC_SETTINGS={dynamic}"]
    with tempfile.TemporaryDirectory() as place:  # it writes results.txt where it is
        os.chdir(place)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
