"""Several machines: a crew on each starts workers there, and a line carries what they share with the main machine."""
