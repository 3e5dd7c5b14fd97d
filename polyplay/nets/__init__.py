"""Networks: construction from an EnvSpec, choice of actions, evaluation of rollouts, devices and precision."""

from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import NETS, NetworkFactory, make, make_deterministic, make_values
from polyplay.nets.policy import Policy
from polyplay.nets.q_network import DPGNetwork, QNetwork
