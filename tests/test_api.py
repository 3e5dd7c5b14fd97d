"""What a person calls from Python, on one short run."""

from __future__ import annotations

from pathlib import Path

import pytest

import polyplay
from polyplay.core.errors import UserError

TOY = {"env": "toy:catch", "network": "mlp", "lanes": 8, "serial": True, "tensorboard": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> polyplay.Run:
    return polyplay.train("a2c", **TOY, steps=1500, report_every=0.1, run=tmp_path_factory.mktemp("api") / "run")


def test_a_run_gives_its_metrics_and_games(run: polyplay.Run):
    metrics, games = run.metrics(), run.episodes()
    assert list(metrics["frames"])[-1] == run.summary["frames"]
    assert {"episodic_return_mean", "loss", "fps"} <= set(metrics)
    assert len(games["episodic_return"]) == run.summary["episodes"]


def test_a_run_draws_its_curve(run: polyplay.Run, tmp_path: Path):
    figure = run.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 2
    with pytest.raises(UserError, match=r"--out .*curve\.txt: must end in"):
        run.plot(tmp_path / "curve.txt")
    with pytest.raises(UserError, match=r"--out: .*curve\.png cannot be written: No such file or directory"):
        run.plot(tmp_path / "absent" / "curve.png")
