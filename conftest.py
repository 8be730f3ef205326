"""Properties have no deadline: a machine that is busy with other work is no fault of the code."""

from hypothesis import settings

settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")
