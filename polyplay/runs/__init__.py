"""Runs: their options, plans, main processes, reports and directories."""
