"""Networks, and the device that they compute on: from a description of an environment to a policy that acts and
unrolls.
"""

from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import NETS, NetworkFactory, make, make_deterministic, make_values
from polyplay.nets.policy import Policy
from polyplay.nets.q_network import DPGNetwork, QNetwork
