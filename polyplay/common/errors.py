"""What can go wrong, by whose hand. Imports nothing."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user's: one line that names the option, what was given, what is allowed and the fix."""


class Closed(Exception):
    """Whoever waits on a ring or a version gets this when the crew stops; workers just return on it."""


class Leaving(Exception):
    """The run ends before the next update: a worker is in a rollout that takes too long to be waited for."""


class EnvFailure(Exception):
    """An environment raised or hung more often than a pool may repair; carries the environment's own traceback."""


class WorkerLost(Exception):
    """A worker raised or was killed; the message holds its traceback or its signal."""


class Diverged(Exception):
    """A replay did not give what the run gave."""


class NotFinite(Exception):
    """A loss, a gradient or a network's answer was NaN or infinite; a learner saves the batch for inspection."""


class BadPriority(ValueError):
    """A priority for a replay was NaN, negative or infinite; nothing was changed."""
