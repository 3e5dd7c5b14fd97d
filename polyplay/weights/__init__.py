"""Weights of an agent as one flat vector, their publication in versions, and their updates by gradients."""

from polyplay.weights.optimizers import OptimizerSpec, parts_of
from polyplay.weights.parameter_server import ParameterServer, serve_parameters
from polyplay.weights.params import AgentParams, Params, param_sizes
from polyplay.weights.update import AllReduce, Chunked, Hogwild, Local, averaged
