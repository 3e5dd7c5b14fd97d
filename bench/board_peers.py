"""How self_play.py runs its peers: their programs, their settings, their rates."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from common import HERE, Row

# name: environment, script, checkout, settings
PEERS = {
    "mctx": (
        "mctx",
        "board_mctx.py",
        "",
        [
            "--games 64",
            "--games 128",
            "--games 256",
            "--games 64 --processes 2",
            "--games 64 --precision bfloat16",
        ],
    ),
    "azg": ("azg", "board_azg.py", "alpha-zero-general", [""]),
    "lightzero": ("lz", "board_lightzero.py", "LightZero", [""]),
    "openspiel": ("spiel", "board_openspiel.py", "", [""]),
}
TITLES = {"mctx": "mctx + pgx", "azg": "alpha-zero-general", "lightzero": "LightZero", "openspiel": "OpenSpiel, Python"}
WARM = 3.0  # seconds after the first simulations

Measure = Callable[[list[str], float, float], Row]


def peer_rows(asked: argparse.Namespace, run: Measure) -> tuple[list[Row], list[Row], Row | None]:
    """(the peers at their best settings, all settings tried, mctx with a uniform evaluator)."""
    peers, probes = [], []
    for name in asked.only or PEERS:
        settings = PEERS[name][3]
        if len(settings) > 1:
            tried = [one(name, setting, asked.probe_window, asked, run) for setting in settings]
            probes += tried
            settings = [max(tried, key=lambda r: r["simulations/s"])["setting"]]
        peers.append(one(name, settings[0], asked.peer_window, asked, run))
    uniform = None
    if "mctx" in (asked.only or PEERS):
        uniform = one("mctx", "--games 64 --uniform", asked.probe_window, asked, run)
    return peers, probes, uniform


def one(name: str, setting: str, window: float, asked: argparse.Namespace, run: Measure) -> Row:
    """A peer's rates in one window."""
    environment, script, checkout, _ = PEERS[name]
    words = [
        "env",
        "-u",
        "PYTHONPATH",
        str(asked.peers / environment / "bin/python"),
        str(HERE / "peers" / script),
        *setting.split(),
    ]
    for option in ("simulations", "blocks", "filters"):
        words += [f"--{option}", str(getattr(asked, option))]
    words += ["--board", asked.env] if environment in ("mctx", "spiel") else []
    words += ["--path", str(asked.peers / "src" / checkout)] if checkout else []
    row = run(words, WARM, window)
    begin, end = row["lines"][0], row["lines"][-1]
    seconds = end["wall_seconds"] - begin["wall_seconds"]
    rates = {key: (end[key] - begin[key]) / seconds for key in ("steps", "evaluations", "moves")}
    found = {
        "player": TITLES[name],
        "setting": setting,
        "tree": "kept" if name == "azg" else "anew",
        "simulations/s": rates["steps"],
        "evaluations/s": rates["evaluations"],
        "moves/s": rates["steps"] / asked.simulations,
        "cores": row["own_cores"],
        "others' cores": row["others_cores"],
        "window, s": seconds,
    }
    print(found, flush=True)
    return found
