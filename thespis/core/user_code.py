"""Code that a user names: `file.py::name`, `module::name`, or the function itself. Finds it, and says where it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.core.errors import ThespisError
from thespis.core.importing import importing

if TYPE_CHECKING:
    Spec = str | Callable[..., Any]
else:
    # The command line and YAML only know the text; from Python the function itself will do.
    Spec = str

_OWN_FILE = "thespis_user_"
"""What the modules of files that were named by their path are called."""


def locate(function: Callable[..., Any]) -> str:
    """Where to find a function: `module::name`, or `file.py::name` if it stands in a script or a file given by path.

    One that has no name, or only one inside another function, gets a name in angle brackets.
    """
    name = getattr(function, "__qualname__", f"<{type(function).__name__}>")
    module = getattr(function, "__module__", "__main__")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")  # "<stdin>" of a script from there
    if file.is_file() and (module == "__main__" or module.startswith(_OWN_FILE)):
        return f"{file.absolute()}::{name}"
    return f"{module}::{name}"


def lost(spec: Spec, *, elsewhere: bool = False) -> str | None:
    """Why something cannot be found again by the name that `locate` gives it, if it cannot.

    `elsewhere`: by another process than this.
    """
    source, _, name = spec.partition("::") if isinstance(spec, str) else locate(spec).partition("::")
    if "<" in name:
        return "it is a lambda, a function inside another, or an object without a name"
    if source == "__main__" and (elsewhere or not hasattr(sys.modules["__main__"], name.partition(".")[0])):
        return "it is defined at a prompt, in a notebook or in a script from standard input"
    return None


def resolve(spec: Spec) -> Any:
    """The function behind `module::name` or `file.py::name`; any other text and any function is returned as it is."""
    if not isinstance(spec, str) or "::" not in spec:
        return spec
    source, _, name = spec.partition("::")
    if (reason := lost(spec)) is not None:
        raise ThespisError(f"{spec!r} cannot be found again: {reason}; put it into a file and give file.py::name")
    try:
        with importing():
            found: Any = _module(source)
            for part in name.split("."):
                found = getattr(found, part)
    except ThespisError:
        raise
    except (Exception, SystemExit) as error:
        raise ThespisError(f"{spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def _module(source: str) -> types.ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and Path(script).resolve() == Path(source).resolve():
        return sys.modules["__main__"]  # importing the script that runs would run it a second time
    return load_file(Path(source))


def load_file(path: Path) -> types.ModuleType:
    """A Python file as a module, which can import the files beside it, from whatever folder it is loaded.

    What it defines is sent to other processes by value: they could not import it.
    """
    import cloudpickle

    name = f"{_OWN_FILE}{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        plan = importlib.util.spec_from_file_location(name, path)
        if plan is None or plan.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        module = importlib.util.module_from_spec(plan)
        sys.modules[name] = module
        folder = str(path.resolve().parent)
        if folder not in sys.path:  # last, as other processes of the run get it too: the file may import its neighbours
            sys.path.append(folder)
        try:
            with importing():
                plan.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        cloudpickle.register_pickle_by_value(module)
    return sys.modules[name]
