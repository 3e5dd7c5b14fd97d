"""Construction of policies by name.

`make` makes actor-critic networks, `make_values` networks for Q-learning, `make_deterministic` networks for Ape-X DPG,
and `make_critics` networks for SAC and TD3. A `NetworkFactory` holds the arguments of one of these functions. Workers
receive the factory, and call it to make the policy.

The name of a network is "auto", a key of `NETS`, or "module:callable". The callable takes an EnvSpec and options. It
returns a whole Policy, or a Torso, the first part of a network, to which `make` adds a core and a head.
"""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from polyplay.core import tree, user_modules
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs import rules
from polyplay.envs.pool import EnvSpec, closest_names
from polyplay.envs.process_state import outside
from polyplay.envs.spaces import Box, Discrete, describe_fields, fields
from polyplay.nets import action_heads, recurrent, torsos
from polyplay.nets.actor_critic import ActorCritic, AuxiliaryHeads, EventRewards, Inputs
from polyplay.nets.critics import CategoricalActor, CriticActions, CriticsNetwork, DeterministicActor, GaussianActor
from polyplay.nets.device import set_precision
from polyplay.nets.layers import CenteredImages, Linear, SignedImages, outline, outlines
from polyplay.nets.policy import BOUND, Normalize, Policy, PolicyFactory, PopArt, ReturnScale, TaskValues, Torso
from polyplay.nets.q_network import VARIANTS, DPGNetwork, QHead, QNetwork
from polyplay.nets.torsos import MLP, FiveTorso, Flat, FTWTorso, SeparateMLPs

Builder = Callable[..., Any]
EMBEDDING = 32  # size of a task's embedding
LAYERS = re.compile(r"(.+)\(([^()]*)\)")  # mlp(256,256,relu): a network's name, and its layers
WHOLE = "--network: {!r} is a whole policy; {} (polyplay.nets.policy.Torso)"
# builders by name; the default of `init` is the published initialization
NETS: dict[str, Builder] = {
    name: partial(torsos.Conv, name, hidden=width, init=style) for name, (_, width, style, _) in torsos.CONVS.items()
}
NETS |= {"combined": torsos.Combined, "impala": torsos.Impala, "mlp": MLP, "separate": SeparateMLPs}
NETS |= {"ftw": FTWTorso, "five": FiveTorso}


