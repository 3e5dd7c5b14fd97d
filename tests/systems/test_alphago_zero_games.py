"""However a run of AlphaGo Zero ends, its checkpoint has every game once, by number; a resumed run goes on from it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import open_checkpoint
from polyplay.core.files import read_lines
from polyplay.games.boards import GAMES
from tests.runs.test_run import end, start, wait_for

WORDS = "train alphago_zero --env game:tic_tac_toe --players 2 --games 16 --simulations 12 --warm 6 --noise-alpha 1"
WORDS += " --blocks 1 --filters 8 --batch 64 --ratio 2 --capacity 100k --start 400 --steps 100M --no-tensorboard"
WORDS += " --evaluator torch --precision float32 --report-every 0.2 --checkpoint-every 1"


def replayed(found: Path, player: int) -> np.ndarray:
    """[n, 2] number of the game and move of each row of a player in the replay, the oldest first."""
    folder = found / "replay/learn-0"
    files = json.loads((folder / "replay.json").read_text())["files"]
    columns = []
    for key in ("game", "action"):
        pieces = [load_file(folder / f["name"]) for f in files if (f["part"], f["key"]) == ("rows", key)]
        columns.append(pieces[player]["rows"])  # a piece for each lane
    return np.stack(columns, 1)


def ended(found: Path, player: int) -> tuple[list[int], int]:
    """The numbers of a player's games wherever a checkpoint has them, and how many it says have ended."""
    saved = tree.nest(open_checkpoint(found).arrays(f"workers/self_play-{player}"))
    flight = saved.get("flight", {})
    slots = [flight[str(i)]["rows"]["game"][:, 0] for i in range(len(flight))]
    rest = [saved["finished"]["game"]] if "finished" in saved else []
    games = np.concatenate([replayed(found, player)[:, 0], *slots, *rest])
    begins = np.flatnonzero(np.diff(games, prepend=-1))
    return [int(n) for n in games[begins] if n >= 0], int(saved["number"])


def hold_every_game_once(run: Path) -> Path:
    found = checkpoint.everything(run)[-1]
    for player in range(2):
        numbers, count = ended(found, player)
        assert numbers == list(range(count))
        assert count > 10
    return found


def written_once(run: Path, found: Path) -> None:
    """Lines of games.jsonl are the first player's games, none of them twice, move by move as the replay has them."""
    lines = list(read_lines(run / "games.jsonl"))
    names, rows, same = [line["name"] for line in lines], replayed(found, 0), 0
    assert len(set(names)) == len(names) > 128
    for name, line in zip(names, lines, strict=True):
        actions = rows[rows[:, 0] == int(name.removeprefix("self_play-0-")), 1]
        if len(actions):
            same += 1
            assert line["moves"] == [GAMES["tic_tac_toe"].move_name(a) for a in actions[: len(line["moves"])]]
    assert same > 100


def steps(found: Path) -> int:
    return int(found.name.rpartition("-")[2])  # old ones may be deleted meanwhile


@pytest.mark.parametrize(
    ("by", "how"),
    [
        pytest.param(signal.SIGINT, "--on process", id="Ctrl-C", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "--on thread", id="SIGTERM, threads", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "--on process", id="SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, "--on process", id="kill -9", marks=pytest.mark.long),
    ],
)
def test_no_game_is_lost_or_learnt_from_twice(by: signal.Signals, how: str, tmp_path: Path):
    run = tmp_path / "run"
    process = start([*WORDS.split(), *how.split(), "--run", str(run)])
    wait_for(lambda: any(steps(found) > 1000 for found in checkpoint.everything(run)))
    process.send_signal(by)
    assert end(process)[0] == (-9 if by == signal.SIGKILL else 128 + by)
    before = hold_every_game_once(run)
    kept = [replayed(before, player) for player in range(2)]
    again = start(["resume", str(run), "--steps", str(steps(before) + 2000)])
    code, _, err = end(again)
    assert code == 0, err
    assert "begin anew" not in err
    after = hold_every_game_once(run)
    assert steps(after) >= steps(before) + 2000
    for player in range(2):
        assert np.array_equal(replayed(after, player)[: len(kept[player])], kept[player])
    written_once(run, after)
