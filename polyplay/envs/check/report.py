"""`polyplay check ENV`: one environment against every rule of `envs/rules`, in processes of its own. Imports no torch.

Trials of one lane each with the same random actions (a lane, the same once more with sets in another order, another
lane, the first one beside another), then a pool of as many processes as there are cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from polyplay.common.errors import EnvFailure, UserError
from polyplay.common.findings import Finding, status
from polyplay.common.machine import cores
from polyplay.envs import rules
from polyplay.envs.action_range import describe_scaling
from polyplay.envs.check import beside, match_trial, random_play, trial
from polyplay.envs.check.trial import TrialFacts
from polyplay.envs.check.verdicts import card_of, differ, failed, finding
from polyplay.envs.check.watchdog import TrialResult, run_watched
from polyplay.envs.make import whole_matches
from polyplay.envs.pool import Envs, EnvSpec, Factory
from polyplay.envs.pools.client import pickled_factory
from polyplay.envs.pools.turn import LaneJob

STEPS, SECONDS = 1000, 10.0  # of one trial, without --steps
LANES = 2  # of each process of the pool that is measured


@dataclass(frozen=True)
class CheckReport:
    environment: str
    findings: list[Finding]
    card: dict[str, str]

    @property
    def status(self) -> int:
        return status(self.findings)


def check_env(
    env: str | Factory,
    *,
    options: Mapping[str, object] | None = None,
    wrappers: tuple[str, ...] = (),
    steps: int | None = None,
    step_timeout: float = 60.0,
    seed: int = 0,
    measure: float = 1.0,
) -> CheckReport:
    """Check `env`, as `--env` takes it; `options` and `wrappers` as for `Envs`. `measure`: seconds that the pool's pace
    is measured.

    Raises UserError: no such environment.
    """
    envs = Envs(env, 1, step_timeout=step_timeout, options=options or {}, wrappers=wrappers)
    checker = EnvChecker(envs, seed, steps or STEPS, float("inf") if steps else SECONDS)
    first = checker.trial(0)
    again = other = TrialResult(facts=TrialFacts())  # not made
    shared = ""
    if first.whole and first.facts.steps:
        again, other = checker.trial(0, reordered=True), checker.trial(1)
        shared = "" if first.broke else checker.shared(first.facts, again.facts)
    trials = first, again, other
    broke = other.broke | again.broke | first.broke | ({"copies": shared} if shared else {})
    findings = [finding(name, broke, trials, step_timeout) for name in checker.rules]
    card = card_of(first, checker.own) if first.card else {}
    if first.facts.steps and not status(findings):
        card["one lane"] = f"{first.facts.steps / max(first.facts.step_sum, 1e-9):,.0f} steps/s"
        tried = checker.pool(measure)
        card |= tried.card
        findings = [failed(f.name, tried.broke[f.name]) if f.name in tried.broke else f for f in findings]
    return CheckReport(envs.title, findings, card)


def learners_of(spec: EnvSpec) -> str:
    """Which kinds of systems take its actions, and which do not."""
    values, deterministic = rules.values_flaw(spec.action), rules.deterministic_flaw(spec.action)
    kinds = {"policies (a2c, ppo, impala, …)": "", "values (dqn, apex, …)": values, "apex_dpg": deterministic}
    right = [kind for kind, flaw in kinds.items() if not flaw]
    return "; not ".join([", ".join(right), *(f"{kind}: {flaw}" for kind, flaw in kinds.items() if flaw)])


class EnvChecker:
    """Starts the trials of one environment, and watches them."""

    def __init__(self, envs: Envs, seed: int, steps: int, seconds: float):
        self.envs, self.seed, self.steps, self.seconds = envs, seed, steps, seconds
        self.refused = False  # for what several players do
        self.described = False

    @property
    def own(self) -> bool:
        """Whether its pool is one of ours, whose lanes are no environments by themselves."""
        return self.envs.title.startswith(("ALE/", "toy:", "game:", "arena:", "envpool:")) or self.envs.spec.vector

    @property
    def rules(self) -> list[str]:
        """Those that are of such an environment."""
        several = self.refused or (self.described and self.envs.spec.seats > 1)
        return [name for name, rule in rules.RULES.items() if several or not rule.players]

    def trial(self, lane: int, reordered: bool = False) -> TrialResult:
        """One lane by itself; reordered: with sets in another order. Raises UserError: no such environment."""
        envs = self.envs
        try:
            envs = self.envs = whole_matches(envs)  # one is built, in a process of its own
            spec, self.described = envs.spec, True
        except UserError as e:
            rule = rules.rule_of(str(e))
            if rule is None:
                raise
            self.refused = rules.RULES[rule].players
            return TrialResult(broke={rule: rules.without_rule(str(e))}, facts=TrialFacts(), whole=False)
        maker = b"" if self.own else pickled_factory(envs)
        job = LaneJob(maker, envs.title, spec, self.seed, lane, envs.step_timeout)
        players = match_trial.run_match_trial if spec.kinds else trial.run_trial
        play, own = (random_play.run_pool_trial, (envs,)) if self.own else (players, ())
        tried = run_watched(play, job, self.steps, self.seconds, *own, reordered=reordered)
        tried.card = {**spec.describe, "learnt by": learners_of(spec)}
        tried.card |= {"real actions": text} if (text := describe_scaling(spec.action, True)) else {}
        if flaw := rules.image_flaw(spec.obs):
            tried.broke["images"] = flaw
        elif (read := rules.flat_images(spec.obs)) and not rules.is_image(spec.obs):
            tried.odd["images"] = f"--network auto is an MLP, which reads {' and '.join(read)}"
        return tried

    def shared(self, first: TrialFacts, again: TrialFacts) -> str:
        """What is wrong where the first lane is played beside another one, as it was played alone; "": nothing."""
        if self.own or differ(first.prints, again.prints) is not None:
            return ""
        envs = self.envs
        job = LaneJob(pickled_factory(envs), envs.title, envs.spec, self.seed, 0, envs.step_timeout)
        tried = run_watched(beside.run_beside, job, min(self.steps, beside.STEPS), min(self.seconds, beside.SECONDS))
        at = differ(first.prints, tried.facts.prints)
        if at is None or "copies" in tried.broke:
            return tried.broke.get("copies", "")
        return f"from row {at} on it shows something else where another one is stepped beside it: they share state"

    def pool(self, seconds: float) -> TrialResult:
        """The pace of a pool, for the card, or what it broke."""
        workers = cores()
        lanes = self.envs.spec.width or LANES * workers * self.envs.spec.seats
        envs = replace(self.envs, lanes=lanes, workers=workers, max_restarts=0)
        if self.own:
            tried = run_watched(random_play.measure_pool, envs, seconds)
            tried.card = {f"pool of {lanes} lanes": f"{tried.facts:,.0f} steps/s"} if tried.whole else {}
            return tried
        try:
            with closing(envs.open(self.seed)) as pool:
                rate = random_play.steps_per_second(pool, seconds)
        except (EnvFailure, UserError) as e:
            head = str(e).split("\n")[0]
            text = f"in a pool of {lanes} lanes: {rules.without_rule(head)}"
            return TrialResult(broke={rules.rule_of(head) or "step": text})
        return TrialResult({f"pool of {workers} processes": f"{rate:,.0f} steps/s in {lanes} lanes"})
