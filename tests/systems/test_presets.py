"""Every preset against what its source says (published.toml): settings, and parameters of its network."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from polyplay import systems
from polyplay.core import tree
from polyplay.workers.crew import Crew

TABLE = tomllib.loads((Path(__file__).parent / "published.toml").read_text())
DOCS = Path(__file__).parents[2] / "docs" / "systems"
ABOUT = ("ours", "says", "differs")  # of a page
WIRED = ("parameters", "observation", "actions", "target_steps", "test_epsilon", "beta_end", "priority")
ALL = [(name, preset) for name in systems.ordinary() for preset in systems.load(name).PRESETS]


def said(name: str, preset: str) -> dict[str, Any]:
    """A preset's lines, with those of the one that it is like."""
    lines = dict(TABLE[name][preset])
    like = lines.pop("like", None)
    return ({} if like is None else said(name, like)) | lines


def wired(name: str, preset: str) -> dict[str, Any]:
    """The configuration, and what became of it in the wiring: every replica's share together."""
    page, crew = systems.load(name), Crew(0)
    config = page.PRESETS[preset]()
    system = page.build(config, crew)
    spec, net = system.envs.spec, system.policy()
    shown = {path: list(field.shape) for path, field in tree.leaves(spec.obs)}
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(config).items()}
    found = given | {"observation": shown.get("", shown), "test_epsilon": system.epsilon}
    found["parameters"] = sum(p.numel() for p in net.parameters())
    if not isinstance(spec.action, dict):
        found["actions"] = int(getattr(spec.action, "n", 0)) or spec.action.shape[0]
    learner = next(role for role in crew.roles if role.learner)
    if (replay := learner.drawn_replay) is not None:
        found["priority"] = getattr(replay.sampler, "alpha", 0.0)
        found["beta_end"] = getattr(replay.sampler, "last", 0.0) or getattr(replay.sampler, "beta", 0.0)
        updates = learner.spec.target * (1 if learner.spec.update.apart else learner.n)
        found["target_steps"] = updates * replay.batch / (replay.ratio or 1.0)
        whole = learner.n if learner.replay else 1
        if name in ("dqn", "rainbow", "accel_dqn"):
            found |= {"batch": whole * replay.batch, "capacity": whole * replay.capacity, "start": whole * replay.start}
    return found


def test_the_table_has_every_preset_of_every_page():
    there = [(name, preset) for name, page in TABLE.items() for preset in page if preset not in ABOUT]
    assert sorted(there) == sorted(ALL)


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_a_preset_has_the_numbers_of_its_source(name, preset):
    expected, found = said(name, preset), wired(name, preset)
    expected.pop("source")
    differs = {} if preset == "quick" else {k: v[0] for k, v in TABLE[name].get("differs", {}).items()}
    known = {k: found.get(k) for k in expected}
    assert known == {k: _about(k, v) for k, v in expected.items()}
    assert all(found[k] != v for k, v in differs.items()), f"{name}: no longer differs, so docs need not say so"
    placed = set(expected) | set(TABLE[name]["ours"]) | set(TABLE[name].get("differs", {}))
    placed |= {"target"} if "target_steps" in expected else set()
    fields = {f.name for f in dataclasses.fields(systems.load(name).Config)}
    assert fields <= placed, f"{name}: say in published.toml where these are from"
    assert placed - fields <= set(WIRED), f"{name}: published.toml names what is no field"


def _about(key: str, value: Any) -> Any:
    """A period in updates is rounded."""
    return pytest.approx(value, rel=0.01 if key == "target_steps" else 1e-9) if type(value) in (int, float) else value


@pytest.mark.parametrize("name", systems.ordinary())
def test_what_differs_is_named_in_the_docs(name):
    text = " ".join((DOCS / f"{name}.md").read_text().split())
    for words in [*TABLE[name].get("says", []), *(v[1] for v in TABLE[name].get("differs", {}).values())]:
        assert words in text, f"docs/systems/{name}.md does not say {words!r}"
