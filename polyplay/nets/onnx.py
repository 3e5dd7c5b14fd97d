"""Export of a policy as an ONNX file, which other programs can run without Polyplay.

The exported graph computes one step: it chooses the most probable actions for any number of lanes (parallel
environments). The graph includes input normalization and the recurrent core. Before the file is written, the graph's
outputs are compared with torch's.

Inputs: `obs` (or `obs/KEY` for each key of a dict), and `first`, `reward`, `events`, `mask` and `state/NAME` if the
    network uses them. In the first step, every `state/NAME` is zeros.
Outputs: `action`, `value` if the policy has one value, and `next/NAME`, which is `state/NAME` in the next step.
Metadata: `polyplay`, a description of the file in JSON.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import files, tree
from polyplay.core.errors import UserError
from polyplay.core.machine import install_command
from polyplay.core.numbers import ValueUnits
from polyplay.core.tree import Batch, Field, Spec
from polyplay.nets import actor_critic, recurrent
from polyplay.nets.layers import Linear
from polyplay.nets.policy import Policy

if TYPE_CHECKING:
    import onnx

    from polyplay.envs.pool import EnvSpec

CHECKED = (1, 5, 8)  # numbers of lanes in steps that compare the file with torch
CLOSE = 1e-3  # largest allowed difference of a number, absolute or relative
SAME = 0.9  # least allowed share of equal discrete actions: of two equally probable actions, either may be chosen


class ExportedStep(nn.Module):
    """Computes one step of `policy.act` without noise. Inputs and outputs are tensors, not dicts."""

    def __init__(self, policy: Policy, names: list[str], units: ValueUnits):
        super().__init__()
        self.policy, self.names, self.units = policy, names, units

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        step = tree.nest(dict(zip(self.names, values, strict=True)))
        return tuple(x for _, x in tree.leaves(_outputs(self.policy, self.units, step, step.pop("state", {}))))


def _outputs(policy: Policy, units: ValueUnits, step: Batch, state: Batch) -> Batch:
    out, after = policy.act(step, state)
    values_of = policy.values if isinstance(policy, actor_critic.ActorCritic) else None
    shown = "value" in out and (values_of is None or len(values_of.tasks) < 2)  # the file has no task input
    values = {"value": units.in_environment(out["value"], policy.reward_scale())} if shown else {}
    return {"action": out["action"], **values, "next": dict(after)}


def check_export(file: Path) -> None:
    """Raise UserError if a package for the export is not installed, or if the directory for `file` does not exist."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--onnx: needs the package {' and '.join(missing)}; `{install_command('onnx')}`")
    if not file.parent.is_dir():
        raise UserError(f"--onnx: there is no directory {file.parent}; make it, or name another file")


def export_onnx(
    policy: Policy, spec: EnvSpec, file: Path, about: Mapping[str, object], units: ValueUnits = ValueUnits()
) -> dict[str, Any]:
    """Write the policy to the ONNX file `file`. Return a report of the file's contents and its difference from torch.

    Raises UserError if the policy cannot be exported. In this case, no file is written.
    `units`: units of the policy's values. The file's values are in the units of the environment's rewards.
    """
    if isinstance(policy, actor_critic.ActorCritic) and isinstance(policy.core, recurrent.Temporal):
        why = "this policy has --core temporal, whose slow clock runs in some lanes only, which no fixed graph allows"
        raise UserError(f"--onnx: {why}; use it with polyplay.load, or train with --core lstm or gru")
    if policy.bf16 is not None:
        policy.bf16 = False  # the file's numbers are float32
    fields = exported_inputs(policy, spec)
    model, outputs = _graph(policy, fields, units)
    used = {name for node in model.graph.node for name in node.input} | {o.name for o in model.graph.output}
    for value in [v for v in model.graph.input if v.name not in used]:
        model.graph.input.remove(value)
    fields = {k: f for k, f in fields.items() if k in {v.name for v in model.graph.input}}
    report = {**about, "lanes": "any", "actions": "mode", "inputs": _shapes(fields), "outputs": _shapes(outputs)}
    entry = model.metadata_props.add()
    entry.key, entry.value = "polyplay", json.dumps(report)
    data = model.SerializeToString()
    difference, same = compare_outputs(policy, spec, data, CHECKED, units)
    if not difference <= CLOSE or same < SAME:
        raise UserError(
            f"--onnx: the exported network is not this one: numbers differ by {difference:.2g}, "
            f"{100 * same:.0f} % of actions are the same; nothing was written, evaluate it with torch"
        )
    files.write_bytes(file, data)
    found = f"numbers differ by at most {difference:.1g}, {100 * same:.0f} % of actions are the same"
    return {"file": str(file), "bytes": len(data), **report, "checked": f"by onnx's reference: {found}"}


