"""Networks and their devices: make a network from an environment's description, choose actions, evaluate rollouts."""

from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import NETS, NetworkFactory, make, make_deterministic, make_values
from polyplay.nets.policy import Policy
from polyplay.nets.q_network import DPGNetwork, QNetwork
