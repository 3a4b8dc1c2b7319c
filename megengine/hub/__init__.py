"""Models from a folder or repository with a `hubconf.py`: its public functions are the entries.

Loading an entry runs the author's code, which can do anything you can. So `load`, `list` and `help` ask for trust:
pass `trust=True` for an author whom you trust. Repositories are copied by git into the cache (`MGE_HOME`, or
`~/.cache/megengine`) and used from there; `commit=` says which version runs. Weights alone run no code:
`load_serialized_obj_from_url` only reads them, and checks the hash in their name.
"""

import functools

from megengine.core import absent
from megengine.hub.hub import help, import_module, list, load, load_serialized_obj_from_url, pretrained

__all__ = ["help", "import_module", "list", "load", "load_serialized_obj_from_url", "pretrained"]

__getattr__ = functools.partial(absent.part_or_error, __name__)
