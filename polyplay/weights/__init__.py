"""The weights of an agent as one flat vector: how versions are published and pulled, how gradients reach them."""

from polyplay.weights.hogwild import Chunked, Hogwild
from polyplay.weights.parameter_server import ParameterServer, serve_parameters
from polyplay.weights.params import AgentParams, Params, param_sizes
from polyplay.weights.update import AllReduce, Local, OptimizerSpec, averaged
