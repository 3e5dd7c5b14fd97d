from __future__ import annotations

import pytest

from polyplay.cli.arguments import listen
from polyplay.core.errors import UserError


def test_a_port_in_use_names_the_option():
    with listen(0) as first:
        port = first.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(UserError, match=rf"^--port: {port} is in use; name another, such as --port"):
            listen(port)
