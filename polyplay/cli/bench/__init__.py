"""`polyplay bench`: how fast each system is on this machine, and where its time goes."""

SCHEMA = 2  # of its JSON document


def command(words: list[str]) -> int:
    """The exit status. main is loaded only here: the processes that measure need none of it."""
    from polyplay.cli.bench import main

    return main.command(words)
