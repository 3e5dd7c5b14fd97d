"""`polyplay scores`: runs beside published scores, always with protocol and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.cli import main
from polyplay.core import files
from polyplay.core.errors import UserError
from polyplay.core.numbers import aggregate
from polyplay.evaluation import scores
from polyplay.evaluation.scores import (
    BASELINES,
    ScoresOptions,
    baseline_scores,
    column,
    columns,
    compare_runs,
    list_published,
    normalise,
    normalised,
    protocol_of,
    scores_of_runs,
    source_of,
)
from polyplay.runs import directory
from tests.verbs import refused


def run(path: Path, env: str = "ALE/Pong-v5", place: str = "final", **scores: float) -> Path:
    """A run directory with a final score for each protocol."""
    path.mkdir(parents=True)
    told = {"system": "a2c", "config": {"env": env}, "options": {"seed": 0}, "sources": {}, "environment": {}}
    directory.write_config(path, told)
    entries = {
        f"evaluation-{name}": {
            "protocol": name.replace("_", "-").removesuffix("-substitute"),
            "label": f"{name.replace('_', '-')}".replace("-substitute", " (substitute)"),
            "episodic_return_mean": mean,
            "interval": [mean - 1, mean + 1],
            "episodes": 30,
            "epsilon": 0.05,
            "actions": "greedy" if mean > 15 else "sampled",
            "finished": "2026",
        }
        for name, mean in scores.items()
    }
    files.write_json(path / "scores.json", {place: entries})
    return path


def test_a_runs_score_stands_beside_the_published_ones_of_its_protocol(tmp_path: Path):
    result = compare_runs([run(tmp_path / "a", null_op=9.3)], ScoresOptions())
    assert (result["protocol"], result["place"], result["baselines"]["name"]) == ("null-op", "final", "nature")
    [row] = result["games"]
    assert row["game"] == "pong"
    assert (row["random"], row["human"]) == (-20.7, 9.3)
    assert (row["normalised"], row["interval"]) == (100.0, [8.3, 10.3])
    assert row["published"] == {"dqn_noop": 18.9, "gorila_noop": 18.3, "ddqn_5min_noop": 21.0}
    own, dqn, *_ = result["aggregates"]
    assert (own["agent"], own["games"], own["mean"]["value"], own["mean"]["low"]) == ("these runs", 1, 100.0, None)
    assert dqn["median"]["value"] == pytest.approx(132.0)
    assert result["notes"] == []


def test_runs_of_a_game_are_averaged_and_have_an_interval(tmp_path: Path):
    runs = [run(tmp_path / str(i), null_op_30min=x) for i, x in enumerate((10.0, 20.0))]
    runs.append(run(tmp_path / "b", "ALE/VideoPinball-v5", null_op_30min=17667.9))
    result = compare_runs(runs, ScoresOptions())
    pong, pinball = result["games"]
    assert (pong["runs"], pong["score"], pong["episodes"]) == (2, 15.0, 60)
    assert 10.0 <= pong["interval"][0] <= pong["interval"][1] <= 20.0
    assert (pinball["random"], pinball["normalised"]) == (0.0, 100.0)
    assert (pong["actions"], pinball["actions"]) == (["greedy", "sampled"], ["greedy"])
    assert result["notes"][0].startswith("video_pinball: the raw tables say")
    assert result["aggregates"][0]["games"] == 2
    table = compare_runs(runs, ScoresOptions(pinball="table", published=("apex_noop",)))
    assert table["games"][1]["random"] == 16256.9
    assert [a["agent"] for a in table["aggregates"]] == ["these runs", "apex_noop"]


def test_substitutes_stand_beside_no_published_score(tmp_path: Path):
    result = compare_runs([run(tmp_path / "a", human_starts_substitute=3.0)], ScoresOptions())
    assert (result["protocol"], result["baselines"]["name"]) == ("human-starts (substitute)", "human-starts")
    assert result["games"][0]["published"] == {}
    assert result["notes"] == ["human-starts (substitute): no published score was measured so"]


def test_training_returns_are_read_from_the_games(tmp_path: Path):
    path = run(tmp_path / "a", "toy:catch")
    with pytest.raises(UserError, match="has finished no game yet, so it has no training score"):
        compare_runs([path], ScoresOptions(place="training"))
    lines = [{"episodic_return": float(i), "frames": i} for i in range(101)]
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = compare_runs([path], ScoresOptions(place="training"))
    assert (result["protocol"], result["games"][0]["game"]) == ("training", "toy:catch")
    assert result["games"][0]["score"] == 50.5
    assert result["games"][0]["normalised"] is None
    assert result["aggregates"] == []
    assert result["notes"] == ["training returns, with exploration: published evaluations were not measured so"]


def test_scores_of_several_protocols_do_not_mix(tmp_path: Path):
    two = run(tmp_path / "a", null_op=1.0, sticky=2.0)
    one = run(tmp_path / "b", null_op_30min=3.0)
    with pytest.raises(UserError, match=r"--protocol: .* has final scores of null-op, sticky; name one"):
        scores_of_runs([two], "final", None)
    assert scores_of_runs([two], "final", "sticky")[0]["episodic_return_mean"] == 2.0
    with pytest.raises(
        UserError, match=r"its final scores are of null-op-30min; measure one with `polyplay evaluate .*"
    ):
        scores_of_runs([one], "final", "sticky")
    with pytest.raises(UserError, match="these runs have scores of null-op-30min, sticky; name one"):
        scores_of_runs([one, run(tmp_path / "c", sticky=1.0)], "final", None)
    with pytest.raises(UserError, match="it has no best score"):
        scores_of_runs([one], "best", None)


def test_what_is_missing_or_damaged_is_said(tmp_path: Path):
    path = run(tmp_path / "a", null_op=1.0)
    (path / "scores.json").write_text("{")
    with pytest.raises(UserError, match=r"scores.json is damaged"):
        scores_of_runs([path], "final", None)
    (path / "scores.json").unlink()
    with pytest.raises(UserError, match=r"has no scores.json; measure a score with `polyplay evaluate"):
        scores_of_runs([path], "final", None)


def test_all_published_columns_are_listed_with_their_aggregates():
    rows = {row["column"]: row for row in list_published(ScoresOptions())["columns"]}
    want = {"protocol": "null-op", "baselines": "nature", "games": 49, "median": 93.5, "mean": 241.1}
    assert {k: rows["dqn_noop"][k] for k in want} == want
    assert (rows["apex_humanstarts"]["median"], len(rows)) == (358.1, 45)


def test_the_command_prints_tables_or_json(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = str(run(tmp_path / "a", null_op=9.3))
    assert main.main(["scores", path, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["games"][0]["normalised"] == 100.0
    assert main.main(["scores", path]) == 0
    out = capsys.readouterr().out
    for part in ("null-op, final scores; % of nature: 49 games", "pong", "dqn_noop", "these runs"):
        assert part in out
    assert main.main(["scores"]) == 0
    assert "apex_humanstarts" in capsys.readouterr().out
    assert "--place: 'worst' given, allowed: final, best, training, snapshots" in refused(
        capsys, "scores", path, "--place", "worst"
    )


def found(name, baselines, pinball="published"):
    scores = normalise(column(name), BASELINES[baselines], pinball)
    made = aggregate({game: [score] for game, score in scores.items()})
    return len(scores), made["mean"].value, made["median"].value


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
    ],
)
def test_published_aggregates_reproduce(name, baselines, pinball, games, mean, median):
    n, is_mean, is_median = found(name, baselines, pinball)
    assert n == games
    assert is_median == pytest.approx(median, abs=0.51)
    assert mean is None or is_mean == pytest.approx(mean, abs=0.51)


def test_without_the_zero_in_video_pinball_they_do_not():
    assert found("apex_noop", "noop57", "table")[1] == pytest.approx(2321, abs=0.5)
    assert found("r2d2_noop", "noop57", "table")[1] == pytest.approx(5148, abs=0.5)
    assert baseline_scores(BASELINES["noop57"], "table")["video_pinball"] == (16256.9, 17667.9)
    assert baseline_scores(BASELINES["noop57"])["video_pinball"] == (0.0, 17667.9)
    assert {n: len(baseline_scores(b)) for n, b in BASELINES.items()} == {
        "nature": 49,
        "noop57": 57,
        "human-starts": 57,
    }
    low, high = baseline_scores(BASELINES["human-starts"], "table")["video_pinball"]
    assert low > high  # there more is less
    assert baseline_scores(BASELINES["nature"])["video_pinball"] == (16256.9, 17297.6)


def test_every_column_has_a_protocol_a_source_and_games_of_the_table():
    known = columns()
    assert len(known) == 47 - 8 + 6
    games = set(baseline_scores(BASELINES["noop57"]))
    for name, published in known.items():
        assert protocol_of(name) in ("null-op", "null-op-30min", "human-starts", "sticky"), name
        assert source_of(name), name
        assert set(published) <= games, name
    assert protocol_of("dqn_noop") == "null-op"
    assert source_of("dqn57_noop") == "Bellemare et al. 2017, appendix"
    assert (scores.TABLES / "SOURCES.md").read_text().startswith("# atari_scores.csv")


def test_games_are_named_as_ale_names_them():
    from polyplay.envs.atari import native_games as games

    assert set(baseline_scores(BASELINES["noop57"])) <= set(games().values())


@given(st.floats(-1e5, 1e5), st.floats(-1e4, 1e4), st.floats(1.0, 1e4), st.floats(0.1, 10.0), st.floats(-1e3, 1e3))
def test_normalisation_has_its_ends_and_ignores_scale_and_shift(score, random, width, scale, shift):
    human = random + width
    assert normalised(random, random, human) == 0.0
    assert normalised(human, random, human) == pytest.approx(100.0)
    moved = normalised(scale * score + shift, scale * random + shift, scale * human + shift)
    assert moved == pytest.approx(normalised(score, random, human), rel=1e-6, abs=1e-3)


def test_unknown_names_are_said_in_one_line():
    with pytest.raises(UserError, match=r"--published: 'apex' given.*`polyplay scores` lists all 45"):
        column("apex")
