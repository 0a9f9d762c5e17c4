"""Settings of the documentation: `make docs` builds it, without a network.

Pages are Markdown (MyST). Tutorials are notebooks kept as text; their cells run at every build, so
what they show is what the code does today.
"""

import logging
import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "unbounded"
author = "The unbounded developers"
project_copyright = author
version = release = re.search(  # type: ignore[union-attr]
    r'^version = "(.+)"', (HERE.parent / "pyproject.toml").read_text(encoding="utf-8"), re.M
)[1]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",  # docs/docstrings.py
]
exclude_patterns = ["_build"]
suppress_warnings = ["toc.empty_glob"]

# Pages
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
# What other pages of the repository say once is a page of the site, too.
ELSEWHERE = {
    "../CHANGES.md": "changes.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "security.md",
    "../results/README.md": "result_files.md",
}

# Notebooks
nb_execution_mode = "force"
nb_execution_in_temp = True  # they write files
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the kernels: a second thread only waits
# Kernels of this build alone: they do as told here, whatever profile of IPython its user has, and
# do not warn that they talk to the build in the clear, within one machine.
PROFILES = tempfile.TemporaryDirectory()
os.environ["IPYTHONDIR"] = PROFILES.name
(Path(PROFILES.name) / "profile_default").mkdir()
(Path(PROFILES.name) / "profile_default" / "ipython_kernel_config.py").write_text(
    "get_config().IPKernelApp.log_level = 'ERROR'\n"
)
logging.getLogger("traitlets").setLevel(logging.WARNING)  # a line for each notebook

# The reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {
    "exclude-members": "training, T_destination, call_super_init, dump_patches"
}
python_maximum_signature_line_length = 88
napoleon_custom_sections = [
    (name, "params_style")
    for name in (
        "Main args",
        "Other args",
        "Main arguments of both estimators",
        "Other arguments of both",
    )
]
napoleon_use_rtype = False
default_role = "code"
toc_object_entries_show_parents = "hide"

# Looks
html_theme = "furo"
html_title = "unbounded"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5d7a", "color-brand-content": "#0b5d7a"},
    "dark_css_variables": {"color-brand-primary": "#7cc7e0", "color-brand-content": "#7cc7e0"},
    "navigation_with_keys": True,
}


PLAYGROUND = """

```{raw} html
<iframe src="play.html" title="The playground" loading="lazy"></iframe>
<p><a href="play.html">The playground alone</a></p>
```

"""


def _own_links(app, docname, source):
    """Links to files at the root become links to the pages that include them."""
    depth = docname.count("/")
    for there, here in ELSEWHERE.items():
        source[0] = source[0].replace(f"]({'../' * depth}{there}", f"]({'../' * depth}{here}")
    if docname == "playground":  # where it can be played with, below the title
        title, _, rest = source[0].partition("\n")
        source[0] = title + PLAYGROUND + rest


def _write_playground(app, exception):
    """The page that trains in the browser, beside those that tell of it."""
    if exception is None and "playground" in app.env.found_docs:
        from unbounded import play

        play.write(Path(app.outdir) / "play.html")


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _own_links)
    app.connect("build-finished", _write_playground)
