"""A run, from its options to its directory: plan, session, reports, resume."""