def make(
    name: str | Builder,
    spec: EnvSpec,
    core: str = "none",
    core_size: int = 256,
    previous: bool = False,
    init: str = "auto",
    inputs: str = "raw",
    returns: float | None = None,
    guard: str = "none",
    rewards: Sequence[str] = (),
    width: int = 0,
    memory: int = 0,
    auxiliary: Collection[str] = (),
    bound: float = BOUND,
    actions: str = "scale",
    deviation: float = 1.0,
    value: str = "plain",
    **options: Any,
) -> Policy:
    """Make an actor-critic policy for the observations and actions of `spec`, initialized by torch's global generator.

    `core`: none, lstm, gru or temporal, with `core_size` units.
    `memory`: number of words in the temporal core's memory, or 0 for no memory.
    `previous`: whether the core also takes the previous action and reward. If there is no core, the head takes them.
    `init`: orthogonal, torch, or auto for the published initialization of the network.
    `inputs`: preprocessing of observations: raw, center (subtract the mean image), signed (images as x/128 − 1, as in
        GA3C), or normalize (all but images, to mean 0 and standard deviation 1, within ±`bound`).
    `returns`: discount of the returns that ReturnScale tracks, for losses that scale rewards. None: no ReturnScale.
    `guard`: how to limit logarithms of discrete probabilities near 0 (see action_heads).
    `actions`: scale maps −1 … 1 to the bounds of continuous actions. With clip, environment pools clip actions instead.
    `deviation`: initial standard deviation of continuous actions.
    `rewards`: names of the events from which the reward is computed.
    `width`, `auxiliary`: see ActorCritic.
    `value`: plain, heads (one value output per task), or popart (one normalized output per task, see nets.policy).
    `options`: the network's own options (hidden, activation, …).
    Raises UserError if an option is wrong.
    """
    _check_choices(core=core, inputs=inputs, actions=actions, guard=guard, value=value)
    title, build, init = _resolve(name, spec, init)
    torso = _made(build, title, spec, options)
    if isinstance(torso, Policy):
        asked = {"--core": core != "none", "--previous": previous, "--inputs": inputs != "raw"}
        asked |= {"--reward scale": returns is not None, "--auxiliary": bool(auxiliary)}
        asked |= {f"--correction {guard}": guard != "none", f"--value {value}": value != "plain"}
        if width or rewards:  # set by the system, so a user cannot leave them out
            raise UserError(WHOLE.format(title, "here a torso is needed"))
        if others := ", ".join(name for name, given in asked.items() if given):
            raise UserError(f"--network: {title!r} is a whole policy; leave out {others}")
        _try_policy(torso, title, spec)
        return torso
    head = action_heads.for_space(spec.action, guard, actions == "scale")
    for part in head.modules() if deviation != 1.0 else ():
        if isinstance(part, action_heads.Gaussian):
            torch.nn.init.constant_(part.log_std, math.log(deviation))
    behind = torso.core_features + (head.inputs + 1 if previous else 0)
    middle = recurrent.make_core(core, behind, core_size, init, memory)
    size, own = None if returns is None else ReturnScale(returns), EventRewards(rewards) if rewards else None
    sizes = (behind if middle is None else middle.features), torso.core_features
    heads = AuxiliaryHeads(auxiliary, sizes, spec) if auxiliary else None
    if heads is not None and heads.value and value != "plain":
        raise UserError(f"--value: {value} given with --auxiliary value, whose rows name no task; remove one of them")
    values = None if value == "plain" else VALUES[value](spec.tasks)
    given = _inputs(inputs, spec, torso, bound), size, own, width, heads, values
    return ActorCritic(torso, head, middle, previous, init, *given)


VALUES = {"heads": TaskValues, "popart": PopArt}
CHOICES = {
    "value": ("plain", *VALUES),
    "core": ("none", "lstm", "gru", "temporal"), "inputs": ("raw", "center", "signed", "normalize"),
    "actions": ("scale", "clip"), "guard": ("none", "max", "plus"),
    "noisy": ("none", *VARIANTS), "bias": ("each", "shared", "none"),
}  # fmt: skip


def _check_choices(**given: str) -> None:
    for name, value in given.items():
        if value not in CHOICES[name]:
            raise UserError(f"{name}: {value!r} given, allowed: {', '.join(CHOICES[name])}")


def make_values(
    name: str | Builder,
    spec: EnvSpec,
    dueling: bool = False,
    atoms: int = 0,
    support: tuple[float, float] = (-10.0, 10.0),
    width: int | None = None,
    scale: float = 1.0,
    noisy: str = "none",
    sigma: float | None = None,
    bias: str = "each",
    core: str = "none",
    core_size: int = 512,
    previous: bool = False,
    clipped: bool = False,
    init: str = "torch",
    inputs: str = "raw",
    **options: Any,
) -> QNetwork:
    """Make a Q-network for the observations and Discrete actions of `spec`, initialized by torch's global generator.
    R2D2's network has name="nature", dueling=True, core="lstm", previous=True.

    `dueling`, `atoms`, `scale`, `noisy`, `sigma`, `bias`: see q_network.QHead.
    `support`: values of the lowest and highest atom.
    `width`: size of the head's hidden layers, which replace the torso's fully connected layer. If None, this is that
        layer's size (512 for nature), or 0 if the torso has no such layer (mlp).
    `core`, `inputs`, `options`: as in `make`.
    `previous`: whether the core also takes the previous action and reward. If there is no core, the head takes them.
    `clipped`: whether this reward is clipped to ±1.
    Raises UserError if an option is wrong.
    """
    assert isinstance(spec.action, Discrete)
    _check_choices(inputs=inputs, noisy=noisy, bias=bias)
    if core not in ("none", "lstm", "gru"):
        raise UserError(f"core: {core!r} given, allowed for values: none, lstm, gru")
    title, build, _ = _resolve(name, spec, init)
    fc = inspect.signature(build).parameters.get("hidden")
    if fc is not None and isinstance(fc.default, int):  # the head gets this layer instead
        own = options.pop("hidden", fc.default)
        options, width = {**options, "hidden": 0}, own if width is None else width
    torso, actions = _torso(build, title, spec, options, "values need a torso"), int(spec.action.n)
    features = torso.core_features + (actions + 1 if previous else 0)
    middle = recurrent.make_core(core, features, core_size, init)
    features = features if middle is None else middle.features
    head = QHead(features, actions, atoms, width or 0, dueling, scale, noisy, sigma, bias, init)
    given = _inputs(inputs, spec, torso)
    return QNetwork(torso, head, middle, previous, clipped, given, support)


