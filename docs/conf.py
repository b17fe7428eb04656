"""Settings of the documentation site. `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated, get_origin

_DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(_DOCS / "_ext"), str(_DOCS.parent)]

import thespis  # noqa: E402  (found by the path above)
from thespis.core import bounds  # noqa: E402

_PROJECT = tomllib.loads((_DOCS.parent / "pyproject.toml").read_text())["project"]

project = "Thespis"
author = _PROJECT["authors"][0]["name"]
project_copyright = author
release = version = thespis.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "thespis_site"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_ext", "_static", "images", "Thumbs.db", ".DS_Store"]
suppress_warnings = ["config.cache"]
default_role = "literal"
highlight_language = "text"
nitpicky = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

repository_url = _PROJECT["urls"]["Repository"]
repository_branch = "main"
search_terms = {
    "replay": ["experience replay", "prioritized replay", "replay ratio"],
    "dqn": ["target network", "epsilon-greedy exploration", "epsilon"],
    "reference/settings-algorithms": ["learning rate", "optimizer", "discount factor"],
    "installation": ["GPU", "CUDA", "install"],
    "faq": ["bottleneck", "slow training"],
    "impala": ["importance sampling", "V-trace"],
    "quickstart": ["first run", "getting started"],
    "runs": ["metrics", "summary.json", "metrics.jsonl"],
    "training": ["resume", "budget", "number of actors"],
    "learners": ["all-reduce", "data parallelism", "preemption"],
    "communication": ["gradient compression", "error feedback", "bandwidth"],
    "cluster": ["Ray", "multi-node training"],
    "callbacks": ["Weights & Biases", "MLflow", "TensorBoard"],
    "algorithms": ["exploration"],
    "reliability": ["checkpoint", "restart", "crash"],
    "compare": ["compare runs"],
    "environments": ["Atari", "frame stack"],
    "glossary": ["n-step"],
    "tutorials/environment": ["custom environment", "own environment"],
    "tutorials/network": ["custom network"],
    "tutorials/algorithm": ["custom algorithm", "loss function"],
    "tutorials/architecture": ["custom architecture"],
}
"""Index entries, by page. If an entry equals the query, the site's search lists its page first."""

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
_RANGES = [name for name, value in vars(bounds).items() if get_origin(value) is Annotated]
autodoc_type_aliases = {name: name for name in ("Array", "Spec", *_RANGES)}
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Thespis {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = True
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "source_repository": f"{repository_url}/",
    "source_branch": repository_branch,
    "source_directory": "docs/",
    "navigation_with_keys": True,
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

linkcheck_timeout = 20
linkcheck_workers = 4
linkcheck_ignore = [rf"{repository_url}/.*"]
