"""Keeps pyarrow from importing pandas, which no command needs."""

import sys
from collections.abc import Sequence
from types import ModuleType

OURS = ("stepscope.", "pyarrow.")


def without_pandas() -> None:
    """Lets pyarrow convert without pandas in this process, even if it is installed.

    pyarrow imports it with its first conversion, which takes 1.2 s and 33 MB. Others, such as the rules of
    users, import it as ever.
    """
    sys.meta_path.insert(0, _Refusing())


class _Refusing:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> None:
        """Raises ModuleNotFoundError if pyarrow asks for pandas."""
        if fullname == "pandas" and _importer().startswith(OURS):
            raise ModuleNotFoundError("pyarrow converts without it", name=fullname)


def _importer() -> str:
    """Returns the module that imports; of pyarrow's compiled code, the one that calls it."""
    frame = sys._getframe(2)
    while frame.f_back and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
