"""Data sets, made or read."""

from unbounded.data.spirals import spiral as spiral
