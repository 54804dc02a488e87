"""Settings of all tests: no Hypothesis deadline, so that no test depends on the speed of the machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
