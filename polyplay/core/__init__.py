"""Plain data, shared memory and files: the base of all other packages."""
