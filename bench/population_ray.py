"""Ray Tune's population based training of the same page on the same task as population.py.

    pip install "ray[tune]"
    python bench/population_ray.py --seeds 0 1 --runs runs/population

Ray Tune schedules, copies and perturbs. A step of its trainable is a session of an ordinary run, as long as --every
says, as with us, and every trial begins with the values of one of our founders. A copy takes the donor's whole run, its
agent steps too, which is how Ray Tune means it. Two trials at once, a core each.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, about, command_line, lines_about, publish, table
from population import GAMES, TRAIN

from polyplay.core.files import read_lines
from polyplay.population.store import Store
from polyplay.population.trainer import Evolution
from polyplay.runs import options
from polyplay.runs.load import crew_of, page_of
from polyplay.runs.population import MemberRunner
from polyplay.systems._presets import member_settings


def parsed(words: str, seed: int, directory: Path) -> tuple[MemberRunner, Evolution]:
    """What our own population would be made of."""
    page = page_of("pbt", "a2c")
    settings, chosen, sources = options.parse(page, [*words.split(), "--seed", str(seed), "--quiet", "--replicas", "1"])
    crew = crew_of(chosen)
    page.build(settings, crew)
    own = member_settings(settings)
    names = {**vars(own), **vars(chosen)}
    runner = MemberRunner(directory, "a2c", own, chosen, {k: v for k, v in sources.items() if k in names}, "games")
    return runner, crew.roles[0].settings["evolution"]


def trainable(tune: Any, words: str, seed: int, directory: Path) -> Any:
    """The class that Ray Tune trains."""

    class Member(tune.Trainable):  # type: ignore[misc,name-defined]
        def setup(self, config: dict[str, Any]) -> None:
            self.runner, self.evolution = parsed(words, seed, directory)
            self.number, self.turns = config["member"], 0
            self.values = {k: config[k] for k in self.evolution.priors}

        def step(self) -> dict[str, Any]:
            row = {"member": self.number, "turns": self.turns, "values": self.values, "copied": 0}
            until, self.turns = self.evolution.until(row), self.turns + 1
            session = self.runner(row, until, lambda: "", lambda kind, text: print(text, file=sys.stderr))
            score = statistics.fmean(session.games) if session.games else -1e9
            return {"score": score, "turns": self.turns, "agent_steps": session.steps, "done": session.ended == "done"}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            place = Store(directory).member(self.number)
            shutil.copytree(place, Path(checkpoint_dir) / "run")
            (Path(checkpoint_dir) / "turns.json").write_text(json.dumps(self.turns))

        def load_checkpoint(self, checkpoint: str) -> None:
            place = Store(directory).member(self.number)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(Path(checkpoint) / "run", place)
            self.turns = json.loads((Path(checkpoint) / "turns.json").read_text())

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.values = {k: new_config[k] for k in self.evolution.priors}
            return True

    return Member


def tuned(words: str, seed: int, directory: Path, at_once: int) -> None:
    """Train a population by Ray Tune."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    _, evolution = parsed(words, seed, directory)
    founders = evolution.founders()
    ranges = {name: tune.loguniform(prior.low, prior.high) for name, prior in evolution.priors.items()}
    rules = {"metric": "score", "mode": "max", "time_attr": "turns", "perturbation_interval": 1}
    scheduler = PopulationBasedTraining(**rules, hyperparam_mutations=ranges)
    drawn = {
        name: tune.sample_from(lambda config, name=name: founders[config["member"]][name]) for name in evolution.priors
    }
    found = tune.Tuner(
        tune.with_resources(trainable(tune, words, seed, directory), {"cpu": 1}),
        param_space={"member": tune.grid_search(list(range(evolution.size))), **drawn},
        tune_config=tune.TuneConfig(scheduler=scheduler, max_concurrent_trials=0, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str((directory / "ray").resolve()), verbose=0),
    )
    ray.init(num_cpus=at_once, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    results = found.fit()
    ray.shutdown()
    if results.errors:
        raise SystemExit(f"Ray Tune: {results.errors[0]}")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs/population"))
    parser.add_argument("--train", default=TRAIN, help="options of the population, instead of those of population.py")
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    rows = []
    for seed in asked.seeds:
        directory = asked.runs.resolve() / f"ray-{seed}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        begun = time.monotonic()
        tuned(asked.train, seed, directory, asked.at_once)
        minutes = (time.monotonic() - begun) / 60
        scores = []
        for member in sorted((directory / "members").glob("[0-9]*")):
            games = list(read_lines(member / "episodes.jsonl", "episodic_return"))
            scores.append(statistics.fmean(g["episodic_return"] for g in games[-GAMES:]))
        found = {"best": max(scores), "median": statistics.median(scores), "worst": min(scores)}
        rows.append({"seed": seed, **{k: round(v, 2) for k, v in found.items()}, "minutes": round(minutes, 1)})
    what = about()
    text = ["# Ray Tune's population based training of a2c `quick` on Breakout", "", *lines_about(what), ""]
    text += [
        f"Options: `{asked.train}`; Ray Tune by its defaults: quantile 0.25, resampling 0.25.",
        "",
        *table(rows),
    ]
    publish(RESULTS / "population_ray", {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