def make_deterministic(
    name: str | Builder,
    spec: EnvSpec,
    actor: tuple[int, ...] = (300, 200),
    critic: tuple[int, ...] = (400, 300),
    init: str = "torch",
    **options: Any,
) -> DPGNetwork:
    """Make an actor and a critic for the observations and the bounded Box of actions of `spec`, initialized by torch's
    global generator.

    `actor`, `critic`: sizes of hidden layers. The last layer follows the torso. In the critic, this layer also takes
        the action. The other layers are those of the torso mlp; other torsos ignore their sizes.
    `options`: as in `make`.
    Raises UserError if an option is wrong.
    """
    space = spec.action
    assert isinstance(space, Box)
    title, build, init = _resolve(name, spec, init)
    fc = inspect.signature(build).parameters.get("hidden")
    layered, torsos = fc is not None and isinstance(fc.default, tuple), list[Torso]()
    for sizes in (actor, critic):
        own = {**options, "hidden": tuple(sizes[:-1])} if layered else options
        torsos.append(_torso(build, title, spec, own, "here a torso is needed"))
    return DPGNetwork(space, torsos[0], torsos[1], (actor[-1], critic[-1]), init)


def make_critics(
    name: str | Builder,
    spec: EnvSpec,
    actor: str = "gaussian",
    hidden: int | tuple[int, ...] = (256, 256),
    activation: str = "relu",
    init: str = "torch",
    deviation: float = 0.1,
    log_std: str = "clip",
    **options: Any,
) -> CriticsNetwork:
    """Make an actor and critics for the observations and actions of `spec`, initialized by torch's global generator.

    `name`: the trunk, a network that the actor and the critics share. For mlp, the trunk only flattens observations.
    `actor`: gaussian or deterministic, for continuous parts of an action. Discrete parts have a categorical actor.
    `hidden`: sizes of the hidden layers of the actor and of each critic, after the trunk.
    `deviation`: standard deviation of the deterministic actor's noise.
    `options`: arguments of CriticsNetwork.
    Raises UserError if an option is wrong.
    """
    if activation != "relu":
        raise UserError(f"--activation: {activation} given, allowed for actor and critics: relu")
    title, build, init = _resolve(name, spec, init)
    known, hidden = _auto(spec) if name == "auto" else name, (hidden,) if isinstance(hidden, int) else hidden
    trunk = Flat(spec) if known == "mlp" else _torso(build, title, spec, {}, "here a torso is needed")
    actions, box = CriticActions(spec.action), None
    if actions.box is not None:
        box = GaussianActor(actions.box, log_std) if actor == "gaussian" else DeterministicActor(actions.box, deviation)
    choice = None if actions.choice is None else CategoricalActor(actions.choice)
    return CriticsNetwork(trunk, actions, box, choice, hidden, **options)


MAKERS: dict[str, Callable[..., Policy]] = {
    "policy": make, "values": make_values, "deterministic": make_deterministic, "critics": make_critics
}  # fmt: skip


