"""Networks, and the device that they compute on: from a description of an environment to a policy that acts and
unrolls.
"""

from polyplay.nets.factory import NETS, Deterministic, Factory, Policy, Values, make, make_deterministic, make_values

__all__ = ["NETS", "Deterministic", "Factory", "Policy", "Values", "make", "make_deterministic", "make_values"]
