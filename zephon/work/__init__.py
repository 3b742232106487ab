"""What is trained on, in which order. Pure: no file is read and no state is kept here."""

from zephon.work.mixture import MixtureSpec
from zephon.work.phased import PhasedMixtureWorkSource
from zephon.work.phases import Phase
from zephon.work.source import Plan, StaticMixtureWorkSource, WorkSource
from zephon.work.tokens import TokenEstimation

__all__ = [
    "MixtureSpec",
    "Phase",
    "PhasedMixtureWorkSource",
    "Plan",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "WorkSource",
]
