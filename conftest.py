"""Properties may take any time: a machine that is busy with other work is no fault of the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("at-leisure", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at-leisure")
