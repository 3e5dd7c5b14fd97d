"""Several machines: a crew on each starts workers there, and a line carries the data shared with the main machine."""
