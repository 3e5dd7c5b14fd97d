"""`polyplay runs --scores`: runs beside published scores, always with protocol and baselines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.cli import main
from polyplay.core import files
from polyplay.core.numbers import aggregate
from polyplay.envs.atari import native_games
from polyplay.evaluation.scores import (
    BASELINES,
    ScoresOptions,
    baseline_scores,
    column,
    columns,
    compare_runs,
    normalize,
    protocol_of,
    source_of,
)
from polyplay.runs import directory
from tests.verbs import refused


def run(path: Path, env: str = "ALE/Pong-v5", **scores: float) -> Path:
    """A run directory with a final score for each protocol."""
    path.mkdir(parents=True)
    told = {"system": "a2c", "config": {"env": env}, "options": {"seed": 0}, "sources": {}, "environment": {}}
    directory.write_config(path, told)
    for name, mean in scores.items():
        entry = {
            "protocol": name.replace("_", "-").removesuffix("-substitute"),
            "label": f"{name.replace('_', '-')}".replace("-substitute", " (substitute)"),
            "episodic_return_mean": mean,
            "interval": [mean - 1, mean + 1],
            "episodes": 30,
            "epsilon": 0.05,
            "actions": "greedy" if mean > 15 else "sampled",
            "finished": "2026",
        }
        files.write_json(path / f"evaluation-{name}.json", entry)
    return path


def test_runs_of_a_game_are_averaged_and_have_an_interval(tmp_path: Path):
    runs = [run(tmp_path / str(i), null_op_30min=x) for i, x in enumerate((10.0, 20.0))]
    runs.append(run(tmp_path / "b", "ALE/VideoPinball-v5", null_op_30min=17667.9))
    result = compare_runs(runs, ScoresOptions())
    pong, pinball = result["games"]
    assert (pong["runs"], pong["score"], pong["episodes"]) == (2, 15.0, 60)
    assert 10.0 <= pong["interval"][0] <= pong["interval"][1] <= 20.0
    assert (pinball["random"], pinball["normalized"]) == (0.0, 100.0)
    assert (pong["actions"], pinball["actions"]) == (["greedy", "sampled"], ["greedy"])
    assert result["notes"][0].startswith("video_pinball: random play scores")
    assert result["aggregates"][0]["games"] == 2
    table = compare_runs(runs, ScoresOptions(published=("apex_noop",)))
    assert [a["agent"] for a in table["aggregates"]] == ["these runs", "apex_noop"]


def test_substitutes_stand_beside_no_published_score(tmp_path: Path):
    result = compare_runs([run(tmp_path / "a", human_starts_substitute=3.0)], ScoresOptions())
    assert (result["protocol"], result["baselines"]["name"]) == ("human-starts (substitute)", "human-starts")
    assert result["games"][0]["published"] == {}
    assert result["notes"] == ["human-starts (substitute): no published score was measured like this"]


def test_training_returns_are_read_from_the_games(tmp_path: Path):
    path = run(tmp_path / "a", "toy:catch")
    lines = [{"episodic_return": float(i), "frames": i} for i in range(101)]
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = compare_runs([path], ScoresOptions(place="training"))
    [row] = result["games"]
    assert (result["protocol"], result["aggregates"]) == ("training", [])
    assert (row["game"], row["score"], row["normalized"]) == ("toy:catch", 50.5, None)
    assert result["notes"] == ["training returns, with exploration: published evaluations were measured differently"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("TWO", "--protocol: TWO has final scores of null-op, sticky; choose one"),
        (
            "ONE --protocol sticky",
            "ONE: its final scores are of null-op-30min; measure one with `polyplay evaluate ONE",
        ),
        ("ONE STICKY", "--protocol: these runs have scores of null-op-30min, sticky, which do"),
        ("ONE --place best", "ONE: it has no best score; measure one with `polyplay evaluate ONE`"),
        ("ONE --place training", "ONE: it has no training score; measure one with"),
        ("NONE", "NONE: it has no final score; measure one with `polyplay evaluate NONE`"),
        ("DAMAGED", "evaluation-sticky.json is damaged"),
        ("ONE --place worst", "--place: 'worst' given, allowed: final, best, training, snapshots"),
        ("ONE --published rainbow_nop", "--published: 'rainbow_nop' given, did you mean 'rainbow_noop'?"),
    ],
)
def test_scores_that_do_not_mix_or_are_missing_are_one_line(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run(Path("TWO"), null_op=1.0, sticky=2.0), run(Path("ONE"), null_op_30min=3.0), run(Path("STICKY"), sticky=1.0)
    (run(Path("DAMAGED"), sticky=1.0) / "evaluation-sticky.json").write_text("{")
    run(Path("NONE"))
    assert says in refused(capsys, "runs", "--scores", *words.split())


def test_a_runs_score_stands_beside_the_published_ones_of_its_protocol(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = str(run(tmp_path / "a", null_op=9.3, sticky=2.0))
    assert main.main(["runs", path, "--scores", "--protocol", "null-op", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["protocol"], result["place"], result["baselines"]["name"]) == ("null-op", "final", "nature")
    [row] = result["games"]
    assert (row["game"], row["random"], row["human"], row["normalized"]) == ("pong", -20.7, 9.3, 100.0)
    assert row["interval"] == [8.3, 10.3]
    assert row["published"] == {"dqn_noop": 18.9, "gorila_noop": 18.3, "ddqn_5min_noop": 21.0}
    own, dqn, *_ = result["aggregates"]
    assert (own["agent"], own["games"], own["mean"]["value"], own["mean"]["low"]) == ("these runs", 1, 100.0, None)
    assert (dqn["median"]["value"], result["notes"]) == (pytest.approx(132.0), [])
    assert main.main(["runs", path, "--scores", "--protocol", "null-op"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("null-op, final scores; % of nature: 49 games")
    assert "pong sampled 1 30 0.05 9.3 8.3 … 10.3 100.0 -20.7 9.3 18.9 18.3 21.0" in lines
    assert "these runs 1 100.0 100.0 100.0" in lines


def test_all_published_columns_are_listed_with_their_aggregates(capsys: pytest.CaptureFixture):
    assert main.main(["runs", "--scores", "--json"]) == 0
    rows = {row["column"]: row for row in json.loads(capsys.readouterr().out)["columns"]}
    want = {"protocol": "null-op", "baselines": "nature", "games": 49, "median": 93.5, "mean": 241.1}
    assert {k: rows["dqn_noop"][k] for k in want} == want
    assert (rows["apex_humanstarts"]["median"], len(rows)) == (358.1, 45)
    assert main.main(["runs", "--scores"]) == 0
    assert "dqn_noop null-op nature 49 93.5" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "baselines", "pinball", "games", "mean", "median"),
    [
        # as published: Mnih et al. 2015, Nair et al. 2015, van Hasselt et al. 2016
        ("dqn_noop", "nature", "published", 49, 241, 93.5),
        ("ddqn_5min_noop", "nature", "published", 49, 330, 114.7),
        ("dqn_humanstarts", "human-starts", "table", 49, 122, 47.5),
        ("gorila_humanstarts", "human-starts", "table", 49, 215.2, 71.3),
        # Mnih et al. 2016
        ("a3c_humanstarts", "human-starts", "published", 57, 496.8, 116.6),
        # Horgan et al. 2018
        ("apex_noop", "noop57", "published", 57, 1694.9, 434),
        ("apex_humanstarts", "human-starts", "published", 57, 1590, 358),
        # the fact sheets' other rows
        ("rainbow_noop", "noop57", "published", 54, 765, 227),
        ("iqn_noop", "noop57", "published", 57, 1110, 238),
        ("impala_noop", "noop57", "published", 57, 957.6, 191.8),
        ("r2d2_noop", "noop57", "published", 57, 4024.9, 1922.7),
        ("dopamine_dqn_sticky", "noop57", "published", 55, None, 65.0),
        ("dopamine_rainbow_sticky", "noop57", "published", 55, None, 148.4),
        # without the zero in video_pinball they do not come out
        ("apex_noop", "noop57", "table", 57, 2321, 434),
        ("r2d2_noop", "noop57", "table", 57, 5148, 1922.7),
    ],
)
def test_published_aggregates_reproduce(name, baselines, pinball, games, mean, median):
    ends = baseline_scores(baselines)
    if pinball == "table":  # random play's score as the raw tables have it
        ends["video_pinball"] = {"noop57": 16256.9, "human-starts": 20452.0}[baselines], ends["video_pinball"][1]
    scores = normalize(column(name), ends)
    found = aggregate({game: [score] for game, score in scores.items()})
    assert len(scores) == games
    assert found["median"].value == pytest.approx(median, abs=0.51)
    assert mean is None or found["mean"].value == pytest.approx(mean, abs=0.51)


def test_baselines_columns_and_games_of_the_tables():
    assert {name: len(baseline_scores(name)) for name in BASELINES} == {"nature": 49, "noop57": 57, "human-starts": 57}
    assert baseline_scores("noop57")["video_pinball"] == (0.0, 17667.9)
    assert baseline_scores("nature")["video_pinball"] == (16256.9, 17297.6)
    games = set(baseline_scores("noop57"))
    assert games <= set(native_games().values()), "as ALE names them"
    for name, published in columns().items():
        assert protocol_of(name) in ("null-op", "null-op-30min", "human-starts", "sticky"), name
        assert source_of(name), name
        assert set(published) <= games, name
    assert source_of("dqn57_noop") == "Bellemare et al. 2017, appendix"


@given(st.floats(-1e5, 1e5), st.floats(-1e4, 1e4), st.floats(1.0, 1e4), st.floats(0.1, 10.0), st.floats(-1e3, 1e3))
def test_normalization_has_its_ends_and_ignores_scale_and_shift(score, random, width, scale, shift):
    ends = {"pong": (random, random + width)}
    assert normalize({"pong": random, "none": 1.0}, ends) == {"pong": 0.0}
    assert normalize({"pong": random + width}, ends)["pong"] == pytest.approx(100.0)
    moved = {"pong": tuple(scale * x + shift for x in ends["pong"])}
    again = normalize({"pong": scale * score + shift}, moved)["pong"]
    assert again == pytest.approx(normalize({"pong": score}, ends)["pong"], rel=1e-6, abs=1e-3)
