"""Reject the command `python -m polyplay.train` with an error that names the right command, `polyplay train`."""

import sys

if __name__ == "__main__":
    print(f"polyplay: error: no module polyplay.train; use polyplay train {' '.join(sys.argv[1:])}", file=sys.stderr)
    sys.exit(2)

from polyplay.api import train

sys.modules[__name__] = train  # type: ignore[assignment] # so polyplay.train stays the function
