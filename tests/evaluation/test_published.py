"""The published aggregates come out of the raw tables, with the baselines that were used for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.numbers import aggregate
from polyplay.evaluation import scores
from polyplay.evaluation.scores import BASELINES, baseline_scores, column, columns, normalise, normalised


def found(name, baselines, pinball="published"):
    scores = normalise(column(name).scores, BASELINES[baselines], pinball)
    made = aggregate({game: [score] for game, score in scores.items()})
    return len(scores), made["mean"].value, made["median"].value


@pytest.mark.parametrize(
    ("name", "baselines", "pinball", "games", "mean", "median"),
    [
        # as published: Mnih et al. 2015, Nair et al. 2015, van Hasselt et al. 2016
        ("dqn_noop", "nature", "published", 49, 241, 93.5),
        ("gorila_noop", "nature", "published", 49, 495, 96.4),
        ("ddqn_5min_noop", "nature", "published", 49, 330, 114.7),
        ("dqn_humanstarts", "human-starts", "table", 49, 122, 47.5),
        ("gorila_humanstarts", "human-starts", "table", 49, 215.2, 71.3),
        ("gorila_humanstarts", "human-starts", "published", 49, None, 78),
        # Mnih et al. 2016
        ("a3c_ff_1day_humanstarts", "human-starts", "published", 57, 344.1, 68.2),
        ("a3c_humanstarts", "human-starts", "published", 57, 496.8, 116.6),
        ("a3c_lstm_humanstarts", "human-starts", "published", 57, 623.0, 112.6),
        # Horgan et al. 2018
        ("apex_noop", "noop57", "published", 57, 1694.9, 434),
        ("apex_humanstarts", "human-starts", "published", 57, 1590, 358),
        # the fact sheets' other rows
        ("per_prop_ddqn_humanstarts", "human-starts", "published", 57, 463.9, 127.6),
        ("prior_dueling_noop", "noop57", "published", 57, 591.9, 172.1),
        ("c51_noop", "noop57", "published", 57, 701, 177.7),
        ("rainbow_noop", "noop57", "published", 54, 765, 227),
        ("qr_dqn_1_noop", "noop57", "published", 57, 915, 211),
        ("iqn_noop", "noop57", "published", 57, 1110, 238),
        ("impala_shallow_noop", "noop57", "published", 57, 466, 93.2),
        ("impala_noop", "noop57", "published", 57, 957.6, 191.8),
        ("impala_multitask_noop", "noop57", "published", 57, 177, 59.7),
        ("r2d2_noop", "noop57", "published", 57, 4024.9, 1922.7),
        ("dopamine_dqn_sticky", "noop57", "published", 55, None, 65.0),
        ("dopamine_dqn_adam_mse_in_jax_sticky", "noop57", "published", 55, None, 97.5),
        ("dopamine_c51_sticky", "noop57", "published", 55, None, 109.1),
        ("dopamine_iqn_sticky", "noop57", "published", 55, None, 124.9),
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
    low, high = baseline_scores(BASELINES["human-starts"], "table")["video_pinball"]
    assert low > high  # there more is less
    assert baseline_scores(BASELINES["nature"])["video_pinball"] == (16256.9, 17297.6)


def test_the_wrong_baselines_change_the_conclusion():
    assert found("dqn_noop", "nature")[1] == pytest.approx(241, abs=0.5)
    assert found("dqn_noop", "noop57", "table")[1] == pytest.approx(212, abs=0.5)


def test_gorila_beats_dqn_on_41_of_49_games_under_human_starts_alone():
    for protocol, games in (("humanstarts", 41), ("noop", 31)):
        gorila, dqn = (column(f"{who}_{protocol}").scores for who in ("gorila", "dqn"))
        assert gorila.keys() == dqn.keys()
        assert sum(gorila[g] > dqn[g] for g in gorila) == games


def test_three_sets_of_baselines_stay_apart():
    human = {name: baseline_scores(kept)["alien"][1] for name, kept in BASELINES.items()}
    assert human == {"nature": 6875.4, "noop57": 7127.7, "human-starts": 6371.3}
    assert {name: len(baseline_scores(kept)) for name, kept in BASELINES.items()} == {
        "nature": 49,
        "noop57": 57,
        "human-starts": 57,
    }


def test_every_column_has_a_protocol_a_source_and_games_of_the_table():
    known = columns()
    assert len(known) == 47 - 8 + 6
    games = set(baseline_scores(BASELINES["noop57"]))
    for name, kept in known.items():
        assert kept.protocol in ("null-op", "null-op-30min", "human-starts", "sticky"), name
        assert kept.source, name
        assert set(kept.scores) <= games, name
    assert known["dqn_noop"].protocol == "null-op"
    assert known["dqn57_noop"].source == "Bellemare et al. 2017, appendix"
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
