"""The crew of a run starts, places, watches, replaces, scales and stops the run's workers."""
