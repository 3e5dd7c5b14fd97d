"""Atari games: the emulator, its screens, and how papers play it."""
