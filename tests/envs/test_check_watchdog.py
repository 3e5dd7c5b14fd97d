from __future__ import annotations

from tests.envs import broken
from tests.envs.broken import look


def test_what_hangs_or_dies_has_told_how_far_it_came():
    tried = look(broken.Hangs, step_timeout=1.0)
    assert tried.broke["hang"].startswith("step 5 took longer than 1 s (broken.py:")
    assert (tried.whole, tried.facts.steps) == (False, 5)
    tried = look(broken.Dies)
    assert tried.broke == {"crash": "step 5 ended its process: exit status 3"}
