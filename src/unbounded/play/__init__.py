"""A page in which one watches depth grow: `unbounded play`.

A small trainer in JavaScript with the library's layers, families and rules, which runs in the
browser itself; the tests compare it with the library, step by step. `html()` is the page.
"""

from unbounded.play.page import html as html
from unbounded.play.page import write as write
