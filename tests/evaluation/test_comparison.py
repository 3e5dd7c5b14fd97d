"""`polyplay scores`: runs beside published scores, always with protocol and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli import main
from polyplay.core import files
from polyplay.core.errors import UserError
from polyplay.evaluation.scores import ScoresOptions, compare_runs, list_published, scores_of_runs
from polyplay.runs import directory


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
    assert row["normalised"] == 100.0
    assert row["interval"] == [8.3, 10.3]
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
    assert result["protocol"] == "human-starts (substitute)"
    assert result["baselines"]["name"] == "human-starts"
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
    assert rows["apex_humanstarts"]["median"] == 358.1
    assert len(rows) == 45


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
    assert main.main(["scores", path, "--place", "worst"]) == 2
    assert "--place: 'worst' given, allowed: final, best, training, snapshots" in capsys.readouterr().err
