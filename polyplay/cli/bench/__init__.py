"""`polyplay bench`: how fast this machine could be, how fast each system is, and where the rest goes."""

SCHEMA = 1  # of its JSON document


def command(words: list[str]) -> int:
    """The exit status. main is loaded only here: the processes that measure need none of it."""
    from polyplay.cli.bench import main

    return main.command(words)
