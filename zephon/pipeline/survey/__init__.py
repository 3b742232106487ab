"""A full pass over data before it is trained on: what is broken, empty, huge, repeated, or held out and trained on."""

from zephon.pipeline.survey.survey import Progress, Survey, survey

__all__ = ["Progress", "Survey", "survey"]
