"""Tables: CSV, TSV and Parquet files read in chunks, understood, and encoded for a network.

    table = Table("train.csv")
    profiles = profile(table)                        # one pass: what is in each column
    target = infer_target(profiles.pop("price"))     # classes or a number
    columns = [p.column() for p in profiles.values()]
    store = Store.of(table, columns, target)         # a second pass: the values
    encoding, x = Encoding.fit(store, columns, rows, table.missing, seed=0)

Everything that is learnt from a table is data: `Encoding` and `Target` become plain dictionaries
and come back from them. Needs the extra `unbounded[tables]`: pandas and pyarrow.
"""

from unbounded.data.tables.columns import Column as Column
from unbounded.data.tables.columns import Profile as Profile
from unbounded.data.tables.columns import closest as closest
from unbounded.data.tables.columns import profile as profile
from unbounded.data.tables.encoding import Encoding as Encoding
from unbounded.data.tables.encoding import Store as Store
from unbounded.data.tables.reading import Table as Table
from unbounded.data.tables.reading import TableError as TableError
from unbounded.data.tables.target import RULE as RULE
from unbounded.data.tables.target import TASKS as TASKS
from unbounded.data.tables.target import Target as Target
from unbounded.data.tables.target import infer_target as infer_target
