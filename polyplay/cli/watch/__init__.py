"""`polyplay watch`: a live page over run directories."""


def command(words: list[str]) -> None:
    """main is loaded only here."""
    from polyplay.cli.watch import main

    main.command(words)
