"""Several machines: an agent on each starts workers there, and a link mirrors what they share with the main machine."""
