"""`polyplay systems`: what each is good for, and where there is room the six choices that make it."""

from __future__ import annotations

from polyplay.common.errors import UserError

WIDE = 140  # columns from which on the table of choices is printed
GOOD_FOR = {
    "a2c": "the simplest: any actions, cheap steps, cores in step",
    "a3c": "the classic: a core per worker, none waits for another",
    "accel": "A2C or PPO with two groups of lanes in turn, many cores or GPUs",
    "accel_dqn": "DQN of many lanes and large batches: discrete actions",
    "apex": "many actors and one replay: discrete actions, long runs",
    "apex_dpg": "the same for real actions in a bounded box",
    "appo": "PPO on actors that run ahead: many actors, any actions",
    "dqn": "few environment steps, discrete actions; easy to read",
    "ga3c": "one network for many agents: predictors and trainers on a GPU",
    "gorila": "many learners on a parameter server: discrete actions",
    "impala": "images and memory at high throughput: many actors, any actions",
    "ppo": "a first agent of your own: robust, any actions",
    "r2d2": "memory and a replay: discrete actions, hidden state",
    "rainbow": "the fewest Atari frames: discrete actions",
}


def command(words: list[str]) -> None:
    """Prints the table of systems."""
    from rich import box
    from rich.table import Table

    from polyplay import systems
    from polyplay.runs import flags
    from polyplay.runs.reports.terminal import default_console

    if words and not flags.wants_help(words):
        raise UserError(f"unexpected '{words[0]}' for polyplay systems: it takes no options")
    if words:
        print("usage: polyplay systems\n\nWhat each system is good for; on a wide terminal the choices that make it.")
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
    print("Begin with ppo. docs/systems/index.md compares all of them.")
