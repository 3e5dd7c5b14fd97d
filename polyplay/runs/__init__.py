"""Runs, from options to the directory: plan, session, reports, resume."""
