"""What every verb prints for six small runs: nothing that a person sees changes unnoticed.

    python bench/verbs.py write build/before                 # on the parent commit
    python bench/verbs.py write build/after                  # after the change, on the same machine
    python bench/verbs.py compare build/before build/after   # a diff of what differs; the exit status says if any does

The runs are on-policy, replay, recurrent, board, team and population, each in one thread with a fixed seed, so that
their numbers are the same again. Each command gives a file: its words, exit status, standard output and standard error.
Masked are times, speeds, memory, paths, versions and dates, and the width of tables.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SAME = "--serial --seed 3 --no-tensorboard --trace --checkpoint-every 1000 --report-every 1000 --keep 2"
CATCH = "--env toy:catch --network mlp --lanes 8 --replicas 1"
RUNS: dict[str, str] = {
    "on_policy": f"a2c {CATCH} --unroll 8 --learning-rate 3e-3 --optimizer adam --steps 4000",
    "replay": f"dqn {CATCH} --batch 32 --ratio 8 --capacity 10k --learning-starts 300 --target-update 50 --steps 1500",
    "recurrent": "impala --env toy:memory --network mlp --core gru --core-size 16 --actors 1 --lanes 8 --unroll 8 "
    "--batch 8 --steps 3000",
    "board": "alphago_zero --env game:tic_tac_toe --players 1 --games 16 --simulations 8 --temperature-plies 6 "
    "--blocks 1 --filters 8 --batch 64 --ratio 2 --capacity 4000 --learning-starts 400 --learners 1 --leaves 1 "
    "--evaluator torch --precision float32 --champion-games 0 --steps 1200",
    "team": "ftw --env toy:skirmish --event-rewards kill=1,death=-0.5 --agents 2 --network mlp --core-size 16 "
    "--lanes 16 --batch 4 --unroll 20 --memory 0 --auxiliary reward --optimizer adam --games-per-matchup 10 "
    "--exploit-every 20 --steps 4000",
    "population": "pbt --over a2c --env toy:catch --network mlp --lanes 8 --replicas 1 --population 3 --every 500 "
    "--at-once 1 --vary learning_rate=log:1e-4:1e-2 --steps 1500",
}
OF_A_RUN: dict[str, str] = {
    "evaluate": "evaluate {run} --episodes 10",
    "verify": "evaluate {run} --verify",
    "plot": "plot {run} --out {run}.png",
    "runs": "runs {run}",
    "games": "play {run} --games",
    "tournament": "tournament {run} random --matches 4",
    "scores": "runs {run} --scores",
    "export": "export {run} --onnx {run}.onnx",
    "check": "check {run}",
    "starts": "evaluate {run} --save-starts {run}.starts",
    "surgery": "surgery {run} --out {run}-grown --core-size 24",
    "play": "play {run} --gtp",
    "watch": "watch {run} --port 99999",
    "resume": "resume {run} --steps 5000",
    "resume_nothing": "resume {run} --steps 10",
}
VERBS = "train resume surgery evaluate play plot runs watch systems tournament export check bench doctor"
SYSTEMS = "a2c a3c accel accel_dqn alphago_zero apex apex_dpg appo dqn five ftw ga3c gorila impala league pbt ppo r2d2"
ALONE: dict[str, str] = {
    **{f"help_{verb}": f"{verb} --help" for verb in VERBS.split()},
    **{f"help_all_{verb}": f"{verb} --help-all" for verb in VERBS.split()},
    **{f"help_train_{system}": f"train {system} --help-all" for system in [*SYSTEMS.split(), "rainbow"]},
    **{f"diagram_{system}": f"systems {system} --diagram" for system in ("a2c", "apex", "ftw", "alphago_zero", "pbt")},
    **{f"plan_{name}": f"train {words} --dry-run" for name, words in RUNS.items()},
    "help": "--help",
    "systems": "systems",
    "system": "systems ppo",
    "new": "systems --new example",
    "completion": "--completion bash",
    "check": "check toy:catch",
    "check_gymnasium": "check CartPole-v1",
    "doctor": "doctor",
    "bench": "bench a2c --env CartPole-v1 --seconds 1",
}
WRONG: list[str] = [
    "trian a2c",
    "train",
    "train a4c",
    "train a2c --lane 4",
    "train a2c --lanes",
    "train a2c --lanes 0",
    "train a2c --lanes four",
    "train a2c --gamma 1.5",
    "train a2c --learning-rate -1",
    "train a2c --correction vtrace",
    "train a2c --preset qick",
    "train a2c --env CartPole-v9",
    "train a2c --env toy:cath",
    "train a2c --env ALE/Pnog-v5",
    "train a2c --env nowhere:make",
    "train a2c --env toy:catch --network nature",
    "train a2c --env toy:catch --network mpl",
    "train a2c --env toy:catch --steps 10 --frames 10",
    "train a2c --env toy:catch --device gpu",
    "train a2c --env toy:catch --change gama=0.9@100",
    "train a2c --env toy:catch --hosts pretned:2",
    "train dqn --env Pendulum-v1 --network mlp",
    "train dqn --env toy:catch --network mlp --capacity 10T",
    "train apex_dpg --env CartPole-v1",
    "train alphago_zero --env CartPole-v1",
    "train ftw --env CartPole-v1",
    "train five --env toy:catch",
    "train pbt --over a4c",
    "train pbt --over a2c --env toy:catch --vary gamma=log:0:1",
    "resume nowhere",
    "evaluate nowhere",
    "evaluate {folder}",
    "plot",
    "plot {folder}/on_policy",
    "plot {folder}/on_policy --out file.doc",
    "evaluate {folder}/on_policy --episodes 0",
    "evaluate {folder}/on_policy --checkpoint 12",
    "evaluate {folder}/on_policy --protocol humanstarts",
    "resume {folder}/on_policy --lanes 0",
    "runs {folder}/on_policy --picture p.png",
    "tournament {folder}/board",
    "export {folder}/on_policy",
    "check nowhere:make",
    "bench a4c",
    "runs nowhere",
    "systems a4c",
    "scores",
]
GTP = "name\nboardsize 3\ngenmove b\nquit\n"
# from what changes from one time or machine to the next, to what stands for it
MASKS: list[tuple[str, str]] = [
    (r"\x1b\[[0-9;]*m", ""),
    (r"20\d\d-\d\d-\d\d([T ]\d\d[:.]\d\d([:.]\d\d)?)?(Z|[+-]\d\d:?\d\d)?", "DATE"),
    (r"\b(about )?[\d.,]+[kMGT]? ?(core-seconds?|seconds?|minutes?|hours?|days?|min|ms|µs|us|s|h|d)\b", "TIME"),
    (r"\b\d+:\d\d(:\d\d)?\b", "TIME"),
    (r"[\d.,]+ ?[kMGT]? ?(frames|steps|games|updates|fps|FPS|sps|SPS)? ?(/ ?s|per second|a second)\b", "SPEED"),
    (r"[\d.,]+ ?(k|M|G|Ki|Mi|Gi)?i?B\b", "SIZE"),
    (r"\b[\d.]+ cores?\b", "CORES"),
    (
        r"\b(sps|fps|wall_seconds|memory_mb|seconds|time_\w+|seconds_\w+|took_seconds|size|bytes)(\W+)[\d.,]+\w*",
        r"\1\2#",
    ),
    (r"(sha256|config_hash)\W+[0-9a-f]{16,}|\b[0-9a-f]{32,}\b", "DIGEST"),
    (r"#token=\S+", "#token=TOKEN"),
    (r"[ \t─━═┄╌]+", " "),
    (r" +\n", "\n"),
]
FREE = ("doctor", "bench", "check", "check_gymnasium")  # all their numbers are the machine's


def masked(text: str, folder: Path, every_number: bool = False) -> str:
    """`text` without what differs from one time to the next."""
    for path in (str(folder.resolve()), str(folder)):
        text = text.replace(path, "FOLDER")
    for place in (str(Path(__file__).parent.parent.resolve()), str(Path.home()), os.path.dirname(sys.executable)):
        text = text.replace(place, "PLACE")
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    return re.sub(r"\d+([.,]\d+)*", "#", text) if every_number else text


def printed(words: str, folder: Path, name: str = "") -> str:
    """One command and all that it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "polyplay", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, input=GTP, env=env, cwd=folder, timeout=600)
    parts = [f"$ polyplay {words}", f"exit status {done.returncode}", done.stdout, "--- standard error", done.stderr]
    return masked("\n".join(parts), folder, name in FREE)


