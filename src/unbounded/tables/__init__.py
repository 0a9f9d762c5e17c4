"""Tables: from a CSV, TSV or Parquet file or a frame to a model, its predictions and a page.

    model = TableModel.fit("train.csv", target="price")
    model.predict("new.csv")          # a pandas frame
    model.evaluate("test.csv")        # scores
    model.report("page.html", "test.csv")
    model.save("house.udn")

The parts of `fit` can be used alone: `Table` reads in chunks, `profile` finds out what the columns
are, `Encoding` turns them into numbers, `prepare` does all of that. What is learnt from a table is
data: `Encoding` and `Target` become plain dictionaries and come back from them. Needs the extra
`unbounded[tables]`: pandas and pyarrow, imported when a table is opened.
"""

from unbounded.tables.columns import Column as Column
from unbounded.tables.columns import Profile as Profile
from unbounded.tables.columns import profile as profile
from unbounded.tables.encoding import Encoding as Encoding
from unbounded.tables.encoding import Store as Store
from unbounded.tables.model import TableModel as TableModel
from unbounded.tables.prepare import PreparedTable as PreparedTable
from unbounded.tables.prepare import prepare as prepare
from unbounded.tables.reading import Table as Table
from unbounded.tables.reading import TableError as TableError
from unbounded.tables.target import RULE as RULE
from unbounded.tables.target import TASKS as TASKS
from unbounded.tables.target import Target as Target
from unbounded.tables.target import infer_target as infer_target
from unbounded.tables.workers import BatchPredictor as BatchPredictor
