"""Attacks on what the library promises: damaged files, kills, signals, hostile tables, races."""