def _torso(build: Builder, title: str, spec: EnvSpec, options: Mapping[str, Any], need: str) -> Torso:
    """Make a torso. Raises UserError if the options are wrong, or if `build` returns a whole policy."""
    torso = _made(build, title, spec, options)
    if isinstance(torso, Policy):
        raise UserError(WHOLE.format(title, need))
    return torso


def _inputs(how: str, spec: EnvSpec, torso: Torso, bound: float = BOUND) -> Inputs | None:
    """Return the module that preprocesses observations before the torso, or None for raw inputs."""
    obs = spec.obs
    if how not in ("center", "signed"):
        return Normalize(obs, torso.unit_sets, bound, spec.classes) if how == "normalize" else None
    if not isinstance(obs, Field) or len(obs.shape) != 3 or obs.dtype != "uint8":
        seen = describe_fields(obs)
        raise UserError(f"--inputs {how}: takes one image of bytes, not {seen}; use raw or normalize")
    low, high = torsos.image_ends(spec)
    return CenteredImages(obs.shape, high - low) if how == "center" else SignedImages(low, high)


@dataclass(frozen=True)
class NetworkFactory(PolicyFactory):
    """Makes a policy by the function MAKERS[kind] and the stored arguments. Workers get the pickled factory, without
    weights. With the option `exact` (the default), the results of a row are bitwise the same in every batch (see
    layers.Linear). Acting is then slower, mainly with one lane.
    """

    name: str | Builder
    spec: EnvSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["policy", "values", "deterministic", "critics"] = "policy"

    def __post_init__(self) -> None:
        # networks do not depend on step_time, which differs between runs
        object.__setattr__(self, "spec", replace(self.spec, step_time=0.0))

    def __call__(self) -> Policy:
        with nullcontext() if self.own else outline():  # a user's constructor may compute with real weights
            return self._make()

    @property
    def own(self) -> bool:
        """Whether a user's function makes the network."""
        return callable(self.name) or ":" in self.name

    def check_unroll(self) -> None:
        """Check that actor-critic losses can train the policy. Raises UserError if a user's `unroll` does not fit."""
        policy = self()
        if not isinstance(policy, ActorCritic):
            try_unroll(policy, user_modules.title(self.name), self.spec)

    def _make(self) -> Policy:
        name, layers = read_layers(self.name, self.spec)
        if self.kind == "deterministic" and "hidden" in layers:
            raise UserError("--hidden: given, but actor and critic get their sizes from --width; use that")
        options = {k: v for k, v in self.options.items() if k != "exact"}
        policy = MAKERS[self.kind](name, self.spec, **options, **layers)
        for layer in policy.modules():
            if isinstance(layer, Linear | recurrent.Core):
                layer.exact = self.options.get("exact", True)
        return policy

    @property
    def scales_actions(self) -> bool:
        return self.kind in ("deterministic", "critics") or self.options.get("actions", "scale") == "scale"

    @property
    def title(self) -> str:
        """Name of the network, and of the core if the network has one."""
        core = self.options.get("core", "none")
        return user_modules.title(self.name) if core == "none" else f"{user_modules.title(self.name)} + {core}"

    @property
    def choice(self) -> str:
        """Description of the network and its inputs, with any images that a fully connected network reads flattened."""
        if callable(self.name):
            return user_modules.title(self.name)
        name, colon, rest = self.name.partition("(")
        known = _auto(self.spec) if name == "auto" else name
        chosen = f"{known}{colon}{rest}" + (", chosen by auto" if name == "auto" else "")
        inputs = self.options.get("inputs", "raw")
        read = rules.flat_images(self.spec.obs) if known in ("mlp", "separate") else []
        clauses = [chosen, f"inputs {inputs}", *[f"it reads {' and '.join(read)}"] * bool(read)]
        if self.options.get("init") == "auto":
            style = _resolve(name, self.spec, "auto")[2]
            clauses.append(f"initial weights {style}")
        return "; ".join(clauses)


