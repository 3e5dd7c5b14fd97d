"""Answer the command `python -m polyplay.train`, known from other libraries, with the command to use instead."""

import sys

if __name__ == "__main__":
    print(f"polyplay: error: no module polyplay.train; use polyplay train {' '.join(sys.argv[1:])}", file=sys.stderr)
    sys.exit(2)

from polyplay.api import train

sys.modules[__name__] = train  # type: ignore[assignment] # so polyplay.train stays the function
