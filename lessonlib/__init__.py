"""Library of the course on LLM inference serving.

Everything that a notebook needs comes from here: model and GPU catalogues, the records that the
exercises return, `check`, `hint`, `quiz` and `figures`. Parts are loaded when they are first used, so
that the import itself stays fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lessonlib import check, figures, hint, machine, plots, quiz
    from lessonlib.gpus import GPUS, Gpu
    from lessonlib.models import MODELS, ModelConfig
    from lessonlib.records import Admission, BatchingResult, DecodeStep, OutOfBlocks, Request

try:
    __version__ = version("lessonlib")
except PackageNotFoundError:  # a checkout on the path that was never installed
    __version__ = "0+unknown"

_HOME = {
    "ModelConfig": "lessonlib.models",
    "MODELS": "lessonlib.models",
    "Gpu": "lessonlib.gpus",
    "GPUS": "lessonlib.gpus",
    "DecodeStep": "lessonlib.records",
    "OutOfBlocks": "lessonlib.records",
    "Request": "lessonlib.records",
    "BatchingResult": "lessonlib.records",
    "Admission": "lessonlib.records",
}
_MODULES = ("check", "figures", "hint", "machine", "plots", "quiz")

__all__ = [
    "GPUS",
    "MODELS",
    "Admission",
    "BatchingResult",
    "DecodeStep",
    "Gpu",
    "ModelConfig",
    "OutOfBlocks",
    "Request",
    "check",
    "figures",
    "hint",
    "machine",
    "plots",
    "quiz",
    "require",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"lessonlib.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'lessonlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def require(built_for: str) -> None:
    """Say so where the installed lessonlib is not the one that a notebook was built for.

    Args:
        built_for: the version of lessonlib that the notebook names.
    """
    if __version__ != built_for:
        print(
            f"This notebook was built for lessonlib {built_for}, and {__version__} is installed: names and checks "
            "may differ. Restart the runtime and run the set-up cell again, or take the notebook of your version."
        )
