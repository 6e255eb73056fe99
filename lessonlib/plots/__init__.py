"""Still pictures of the lessons, drawn with matplotlib: `plots.kv_cache.batch_by_context(…)` and so on."""

from importlib import import_module
from types import ModuleType


def __getattr__(lesson: str) -> ModuleType:
    try:
        return import_module(f"lessonlib.plots.{lesson}")
    except ModuleNotFoundError as error:
        if error.name != f"lessonlib.plots.{lesson}":
            raise
        raise AttributeError(f"there are no pictures of a lesson {lesson!r}") from None
