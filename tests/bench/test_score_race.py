"""bench/score_race.py: when a racer has arrived, what is said where none did, and that its table is well-formed."""

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import score_race  # noqa: E402


def row(who, reached=None, best=None, last=None, ended=600.0):
    return {"who": who, "reached_s": reached, "best": best, "last": last, "ended_s": ended}


def test_a_racer_arrives_with_the_game_that_brings_the_mean_of_its_last_100_to_18():
    curve = score_race.Curve()
    curve.add(1.0, 1000.0, [21.0] * 99)
    assert curve.reached is None, "99 games are not 100"
    curve.add(2.0, 2000.0, [-279.0] + [21.0] * 99)
    assert curve.best == 18.0
    assert curve.reached == {"seconds": 2.0, "frames": 2000.0}
    assert curve.games == 100, "nothing after the goal counts"
    curve.add(3.0, 3000.0, [-21.0] * 5)
    assert len(curve.row()["curve"]) == 2
    assert curve.row()["curve"][-1] == {"seconds": 2.0, "frames": 2000.0, "games": 100, "mean": 18.0}


def test_games_fall_out_of_the_window_and_the_best_mean_stays():
    curve = score_race.Curve()
    curve.add(1.0, 1000.0, [-20.0] * 100)
    curve.add(2.0, 2000.0, [10.0] * 100)
    curve.add(3.0, 3000.0, [-20.0] * 50)
    assert (curve.best, curve.row()["last"], curve.row()["reached_s"]) == (10.0, -5.0, None)


def test_a_peer_that_arrived_is_compared_by_the_median_of_its_seeds():
    rows = [row("ppo", 200.0), row("ppo", 300.0), row("ppo", 220.0), row("sb3 A2C", 900.0), row("sb3 PPO", 1100.0)]
    assert score_race.first(rows, ours=True) == ("ppo", 220.0, True)
    assert score_race.first(rows, ours=False) == ("sb3 A2C", 900.0, True)
    text = "\n".join(score_race.judged(rows))
    assert "**3.67 minutes**, target ≤ 15: met" in text
    assert "sb3 A2C: 15.00 minutes, **4.09** times ours, target ≥ 2: met" in text


def test_a_race_that_no_peer_finished_gives_a_bound_and_says_so():
    rows = [row("ppo", 200.0), row("sb3 A2C", best=-19.8, last=-19.8), row("sb3 PPO", last=-20.5)]
    assert score_race.first(rows, ours=False) == ("sb3 A2C", 600.0, False)
    text = "\n".join(score_race.judged(rows))
    assert "no peer reached 18; best mean -19.8, by sb3 A2C" in text
    assert "A bound, not a time: **≥ 3.00** times ours, target ≥ 2: met" in text
    short = [row("ppo", 200.0), row("sb3 A2C", best=-19.8, last=-19.8, ended=300.0)]
    assert "open: a longer cap would tell" in "\n".join(score_race.judged(short))
