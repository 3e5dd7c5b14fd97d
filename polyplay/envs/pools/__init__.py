"""Pools of lanes: in this thread, in processes, of vector environments and of EnvPool."""
