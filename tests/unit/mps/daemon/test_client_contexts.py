"""The contexts that the daemon is asked to destroy; `test_fault_domain` tests their order."""

import asyncio
import os
import subprocess
from typing import cast

from sluice.mps.daemon.client_contexts import destroy_contexts
from sluice.mps.daemon.control import MpsControl
from tests.unit.mps.supervisor.test_fault_domain import Daemon


def test_those_of_a_worker_are_its_own_and_its_models_and_one_that_is_gone_keeps_none_of_the_others() -> None:
    commands: list[str] = []
    ours = os.getpid()
    with subprocess.Popen(["sleep", "600"]) as model:
        daemon = Daemon(commands, (1, ours, model.pid), refusing=(ours,))
        asyncio.run(destroy_contexts(cast(MpsControl, daemon), 60, ours))
        model.kill()
    assert sorted(commands) == sorted([f"terminate_client 7 {ours}", f"terminate_client 7 {model.pid}"])


def test_nobody_is_waited_for_where_the_daemon_has_no_client_of_a_worker() -> None:
    commands: list[str] = []
    asyncio.run(destroy_contexts(cast(MpsControl, Daemon(commands, (1,))), 60, os.getpid()))
    assert commands == []
