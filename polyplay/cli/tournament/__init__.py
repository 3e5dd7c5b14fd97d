"""`polyplay tournament`: every two players meet; who beats whom, and ratings of all."""


def command(words: list[str]) -> None:
    """main is loaded only here."""
    from polyplay.cli.tournament import main

    main.command(words)
