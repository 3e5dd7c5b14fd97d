"""`python -m polyplay` is `polyplay`."""

from __future__ import annotations

import sys

from polyplay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