def write(out: Path, only: list[str]) -> None:
    """Make the runs, then a file of each command."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verbs-") as place:
        folder = Path(place)
        commands = {f"run_{name}": f"train {words} {SAME} --run {folder / name}" for name, words in RUNS.items()}
        for verb, words in OF_A_RUN.items():
            commands |= {f"{verb}_of_{name}": words.format(run=folder / name) for name in RUNS}
        commands |= {name: words.format(folder=folder) for name, words in ALONE.items()}
        commands |= {f"wrong_{i:02d}": words.format(folder=folder) for i, words in enumerate(WRONG)}
        for name, words in commands.items():
            if not only or any(name.startswith(part) for part in only):
                (out / f"{name}.txt").write_text(printed(words, folder, name))
                print(name, file=sys.stderr, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print what differs; how many files do."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.txt")})
    different = 0
    for name in names:
        texts = [path.read_text().splitlines() if path.exists() else [] for path in (before / name, after / name)]
        diff = list(difflib.unified_diff(*texts, str(before / name), str(after / name), lineterm="", n=1))
        different += bool(diff)
        print("\n".join(diff), end="\n" if diff else "")
    print(f"{len(names) - different} of {len(names)} commands print the same")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description="What every verb prints for six small runs.")
    todo = parser.add_subparsers(dest="todo", required=True)
    writing = todo.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--only", nargs="+", default=[], help="commands whose names begin so, such as run_ wrong_")
    comparing = todo.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.todo == "write":
        write(asked.folder, asked.only)
        return 0
    return int(bool(compare(asked.before, asked.after)))


if __name__ == "__main__":
    sys.exit(main())
