"""The command `polyplay`: its verbs (subcommands), and the web pages that some verbs serve."""
