"""Plain data, shared memory and files: what everything stands on."""
