"""What a conditional head costs over one that draws all parts of an action by themselves: acting, and an update.

    python bench/heads.py --rounds 14

The actions are the lane game's: primary 8, unit 48, offset 81, delay 4. A torso of 256, an LSTM of 256, float32, one
core. Arms take turns; ratios are of CPU time within a round.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay.core import tree
from polyplay.core.tree import Batch, Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete
from polyplay.games.moba_world import USES
from polyplay.nets import factory

PARTS = {"primary": Discrete(8), "unit": Discrete(48), "offset": Discrete(81), "delay": Discrete(4)}
T, B = 16, 256
ONE_FOR_ALL: dict[str, tuple[int, ...]] = {name: (part.n,) for name, part in PARTS.items()}
OF_EACH_PRIMARY = {**ONE_FOR_ALL, "unit": (8, 48)}
ARMS: dict[str, tuple[bool, dict[str, tuple[int, ...]]]] = {  # conditional, masks
    "independent": (False, {}),
    "conditional": (True, {}),
    "independent, masks": (False, ONE_FOR_ALL),
    "conditional, masks": (True, ONE_FOR_ALL),
    "conditional, masks of units for each primary": (True, OF_EACH_PRIMARY),
}
MOST = 1.10


class Arm:
    """A policy, with rows [T, B] of noise."""

    def __init__(self, conditional: bool, masks: dict[str, tuple[int, ...]]):
        torch.manual_seed(0)
        action: Any = Conditional(PARTS, USES) if conditional else PARTS
        spec = EnvSpec(Field((256,), "float32"), action, mask=None)
        self.policy = factory.make("mlp", spec, "lstm", 256, hidden=(256,))
        rows: Batch = {"obs": torch.randn(T, B, 256), "reward": torch.zeros(T, B), "first": torch.rand(T, B) < 0.05}
        rows["noise"] = torch.rand(T, B, self.policy.noise)
        if masks:
            rows["mask"] = {name: torch.rand(T, B, *shape) < 0.7 for name, shape in masks.items()}
            for mask in rows["mask"].values():
                mask[..., 0] = True
        self.rows = rows

    def turn(self) -> Row:
        """CPU seconds of acting T times, and of learning from it."""
        before, acted = self.policy.initial(B), list[Batch]()
        state = before
        began = time.process_time()
        with torch.no_grad():
            for t in range(T):
                out, state = self.policy.act(tree.map(lambda x, t=t: x[t], self.rows), state)
                acted.append(out["action"])
        half = time.process_time()
        rows = {k: v for k, v in self.rows.items() if k != "noise"}
        rows["action"] = tree.map(lambda *x: torch.stack(x), *acted)
        out = self.policy.unroll(rows, before)
        (out["logp"].mean() + 0.01 * out["entropy"].mean() + out["value"].square().mean()).backward()
        return {"acting": half - began, "learning": time.process_time() - half}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=14)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    arms = {name: Arm(*given) for name, given in ARMS.items()}
    for arm in arms.values():
        arm.turn()
    rounds = [{name: arm.turn() for name, arm in arms.items()} for _ in range(asked.rounds)]
    rows, ratios = list[Row](), dict[str, Row]()
    for name in ARMS:
        base = "independent, masks" if "masks" in name else "independent"
        row: Row = {"head": name}
        for part in ("acting", "learning"):
            row[f"{part}, µs a row"] = round(min(one[name][part] for one in rounds) / T / B * 1e6, 1)
        both = spread(sum(one[name].values()) / sum(one[base].values()) for one in rounds)
        rows.append(row | {"to independent": f"{both['median']:.2f}"})
        ratios |= {} if name == base else {name: both}
    what = about()
    text = ["# What a conditional head costs", "", *lines_about(what), "", *table(rows), ""]
    text += [f"{verdict(name, ratio['median'], most=MOST)}; {said(ratio)}" for name, ratio in ratios.items()]
    publish(RESULTS / "heads", {**what, "rounds": rounds, "ratios": ratios}, text)


if __name__ == "__main__":
    main()