def read_layers(name: str | Builder, spec: EnvSpec) -> tuple[str | Builder, dict[str, Any]]:
    """Split a network's name such as "mlp(256,256,relu)" into the plain name "mlp" and options. The option `hidden` has
    the layers' sizes, or one number if the network has only one such layer. The other option is `activation`. Raises
    UserError if the layers are malformed.
    """
    found = None if callable(name) else LAYERS.fullmatch(name)
    if found is None:
        return name, {}
    plain, words = found[1], [w for w in found[2].replace(" ", "").split(",") if w]
    sizes, others = tuple(int(w) for w in words if w.isdigit()), [w for w in words if not w.isdigit()]
    if len(others) > 1 or min(sizes, default=1) < 1:
        raise UserError(f"--network: {name!r} is malformed; write sizes and an activation: mlp(256,256,relu)")
    known = NETS.get(_auto(spec) if plain == "auto" else plain)
    default = inspect.signature(known).parameters["hidden"].default if known else ()
    layers: dict[str, Any] = {"activation": others[0]} if others else {}
    if sizes and isinstance(default, int) and len(sizes) > 1:
        raise UserError(f"--hidden: {sizes} given, but {plain} has one such layer; give one size, or use --network mlp")
    return plain, layers | ({"hidden": sizes[0] if isinstance(default, int) else sizes} if sizes else {})


def _auto(spec: EnvSpec) -> str:
    """Return nature for one image of 36 × 36 pixels or more, combined for other observations with images, else mlp."""
    spec = spec if spec.task_input == "none" else without_task(spec)
    obs, images = spec.obs, spec.image_leaves
    if spec.images is None and (flaw := rules.image_flaw(obs)):
        raise UserError(f"--network: {flaw}: {rules.RULES['images'].fix} {rules.rule_suffix('images')}")
    if isinstance(obs, Field) and images and min(obs.shape[1:]) >= torsos.LARGE:
        return "nature"
    return "combined" if images else "mlp"


def _resolve(name: str | Builder, spec: EnvSpec, init: str) -> tuple[str, Builder, str]:
    """Return the network's title, the function that makes it, and the initialization of head and core."""
    own = "orthogonal" if init == "auto" else init
    if callable(name):
        return user_modules.title(name), name, own
    known = _auto(spec) if name == "auto" else name
    if known in NETS:
        style: str = inspect.signature(NETS[known]).parameters["init"].default if init == "auto" else init
        return name, partial(NETS[known], init=style), style
    if ":" in name:
        return name, _load(name), own
    names = ("auto", *NETS)
    others = f"there are {', '.join(names)} and module:callable"
    raise UserError(f"--network: {name!r} is unknown{closest_names(name, names)}; {others}")


def _load(name: str) -> Builder:
    """Load the function named by "module:callable". Raises UserError if it is not found, or not callable."""
    allowed = f"auto, {', '.join(NETS)}, or module:callable, a function of the EnvSpec"
    found: Builder = user_modules.find(name, "--network", allowed)
    if not callable(found):
        raise UserError(f"--network: {name!r} must be a callable that takes an EnvSpec, got {type(found).__name__}")
    return found


def _made(build: Builder, title: str, spec: EnvSpec, options: Mapping[str, Any]) -> Torso | Policy:
    """Call `build`, and test a user's torso on zeros. Raises UserError if the options or the result are wrong."""
    signature = inspect.signature(build)
    try:
        signature.bind(spec, **options)
    except TypeError as error:
        known = ", ".join(k for k in list(signature.parameters)[1:] if k != "init") or "none"
        raise UserError(f"--network: {title!r}: {error}; its options are: {known}") from error
    made = _with_task(build, spec, options) if _task_apart(build, spec) else build(spec, **options)
    if isinstance(made, Torso) and not type(made).__module__.startswith("polyplay."):
        _try_torso(made, title, spec.obs)
    if not isinstance(made, Torso | Policy):
        allowed = "a Torso or a Policy: a class of yours inherits one of these from polyplay.nets.policy"
        raise UserError(f"--network: {title!r} returned {type(made).__name__}, it must return {allowed}")
    return made


def _task_apart(build: Builder, spec: EnvSpec) -> bool:
    """Return whether WithTask must add the task: observations include a task, but the torso takes only an image."""
    return spec.task_input != "none" and isinstance(build, partial) and build.func in (torsos.Conv, torsos.Impala)


