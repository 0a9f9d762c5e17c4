"""Models as files: one safetensors file, its configuration as JSON in the header, no pickle.

A file is opened once and read once (`contents`); what its header asks for is checked field by field
(`parts`) and against the tensors that it holds (`backing`) before anything is built (`models`).
"""

from unbounded.files.contents import FORMAT as FORMAT
from unbounded.files.contents import Contents as Contents
from unbounded.files.contents import digest as digest
from unbounded.files.contents import parse_header as parse_header
from unbounded.files.contents import read as read
from unbounded.files.contents import read_header as read_header
from unbounded.files.contents import read_tensors as read_tensors
from unbounded.files.contents import rebuilding as rebuilding
from unbounded.files.contents import under as under
from unbounded.files.contents import write_tensors as write_tensors
from unbounded.files.models import load as load
from unbounded.files.models import load_all as load_all
from unbounded.files.models import save as save
from unbounded.files.parts import PARTS as PARTS
from unbounded.files.parts import built_in as built_in
from unbounded.schema import FileError as FileError