def exported_inputs(policy: Policy, spec: EnvSpec) -> dict[str, Field]:
    """Return {name: field} of all inputs that the ONNX file may have."""
    inputs: dict[str, Spec] = {"obs": spec.obs}
    if spec.mask is not None:
        inputs["mask"] = spec.mask
    if isinstance(policy, actor_critic.ActorCritic) and policy.rewards is not None:
        inputs["events"] = Field((len(policy.rewards.names),), "float32")
    inputs |= {"reward": Field((), "float32"), "first": Field((), "bool"), "state": policy.state_spec()}
    return dict(tree.leaves(inputs))


# ------------------------------------------------------------------------------------------------------ the graph


def _graph(policy: Policy, fields: dict[str, Field], units: ValueUnits) -> tuple[onnx.ModelProto, dict[str, Field]]:
    """Return the ONNX model and the fields of its outputs. Raises UserError if torch cannot export the network."""
    step = ExportedStep(copy.deepcopy(policy), list(fields), units).eval()
    values = tuple(torch.from_numpy(x) for x in tree.zeros(fields, (3,)).values())
    nested = tree.nest(dict(zip(fields, values, strict=True)))
    with _plain(step), torch.no_grad():
        outputs = tree.leaves(_outputs(step.policy, units, nested, nested.pop("state", {})))
        names, made = zip(*outputs, strict=True)
        shapes = (({0: torch.export.Dim("lanes")},) * len(values),)
        try:
            program = torch.export.export(step, values, dynamic_shapes=shapes, strict=False)
            done: Any = torch.onnx.export(
                program, dynamo=True, input_names=list(fields), output_names=list(names), verbose=False
            )
        except Exception as e:
            line = " ".join(str(e).split())[:200]
            hint = "it must take any number of rows (x.shape[0], not len(x))"
            raise UserError(f"--onnx: torch cannot export this network: {type(e).__name__}: {line}; {hint}") from e
    shown = {name: Field(tuple(x.shape[1:]), str(x.dtype)[6:]) for name, x in zip(names, made, strict=True)}
    return done.model_proto, shown


@contextlib.contextmanager
def _plain(net: nn.Module) -> Iterator[None]:
    """Turn off the padding of batches in this context. Padding would fix the number of lanes in the graph."""
    for layer in net.modules():
        if isinstance(layer, Linear):
            layer.exact = False
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # exporters warn of packages that are not needed here
    try:
        with mock.patch.object(recurrent, "pad_lanes", return_value=0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _shapes(fields: Mapping[str, Field]) -> dict[str, Any]:
    return {name: {"shape": ["lanes", *f.shape], "dtype": f.dtype} for name, f in fields.items()}


# ------------------------------------------------------------------------------------------------------- the check


def compare_outputs(
    policy: Policy, spec: EnvSpec, data: bytes, lanes: tuple[int, ...], units: ValueUnits = ValueUnits()
) -> tuple[float, float]:
    """Run the ONNX file's bytes `data` in random steps with onnx's reference evaluator, and compare with the policy.

    Return the largest difference of floating-point outputs, and the fraction of integer outputs that are equal.
    """
    from onnx.reference import ReferenceEvaluator

    model = ReferenceEvaluator(data)
    rng = np.random.default_rng(0)
    worst, same = 0.0, []
    for n in lanes:
        state = policy.initial(n)
        for _ in range(3):
            step = {**_random(spec, n, rng), "reward": rng.standard_normal(n).astype(np.float32)}
            step["first"] = rng.random(n) < 0.3
            with torch.no_grad():
                wanted = _outputs(policy, units, tree.map(torch.from_numpy, step), state)
            flat = dict(tree.leaves({**step, "state": tree.map(lambda x: x.numpy(), state)}))
            got = model.run(None, {k: v for k, v in flat.items() if k in model.input_names})
            for (_, want), have in zip(tree.leaves(wanted), got, strict=True):
                if want.is_floating_point():
                    error = (want - torch.from_numpy(have)).abs() / want.abs().clamp_min(1.0)
                    worst = max(worst, *error.nan_to_num(torch.inf).flatten().tolist())
                else:
                    same += (want.numpy() == have).ravel().tolist()
            state = wanted["next"]
    return worst, float(np.mean(same)) if same else 1.0


def _random(spec: EnvSpec, lanes: int, rng: np.random.Generator) -> Batch:
    """Draw random observations, event counts and masks. In every mask, the first action is legal."""
    drawn = {path: _draw(f, spec.classes.get(path), lanes, rng) for path, f in tree.leaves(spec.obs)}
    step: Batch = {"obs": tree.nest(drawn)}
    if spec.mask is not None:
        step["mask"] = tree.map(lambda f: rng.random((lanes, *f.shape)) < 0.7, spec.mask)
        tree.map(lambda x: x.__setitem__((..., 0), True), step["mask"])
    if spec.events:
        step["events"] = rng.integers(0, 3, (lanes, len(spec.events))).astype(np.float32)
    return step


def _draw(field: Field, values: int | tuple[int, ...] | None, lanes: int, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = (lanes, *field.shape), np.dtype(field.dtype)
    if values:
        highest = np.broadcast_to(np.ravel(values), (lanes, np.size(values)))
        return rng.integers(0, highest).reshape(shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
