"""Scores of runs: what is written down, where it stands, and that the same questions give the same answers."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from polyplay import systems
from polyplay.acting.play import PlayedGame
from polyplay.cli import main
from polyplay.core import files, processes
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.envs import atari
from polyplay.evaluation import evaluate
from polyplay.evaluation import scores as evaluate_
from polyplay.evaluation.evaluate import EvaluateOptions, GamesWatch, Window
from polyplay.runs import directory, load
from polyplay.systems import a2c
from tests import made
from tests.verbs import refused


def short(monkeypatch, name="null-op", frames=240):
    """A protocol whose games are soon over."""
    how = atari.PROTOCOLS[name]
    monkeypatch.setitem(atari.PROTOCOLS, name, replace(how, options={**how.options, "max_frames": frames}))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return made.run(tmp_path / "run", network="mlp")


def test_a_score_carries_all_that_a_repetition_needs(toy: Path):
    result = evaluate.evaluate(toy, EvaluateOptions(episodes=6, seed=3, epsilon=0.25))
    file = toy / "evaluation-000000000007-steps-140-eps0.25-seed3.json"
    assert json.loads(file.read_text()) == files.to_plain(result)
    config = directory.read_config(toy)
    want = {
        "system": "a2c", "env": "toy:catch", "game": None, "protocol": "run", "label": "run",
        "checkpoint": "000000000007-steps-140", "frames_trained": 140, "seed": 3, "episodes": 6, "lanes": 6,
        "epsilon": 0.25, "actions": "sampled", "starts": None, "trained_seed": 0, "machine": config["machine"],
        "config_hash": directory.config_hash(config),
    }  # fmt: skip
    assert {k: result[k] for k in want} == want
    assert result["versions"]["polyplay"] == config["versions"]["polyplay"]
    assert len(result["checkpoint_sha256"]) == 64
    low, high = result["interval"]
    assert low <= result["episodic_return_mean"] == np.mean(result["returns"]) <= high


def test_the_same_question_has_the_same_answer(toy: Path):
    once, again, other = (evaluate.evaluate(toy, EvaluateOptions(seed=seed))["returns"] for seed in (0, 0, 1))
    assert len(once) == 30, "the protocol's number"
    assert once == again
    assert once != other
    assert evaluate.evaluate(toy, EvaluateOptions(episodes=2, greedy=True))["actions"] == "greedy"


def test_final_best_and_training_returns_stand_in_three_places(tmp_path: Path):
    run = made.run(tmp_path / "run", updates=(3, 5, 7), network="mlp")
    page, settings, options, _ = load.load_run(run)
    made.save(run, page.build(settings, load.crew_of(options)).policy, 3, mean=0.5)
    made.games(run, [-1.0] * 50 + [1.0] * 100)
    for episodes, which in ((4, None), (4, "best"), (5, "5")):
        evaluate.evaluate(run, EvaluateOptions(episodes=episodes, checkpoint=which))

    def scores(place: str) -> list[Row]:
        return evaluate_.scores_of_runs([run], place, None)

    assert [score["checkpoint"] for score in scores("final")] == ["000000000007-steps-140"]
    assert [score["checkpoint"] for score in scores("best")] == ["000000000003-steps-60"]
    assert [score["episodes"] for score in scores("snapshots")] == [5]
    (training,) = evaluate_.training_scores(run)
    assert (training["episodic_return_mean"], training["episodes"], training["interval"]) == (1.0, 100, (1.0, 1.0))
    (run / "summary.json").unlink()  # it goes on, and has no final score any more
    evaluate.evaluate(run, EvaluateOptions(episodes=3))
    with pytest.raises(UserError, match="it has no final score"):
        scores("final")


def test_a_page_may_have_an_epsilon_of_its_own_on_atari_games(toy: Path, monkeypatch: pytest.MonkeyPatch):
    build = a2c.build
    monkeypatch.setattr(a2c, "build", lambda c, crew: replace(build(c, crew), epsilon=0.05))
    assert evaluate.evaluate(toy, EvaluateOptions(episodes=2))["epsilon"] == 0.0
    monkeypatch.setattr(systems.System, "test_epsilon", property(lambda system: system.epsilon))
    assert evaluate.evaluate(toy, EvaluateOptions(episodes=2))["epsilon"] == 0.05
    assert evaluate.evaluate(toy, EvaluateOptions(episodes=2, epsilon=0.0))["epsilon"] == 0.0


def test_pong_by_the_null_op_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    short(monkeypatch)
    run = made.run(tmp_path / "run", "ALE/Pong-v5", network="a3c")
    result = evaluate.evaluate(run, EvaluateOptions(episodes=2, protocol="null-op", epsilon=0.05))
    assert (run / "evaluation-000000000007-steps-140-null-op-eps0.05-seed0.json").is_file()
    assert (result["game"], result["protocol"], result["label"]) == ("pong", "null-op", "null-op")
    assert result["episodic_length_mean"] == 60  # 240 frames
    assert (result["environment"]["no-ops"], result["environment"]["max frames"]) == ("0–30 frames", "240")


def test_a_film_that_fails_does_not_lose_the_score(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = made.run(tmp_path / "run", "toy:memory", network="mlp")
    result = evaluate.evaluate(run, EvaluateOptions(episodes=3, video=True))
    assert (result["episodes"], result["video"]) == (3, None)
    assert capsys.readouterr().err.startswith("polyplay: --video: needs image observations")
    assert len(evaluate_.read_evaluations(run)) == 1


def test_it_ends_after_so_many_steps_with_the_games_that_are_over(toy: Path):
    whole = evaluate.evaluate(toy, EvaluateOptions(episodes=40, seed=5))
    for file in toy.glob("evaluation-*"):
        file.unlink()
    result = evaluate.evaluate(toy, EvaluateOptions(episodes=40, seed=5, max_steps=16 * 12))
    assert (result["ended"], result["asked"]) == ("--max-steps 192 are over", 40)
    assert 0 < result["episodes"] == len(result["returns"]) < 40
    assert set(result["returns"]) <= set(whole["returns"])
    assert not list(toy.glob("evaluation-*")), "of short games alone: no score to keep"
    assert "ended" not in evaluate.evaluate(toy, EvaluateOptions(episodes=4, max_steps=10_000))
    with pytest.raises(UserError, match="--max-steps 1 are over: no game has finished, so there is no score"):
        evaluate.evaluate(toy, EvaluateOptions(episodes=40, max_steps=1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_the_games_that_are_over(toy: Path, number: int, capfd: pytest.CaptureFixture):
    class Impatient(GamesWatch):
        def step(self, found, lanes):
            if self.steps == 16 * 12:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)  # schedulers send several at once
            return super().step(found, lanes)

    before, watch = signal.getsignal(number), Impatient()
    result = evaluate.evaluate(toy, EvaluateOptions(episodes=40), watch=watch)
    assert (result["ended"], watch.signal) == (f"stopped by {signal.Signals(number).name}", number)
    assert 0 < result["episodes"] < 40
    assert signal.getsignal(number) is before
    assert not list(toy.glob("evaluation-*"))
    assert capfd.readouterr().err.count("a second signal, at least 1 s later, ends without a score") == 1


def test_a_second_signal_drops_everything_if_it_comes_later(toy: Path, monkeypatch, capfd: pytest.CaptureFixture):
    class Stuck(GamesWatch):
        def step(self, found, lanes):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            monkeypatch.setattr(processes, "AGAIN", 0.0)
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it went on")

    monkeypatch.setattr(evaluate, "GamesWatch", Stuck)
    assert main.main(["evaluate", str(toy), "--episodes", "40"]) == 143
    assert "polyplay: ended by SIGTERM" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, terminal: bool):
    game = PlayedGame(2.0, 9, 0)
    monkeypatch.setattr(evaluate, "EVERY", 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    watch = GamesWatch()
    with watch.on_screen(3, console):
        assert watch.step([], 2)
        assert watch.step([game, game], 2)
    text = console.file.getvalue()
    if terminal:
        assert "2/3" in text
        assert "mean return 2.00 · 4 steps" in text
    else:
        lines = ["0 of 3 games · no game has ended yet · 2 steps", "2 of 3 games · mean return 2.00 · 4 steps"]
        assert text.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--protocol", "nullop"), "--protocol: 'nullop' given, allowed: run, null-op, "),
        (("--starts", "x.json"), "--starts x.json is for --protocol human-starts, run given"),
    ],
)
def test_a_mistake_is_one_line(toy: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture):
    assert says in refused(capsys, "evaluate", toy, *words)


class Rendering:
    """A pool that renders."""

    def __init__(self, rate: float):
        self.rate = rate

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        shown = np.zeros((30, 50, 3), np.uint8)
        shown[:, :25] = 200, 100, 50
        return shown, self.rate


@pytest.fixture
def pygame(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    found = pytest.importorskip("pygame")
    found.display.quit()  # an environment of an earlier test may have chosen another driver
    return found


def test_a_window_shows_what_is_rendered_at_its_rate(pygame: Any) -> None:
    with closing(Window("polyplay X")) as window:
        begun = time.monotonic()
        for _ in range(6):
            window({}, Rendering(50.0))
        assert time.monotonic() - begun >= 4 / 50
        surface = pygame.display.get_surface()
        assert (surface.get_size(), surface.get_at((10, 10))[:3]) == ((50, 30), (200, 100, 50))
        assert surface.get_at((40, 10))[:3] == (0, 0, 0)
        assert pygame.display.get_caption()[0] == "polyplay X"


def test_games_go_on_once_it_is_closed(pygame: Any) -> None:
    with closing(Window("polyplay X")) as window:
        window({}, Rendering(1000.0))
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        for _ in range(2):
            window({}, Rendering(1000.0))
            assert pygame.display.get_surface() is None


@pytest.mark.parametrize("driver", [None, "no such driver"])
def test_where_there_is_no_screen_it_says_so(pygame: Any, monkeypatch: pytest.MonkeyPatch, driver: str | None) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with pytest.raises(UserError, match=r"--render: no window can be opened here .*; --video writes a file instead"):
        Window("polyplay X")


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UserError, match=r"--render: needs the package pygame; `pip install .*\[render\]'`"):
        Window("polyplay X")
