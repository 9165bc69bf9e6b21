"""Models: how they are named (``reference``), where they lie (``locate``), how they get there (``pull``)."""

from lcpd.models.locate import ModelMissing, resolve
from lcpd.models.reference import BadReference

__all__ = ["BadReference", "ModelMissing", "resolve"]
