"""`polyplay population`: the members of a population, best first, and a picture of who copied whom."""


def command(words: list[str]) -> None:
    """main is loaded only here."""
    from polyplay.cli.population import main

    main.command(words)
