"""Data sets, made or read."""

from unbounded.data.sequences import Hops as Hops
from unbounded.data.sequences import Text as Text
from unbounded.data.sequences import WordProblem as WordProblem
from unbounded.data.sequences import windows as windows
from unbounded.data.spirals import spiral as spiral
from unbounded.data.tents import tent as tent
