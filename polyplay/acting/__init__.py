"""The acting loops: receive rows, choose actions, write rows, send."""
