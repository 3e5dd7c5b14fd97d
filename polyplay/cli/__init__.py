"""The command `polyplay`: its verbs, and the pages that it serves."""
