"""Findings of checks (`polyplay check`, `doctor`): a line each, for people or as JSON. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failed", "unseen"]


@dataclass(frozen=True)
class Finding:
    name: str
    level: Level
    seen: str
    fix: str = ""


def status(findings: Sequence[Finding]) -> int:
    """The exit status: 1 where something failed."""
    return int(any(f.level == "failed" for f in findings))


def as_json(findings: Sequence[Finding], more: Mapping[str, object], key: str) -> str:
    """One JSON object: `more`, whether all is well, and the findings under `key`."""
    rows = [dataclasses.asdict(f) for f in findings]
    return json.dumps({**more, "ok": not status(findings), key: rows}, indent=2, ensure_ascii=False)
