"""Settings of all tests: no Hypothesis deadline, so that no test depends on the speed of the machine.

The tests run on the pure build, and with SLUICE_TEST_BUILD=compiled on the compiled one (`make test-compiled`).
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from sluice.gateway.version import is_compiled

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_RUNNER = "replaces how a runner makes backends, which compiled classes do not allow"
PURE_ONLY = {
    "test_rejected_demand.py::test_thousands_that_are_refused_have_room_looked_for_some_times_only": (
        "counts the calls of a method by replacing it; calls in compiled code do not look methods up"
    ),
    "test_many_models.py::test_the_cost_of_a_decision_does_not_grow_with_the_number_of_models": (
        "counts the interpreter's instructions with a tracer and a subclass; compiled code has neither"
    ),
    "test_assembly.py::test_a_fixed_width_tensor_is_copied_once_from_body_to_backend": (
        "counts the calls of a function by replacing it; calls in compiled code do not look functions up"
    ),
    "test_dataplane.py::test_what_is_not_served_any_more_is_forgotten": (
        "refers weakly to an object, which compiled classes do not allow"
    ),
    "test_grpc_connection.py::test_an_error_of_the_server_ends_one_connection": (
        "makes a method fail by replacing it; calls in compiled code do not look methods up"
    ),
    "test_whole_gateway.py::test_a_bug_is_found": (
        "puts bugs into the gateway by replacing functions; calls in compiled code do not look them up"
    ),
    "test_local_stages.py::test_a_member_that_has_ended_when_they_are_joined_is_not_missing": (
        "gives a simple object for a submission, which compiled code does not take"
    ),
    "test_waiting_batches.py::test_only_batches_that_are_not_taken_back_count_against_the_limit": (
        "gives a simple object for a channel, which compiled code does not take"
    ),
    "test_loader.py::test_a_model_that_is_created_sooner_overtakes_other_loads_and_no_unload": _RUNNER,
    "test_memory_measurement.py::test_models_that_wait_for_each_other_are_made_together_and_not_weighed": _RUNNER,
    "test_memory_measurement.py::test_models_that_were_weighed_before_wait_for_nobody": _RUNNER,
    "test_runner.py::test_models_whose_memory_is_known_are_created_beside_each_other": _RUNNER,
}
"""The tests that look into code in ways that only Python allows, by the end of their names: the reason."""


def pytest_configure() -> None:
    """Refuse to test another build than the one that was asked for."""
    wanted = os.environ.get("SLUICE_TEST_BUILD", "pure")
    if wanted not in {"pure", "compiled"}:
        raise pytest.UsageError(f"SLUICE_TEST_BUILD: expected pure or compiled, got {wanted!r}")
    found = "compiled" if is_compiled() else "pure"
    if found != wanted:
        raise pytest.UsageError(f"the tests are of the {wanted} build, but the one that is imported is {found}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only pure Python allows where the build is compiled."""
    if is_compiled():
        for item in items:
            for name, reason in PURE_ONLY.items():
                if item.nodeid.partition("[")[0].endswith(f"/{name}"):
                    item.add_marker(pytest.mark.skip(reason=f"pure build only: {reason}"))
