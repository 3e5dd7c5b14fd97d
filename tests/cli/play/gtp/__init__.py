"""Tests of the Go Text Protocol."""
