"""Models for other programs: ONNX and torch's own pt2, in one file that is checked before it stays.

`export` is what users call. A file has all that stands between raw columns and named outputs.
"""

from unbounded.exporting.files import FORMATS as FORMATS
from unbounded.exporting.files import Exported as Exported
from unbounded.exporting.files import export as export
from unbounded.exporting.folders import load_folder as load_folder
from unbounded.exporting.folders import save_folder as save_folder
from unbounded.exporting.graphs import ExportError as ExportError
