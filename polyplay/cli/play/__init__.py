"""`polyplay play`: a page to play a board game against an agent."""


def command(words: list[str]) -> None:
    """main is loaded only here."""
    from polyplay.cli.play import main

    main.command(words)
