"""The Go Text Protocol, version 2: Go programs ask on stdin, the agent answers on stdout."""
