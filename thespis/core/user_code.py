"""Finds code that a user names by `file.py::name` or `module::name`, and names functions that a user passes."""

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
from thespis.core.import_guard import importing

if TYPE_CHECKING:
    Spec = str | Callable[..., Any]
else:
    # Flags and YAML hold text only; Python callers may also pass the function itself.
    Spec = str

_OWN_FILE = "thespis_user_"
"""Prefix of the module names of files that were loaded by path."""


def locate(function: Callable[..., Any]) -> str:
    """Return the location of a function: `module::name`, or `file.py::name` for a script or a file loaded by path.

    The name of a lambda, a local function or a nameless object contains angle brackets.
    """
    name = getattr(function, "__qualname__", f"<{type(function).__name__}>")
    module = getattr(function, "__module__", "__main__")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")  # may be "<stdin>"
    if file.is_file() and (module == "__main__" or module.startswith(_OWN_FILE)):
        return f"{file.absolute()}::{name}"
    return f"{module}::{name}"


def why_unresolvable(spec: Spec, *, elsewhere: bool = False) -> str | None:
    """Return why `resolve` cannot find `spec` again by its location, or None if it can.

    `elsewhere`: whether another process has to find it.
    """
    source, _, name = spec.partition("::") if isinstance(spec, str) else locate(spec).partition("::")
    if "<" in name:
        return "it is a lambda, a function inside another, or an object without a name"
    if source == "__main__" and (elsewhere or not hasattr(sys.modules["__main__"], name.partition(".")[0])):
        return "it is defined at a prompt, in a notebook or in a script from standard input"
    return None


def resolve(spec: Spec) -> Any:
    """Return the object that `module::name` or `file.py::name` names; return other text and functions unchanged."""
    if not isinstance(spec, str) or "::" not in spec:
        return spec
    source, _, name = spec.partition("::")
    if (reason := why_unresolvable(spec)) is not None:
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
        return sys.modules["__main__"]  # importing the running script would run it a second time
    return load_file(Path(source))


def load_file(path: Path) -> types.ModuleType:
    """Load a Python file as a module. The file can import its neighbours, from any working directory.

    Its definitions are pickled by value, because other processes cannot import the module.
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
        if folder not in sys.path:  # appended last, as in the run's other processes
            sys.path.append(folder)
        try:
            with importing():
                plan.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        cloudpickle.register_pickle_by_value(module)
    return sys.modules[name]
