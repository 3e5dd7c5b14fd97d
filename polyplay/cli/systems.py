"""`polyplay systems`: what each is good for, and where there is room the six choices that make it."""

from __future__ import annotations

from polyplay.common.errors import UserError

WIDE = 140  # columns from which on the table of choices is printed
GOOD_FOR = {
    "a2c": "simplest on-policy baseline; any actions, cheap steps",
    "a3c": "asynchronous on CPUs, one core per worker; any actions",
    "accel": "A2C or PPO on many cores or GPUs; two groups of lanes",
    "accel_dqn": "DQN with many lanes and large batches; discrete actions",
    "alphago_zero": "board games, from their rules alone, by search and self-play",
    "apex": "many actors and one replay, long runs; discrete actions",
    "apex_dpg": "many actors and one replay; continuous actions",
    "appo": "asynchronous PPO with many actors; any actions",
    "dqn": "few environment steps; discrete actions; easy to read",
    "five": "games of two teams: one policy against itself and its past, at scale",
    "ftw": "games of teams: a population with rewards of its own, and two clocks",
    "ga3c": "many agents that share one network on a GPU; any actions",
    "gorila": "many learners and a parameter server; discrete actions",
    "impala": "high throughput, images, recurrent networks; any actions",
    "league": "several agents in one environment: self-play, past selves, ratings",
    "pbt": "hyperparameters that change while training; over any system",
    "ppo": "a first agent in your own environment; robust, any actions",
    "r2d2": "recurrent networks with a replay; discrete actions",
    "rainbow": "fewest Atari frames; discrete actions",
}


def command(words: list[str]) -> None:
    """Prints the table of systems."""
    from rich import box
    from rich.table import Table

    from polyplay import systems
    from polyplay.runs import flags
    from polyplay.runs.reports.screen import default_console

    if words and not flags.wants_help(words):
        raise UserError(f"unexpected '{words[0]}' for polyplay systems: it takes no options")
    if words:
        print("usage: polyplay systems\n\nWhat each system is good for; on a wide terminal also how they differ.")
        return
    rows = {name: systems.load(name).ROW for name in systems.names()}
    console, wide = default_console(), default_console().width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("system", style="bold", no_wrap=True)
    for heading in ["good for", *next(iter(rows.values()), {})] if wide else ["good for", "source"]:
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, GOOD_FOR.get(name, ""), *(row.values() if wide else [row["source"]]))
    console.print(table)
    print("A lane is one parallel environment; other libraries count them with num_envs.")
    print("Start with ppo. docs/systems/index.md compares all systems.")
