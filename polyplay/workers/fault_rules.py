"""Faults on purpose: the rules of `--chaos`, and which worker each takes when. Pure; fault_injection carries them out.

    --chaos kill=act:30,hang=learn:60:5,slow=act:4

kill=ROLE:SECONDS       kill -9 of a random worker of that role, every so many seconds on average
hang=ROLE:SECONDS:FOR   stopped for FOR seconds (SIGSTOP, then SIGCONT), likewise
slow=ROLE:FACTOR        one random worker gets 1/FACTOR of the time, for the whole run

ROLE `any`: of all roles; for kill, of those whose workers are replaced. `host`: another machine's agent. Gaps are
exponential; gaps and victims follow from the run's seed. Whoever is not back from one fault is spared until then, so
each fault's recovery is its own. A worker whose loss ends the run is only killed once this run has written a checkpoint
to go on from.

Imports no torch.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyplay.common.errors import UserError

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew, Role

HOST = "host"  # in place of a role: another machine, with all who are there
FORMS = {"kill": "kill=ROLE:SECONDS", "hang": "hang=ROLE:SECONDS:FOR", "slow": "slow=ROLE:FACTOR"}


@dataclass(frozen=True)
class FaultRule:
    kind: str  # of FORMS
    role: str  # or any
    period: float  # seconds between two, on average; 0 for slow
    amount: float  # hang: seconds; slow: factor; kill: 0

    def __str__(self) -> str:
        numbers = (f"{x:g}" for x in (self.period, self.amount) if x)
        return f"{self.kind}={':'.join((self.role, *numbers))}"


def parse_faults(text: str) -> list[FaultRule]:
    """The rules of `--chaos`. Raises UserError: one line."""
    rules = [_rule(part.strip(), text) for part in text.split(",")]
    if len({(r.kind, r.role) for r in rules}) < len(rules):
        raise UserError(f"--chaos: '{text}' has the same fault for the same role twice: leave one out")
    return rules


def _rule(part: str, text: str) -> FaultRule:
    kind, _, rest = part.partition("=")
    role, *numbers = rest.split(":")
    allowed = ", ".join(FORMS.values())
    try:
        values = [float(n) for n in numbers]
    except ValueError:
        values = []
    if kind not in FORMS or not role or len(values) != FORMS[kind].count(":"):
        given = f"'{part}'" if part == text else f"'{part}' in '{text}'"
        raise UserError(f"--chaos: {given} given, allowed: {allowed}, several with commas between")
    least = 1.0 if kind == "slow" else 0.0
    if not all(math.isfinite(v) and v > least for v in values):
        raise UserError(f"--chaos: '{part}' given, allowed: {FORMS[kind]} with numbers above {least:g}")
    if kind == "slow":
        return FaultRule(kind, role, 0.0, values[0])
    return FaultRule(kind, role, values[0], values[1] if kind == "hang" else 0.0)


def check_faults(rules: list[FaultRule], crew: Crew) -> None:
    """Whether a wired crew has workers for every rule. Raises UserError: one line."""
    for rule in rules:
        if rule.role == HOST:
            _check_host(rule, crew)
            continue
        named = [r for r in crew.roles if rule.role in (r.name, "any")]
        names = ", ".join(dict.fromkeys(r.name for r in crew.roles))
        if not named:
            raise UserError(f"--chaos: {rule} given, but no worker of this run is called so: allowed are {names}, any")
        if crew.serial or not any(r.on == "process" for r in named):
            raise UserError(f"--chaos: {rule} given, but these workers are threads here: it takes processes")
        if not any(applies_to(rule, r) for r in named):
            raise UserError(f"--chaos: {rule} given, but no lost worker of this run is replaced: name a role ({names})")


def _check_host(rule: FaultRule, crew: Crew) -> None:
    if crew.fleet is None:
        raise UserError(f"--chaos: {rule} given, but this run has no other machines: give --hosts too")
    if rule.kind == "slow":
        raise UserError(f"--chaos: {rule} given, allowed for a host: kill=host:SECONDS and hang=host:SECONDS:FOR")


def applies_to(rule: FaultRule, role: Role) -> bool:
    """Whether a rule takes workers of a role."""
    spared = rule.kind == "kill" and rule.role == "any" and role.on_loss == "fail"
    return role.on == "process" and rule.role in (role.name, "any") and not spared


class FaultSchedule:
    """When each rule strikes next, and whom: a pure function of seed, resumptions, and when it was asked."""

    def __init__(self, rules: list[FaultRule], seed: int, resumes: int = 0):
        self.rules = rules
        self._draws = [random.Random(f"{seed} {resumes} {rule}") for rule in rules]
        self.at = [self._gap(i) for i in range(len(rules))]

    def _gap(self, i: int) -> float:
        period = self.rules[i].period
        return self._draws[i].expovariate(1.0 / period) if period else 0.0

    def due(self, seconds: float) -> list[int]:
        """Rules whose time has come, `seconds` after the beginning. One that finds nobody stays due."""
        return [i for i, at in enumerate(self.at) if at <= seconds]

    def strike(self, i: int, victims: int, seconds: float) -> int:
        """Which of so many victims rule `i` takes; its next time is a gap later, a slow one has none."""
        chosen = self._draws[i].randrange(victims)
        self.at[i] = seconds + self._gap(i) if self.rules[i].period else math.inf
        return chosen
