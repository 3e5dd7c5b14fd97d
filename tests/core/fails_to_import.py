"""A fork server can't get ready."""

raise RuntimeError("no place for\nits files")