def _with_task(build: Builder, spec: EnvSpec, options: Mapping[str, Any]) -> Torso:
    init = build.keywords.get("init", "orthogonal") if isinstance(build, partial) else "orthogonal"
    seen = build(without_task(spec), **options)
    assert isinstance(seen, Torso)
    width = EMBEDDING if spec.task_input == "embedding" else 0
    return torsos.WithTask(seen, spec.tasks, width, joined=options.get("hidden") != 0, init=init)


def without_task(spec: EnvSpec) -> EnvSpec:
    """Return the EnvSpec without the task in its observations."""
    seen = spec.obs["seen"] if isinstance(spec.obs, dict) else spec.obs
    images = None if spec.images is None else tuple(path.removeprefix("seen").removeprefix("/") for path in spec.images)
    classes = {path.removeprefix("seen/"): n for path, n in spec.classes.items() if path.startswith("seen/")}
    return replace(spec, obs=seen, classes=classes, images=images, task_input="none")


# Trials of a user's own network on zeros, which find mistakes before any worker starts.


DECLARED = {
    "forward": "forward(obs): observations [N, …] → float32 [N, features]",
    "spec": "spec(): the outputs of `act`, a Field per lane each, with `action` among them",
    "act": "act(step, state): a row [B, …] and its state → (outputs [B, …] as in `spec`, the state after it)",
    "unroll": "unroll(batch, state): rows [T+1, B, …] and the state before them → logp, value, entropy [T+1, B]",
}
NUMBER, FLAG = Field((), "float32"), Field((), "bool")
ARRIVES = {"reward": NUMBER, "first": FLAG, "terminated": FLAG, "truncated": FLAG}  # fields of every row
LEARNT = {"logp": NUMBER, "value": NUMBER, "entropy": NUMBER}


class NetworkTrial:
    """Calls methods of a user's network once, to find mistakes before a run starts. A mistake raises a UserError, whose
    message names the class and the method.
    """

    def __init__(self, net: Torso | Policy, title: str, **missing: bool):
        """`missing`: for each required method, by name, whether the class lacks it."""
        self.net, self.where = net, f"--network: {title!r}: class {type(net).__name__}"
        base = Torso if isinstance(net, Torso) else Policy
        if taken := [name for name in (*net._modules, *net._parameters, *net._buffers) if hasattr(base, name)]:
            uses = f"but {base.__name__} uses this name for another purpose; rename it"
            raise UserError(f"{self.where}: {taken[0]} names a module or tensor, {uses}")
        if lacks := [DECLARED[name] for name, none in missing.items() if none]:
            raise UserError(f"{self.where} lacks {lacks[0]}")

    def call(self, method: Callable[..., Any], takes: str, *given: Any) -> Any:
        """Call a method without gradient. Raises UserError if it fails. `takes` describes the arguments."""
        training = self.net.training
        self.net.eval()
        try:
            with torch.no_grad():
                return method(*given)
        except Exception as error:
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{self.where}: {method.__name__} does not take {takes}: {line}") from error
        finally:
            self.net.train(training)

    def check(self, what: str, found: Any, spec: Spec, *lead: int) -> None:
        """Raise UserError unless `found` has the fields of `spec`, with the first dimensions `lead`."""
        given = dict(tree.leaves(found))
        for path, leaf in tree.leaves(spec):
            x, wanted = given.get(path), f"{leaf.dtype} {[*lead, *leaf.shape]}"
            got = f"{x.dtype} {[*x.shape]}".removeprefix("torch.") if isinstance(x, torch.Tensor) else "no tensor"
            if got != wanted:
                raise UserError(f"{self.where}: {what} gave {f'{path} ' if path else ''}{got}, not {wanted}")


def _zeros(spec: Spec, *lead: int) -> Any:
    return tree.map(lambda leaf: torch.zeros(*lead, *leaf.shape, dtype=getattr(torch, leaf.dtype)), spec)


