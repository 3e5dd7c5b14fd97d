"""`polyplay scores`."""

from __future__ import annotations

import json
from pathlib import Path

from polyplay.cli.arguments import parse_words
from polyplay.evaluation.scores.comparison import ScoresOptions, compare_runs, list_published


def command(words: list[str]) -> None:
    """Prints the table of runs beside published scores, or of all published ones."""
    about = "RUN: directories of runs."
    runs, options, _ = parse_words(ScoresOptions, words, "polyplay scores [RUN …]", about, several=True)
    result = compare_runs([Path(r) for r in runs], options) if runs else list_published(options)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        from polyplay.evaluation.scores.tables import print_scores

        print_scores(result)
