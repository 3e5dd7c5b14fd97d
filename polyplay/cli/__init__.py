"""The command `polyplay`: a small file for each verb."""