def _rows(spec: EnvSpec, *lead: int) -> Batch:
    """Return rows of zeros, with masks in which every action is legal."""
    events = {"events": Field((len(spec.events),), "float32")} if spec.events else {}
    rows: Batch = _zeros({"obs": spec.obs, **ARRIVES, **events}, *lead)
    return rows if spec.mask is None else {**rows, "mask": tree.map(torch.ones_like, _zeros(spec.mask, *lead))}


def _try_torso(torso: Torso, title: str, obs: Spec) -> None:
    """Call a user's torso on two observations of zeros. Raises UserError if the features do not fit."""
    trial = NetworkTrial(torso, title, forward=type(torso).forward is Torso.forward)
    if not isinstance(torso.features, int) or torso.features < 1:
        wanted = "it must be an int, the number of features that `forward` makes of a row"
        raise UserError(f"{trial.where}: features is {torso.features!r}, {wanted}")
    takes = f"two observations of {describe_fields(obs)}"
    made = trial.call(torso.forward, takes, _zeros(obs, 2))
    trial.check(f"forward, of {takes},", made, Field((torso.features,), "float32"), 2)


def _try_policy(policy: Policy, title: str, spec: EnvSpec) -> None:
    """Let a user's policy act in one row of two lanes. Raises UserError if methods or results do not fit."""
    kind = type(policy)
    trial = NetworkTrial(policy, title, spec=kind.spec is Policy.spec, act=kind.act is Policy.act)
    outputs, memory = (trial.call(method, "an empty call") for method in (policy.spec, policy.state_spec))
    for what, found in (("spec", outputs), ("state_spec", memory)):
        if not isinstance(found, dict) or not all(isinstance(leaf, Field) for _, leaf in tree.leaves(found)):
            raise UserError(f"{trial.where}: {what} gave {found!r}, it must give a dict of Fields")
    own = outputs.get("action")
    if own != fields(spec.action):
        raise UserError(f"{trial.where}: spec must have `action` {fields(spec.action)}, as actions are; it has {own}")
    seen, two = f"with obs {describe_fields(spec.obs)}", "for two lanes,"
    state = trial.call(policy.initial, "two lanes", 2)
    trial.check(f"initial, {two}", state, memory, 2)
    step = {k: x for k, x in _rows(spec, 2).items() if k not in ("terminated", "truncated")}  # see acting.act_rows
    step["noise"] = torch.full((2, policy.noise), 0.5)
    said = trial.call(policy.act, f"a row of two lanes {seen}", step, state)
    if not isinstance(said, tuple) or len(said) != 2:
        raise UserError(f"{trial.where}: act gave {type(said).__name__}, it must give (outputs, the state after)")
    trial.check(f"act, {two}", said[0], outputs, 2)
    trial.check(f"act, {two} as the state after", said[1], memory, 2)


def try_unroll(policy: Policy, title: str, spec: EnvSpec) -> None:
    """Unroll three rows of two lanes, as actor-critic losses do. Raises UserError if the results do not fit."""
    trial = NetworkTrial(policy, title, unroll=type(policy).unroll is Policy.unroll)
    batch = {**_rows(spec, 3, 2), **_zeros(policy.spec(), 3, 2)}
    takes = f"three rows of two lanes with obs {describe_fields(spec.obs)}"
    learnt = trial.call(policy.unroll, takes, batch, policy.initial(2))
    trial.check("unroll, for three rows of two lanes,", learnt, LEARNT, 3, 2)


_building = threading.Lock()


def count_parameters(policy: PolicyFactory) -> int:
    """Count the parameters of a policy by making it once. The state of torch's random generator does not change."""
    with _building, torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in policy().parameters())


def build_network(
    policy: PolicyFactory, seed: int, precision: str = "float32", device: torch.device | str = "cpu"
) -> Policy:
    """Build the network on a device, with initial weights that depend only on `seed`, whatever other threads do."""
    with _building, outside(), outlines(False):
        torch.manual_seed(seed)
        return set_precision(policy().to(device), precision)
