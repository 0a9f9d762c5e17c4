"""Data sets, made or read."""

from unbounded.data.spirals import spiral as spiral
from unbounded.data.tents import tent as tent
