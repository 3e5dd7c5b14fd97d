"""The generated parts of the documentation are what the code says now."""

from __future__ import annotations

from pathlib import Path

from docs import generate
from polyplay import systems
from polyplay.buffers import replay_worker
from polyplay.cli import main
from polyplay.learning import losses, value_losses
from polyplay.runs import reporter
from tests.reports import KEYS

PAGE = generate.ROOT / "docs" / "systems" / "a2c.md"


def test_every_generated_part_is_current():
    assert generate.stale() == [], "run: python docs/generate.py"


def test_a_part_that_is_not_current_is_found_and_written(tmp_path: Path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- generated: systems source -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.command(["--check"]) == 1
    assert "README.md: not current" in capsys.readouterr().out
    assert "old" in page.read_text()
    assert generate.command([]) == 0
    assert generate.command(["--check"]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- generated: systems source -->\n\n| system | source |")
    assert text.endswith("<!-- end -->\nafter\n")


def test_fields_have_their_default_meaning_and_choices():
    text = generate.fields_of(PAGE, "a2c")
    assert "| `learning_rate` | `7e-4` | learning rate at the start; see `--anneal`; above 0 |" in text
    assert "| `core` | `none` | recurrent core; temporal: FTW's two LSTMs; `none`, `lstm`, `gru`, `temporal` |" in text
    assert "| `frames` | `320M` |" in text
    for name in systems.names():
        assert "|  |\n" not in generate.fields_of(PAGE, name) + "\n", f"{name}: a field without a meaning"


def test_presets_show_only_what_they_change():
    text, tuned = generate.presets_of(PAGE, "a3c").split("Presets that a run chooses by its environment")
    assert "| field | `paper` | `lstm` | `unreal` | `quick` |" in text
    assert "| `core` | `none` | `lstm` | `lstm` |  |" in text
    assert "`gamma`" not in text
    assert "| field | `classic` |" in tuned
    assert "| `gamma` | `0.98` |" in tuned
    tuned = generate.presets_of(PAGE, "sac")
    assert "- `images`, `CarRacing-v3`: `--stack 2`, `--gray`, `--size 64`, `--frame-skip 2`." in tuned
    assert "- `classic`, `CartPole-v1`: `--entropy 0.1`, `--frames 50k`." in tuned


def test_the_method_that_a_loss_inherits_is_described():
    assert "### PPO.score\n\n```text\nscore(self, out: Batch" in generate.extend(PAGE)


def test_every_verb_is_in_the_reference():
    text = (generate.ROOT / "docs" / "reference" / "command_line.md").read_text()
    for verb in main.VERBS:
        assert f"\n## {verb}\n" in text


def test_every_metric_is_described():
    text = (generate.ROOT / "docs" / "reference" / "metrics.md").read_text()
    learnt = {k for module in (value_losses, losses) for c in vars(module).values() for k in named(c)}
    for key in {*KEYS, *learnt, *replay_worker.REPLAY_METRICS, *reporter.POLYPLAY}:
        assert f"`{key}`" in text or key.startswith("replay_priority_p"), key


def named(loss: object) -> tuple[str, ...]:
    """The metrics of a class of losses."""
    names = getattr(loss, "metrics", ()) if isinstance(loss, type) else ()
    return names if isinstance(names, tuple) else ()
