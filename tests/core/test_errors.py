from __future__ import annotations

from polyplay.cli import arguments
from polyplay.core.errors import Finding

FOUND = [
    Finding("one", "ok", "all of it", "never shown"),
    Finding("two", "warning", "some of it", "do this"),
    Finding("three", "unseen", "nothing"),
]


def test_a_table_says_what_to_do_where_something_is_wrong_and_what_was_not_looked_at_in_one_row(capsys):
    unseen = [Finding(name, "unseen", "no step was made") for name in ("a", "b")]
    arguments.print_findings("title", [*unseen, *FOUND], {"key": "value", "longer": "v"}, "rule")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]
    rows = ["one ok all of it", "two warning some of it", "fix: do this"]
    assert (lines[0], lines[3:6], lines[-2:]) == ("title", rows, ["key value", "longer v"])
    assert {"three – nothing", "2 others – no step was made: a, b"} <= {*lines[6:]}
