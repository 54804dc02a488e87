"""Answers of MPS, as its documentation and users show them, read by both protocols."""

from pathlib import Path

import pytest

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.control import MpsClient, MpsServer
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.daemon.protocol3 import Protocol3

GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
OPAQUE = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


class Answers(MpsChannel):
    """A daemon with prepared answers, and no others."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(Path("/nowhere"))
        self._answers = answers

    def send(self, command: str, timeout_s: float | None = None) -> str:
        return self._answers[command]

    def call(self, *arguments: str, timeout_s: float | None = None) -> str:
        return self.send(" ".join(each for each in arguments if each != "--format=csv,noheader"))


def test_servers_and_clients_are_process_ids_one_a_line() -> None:
    control = Protocol2(
        Answers(
            {
                "get_server_list": "6472\n6473",
                "get_server_status 6472": "ACTIVE",
                "get_server_status 6473": "Server status: FAULT",
                "get_client_list 6472": "6741\n6739",
                "get_client_list 6473": "",
            }
        )
    )
    assert control.servers() == (MpsServer(6472, "ACTIVE"), MpsServer(6473, "FAULT"))
    assert control.clients() == (MpsClient(6739, 6472), MpsClient(6741, 6472))


@pytest.mark.parametrize("answer", [f"{GPU}/{OPAQUE}", f"Partition {GPU}/{OPAQUE} created"])
def test_a_new_set_is_named_as_builds_of_either_age_do(answer: str) -> None:
    assert Protocol2(Answers({f"sm_partition add {GPU} 7": answer})).add_partition(GPU, 7) == f"{GPU}/{OPAQUE}"


def test_chunks_are_free_that_are_in_no_set() -> None:
    table = (
        "GPU           Partition                             free   used   free   used   clients\n"
        "                                                    chunk  chunk  SM     SM\n"
        "GPU-74d43ed3  -                                     3      7      24     56     -\n"
        f"GPU-74d43ed3  {OPAQUE}  -      7      -      56     Yes\n"
    )
    assert Protocol2(Answers({"lspart": table})).free_chunks() == 3
    with pytest.raises(ControlFailed, match="'lspart' answered nothing, expected a row for the device"):
        Protocol2(Answers({"lspart": ""})).free_chunks()


def test_answers_that_are_none_are_reported() -> None:
    control = Protocol2(
        Answers(
            {
                "get_server_list": "MPS is confused",
                "get_default_active_thread_percentage": "",
                "terminate_client 1 2": "1",
                f"sm_partition add {GPU} 99": "Failed to add partition",
            }
        )
    )
    with pytest.raises(ControlFailed, match="'get_server_list' answered 'MPS is confused', expected process ids"):
        control.servers()
    with pytest.raises(ControlFailed, match="percentage' answered nothing, expected a percentage"):
        control.ping()
    with pytest.raises(ControlFailed, match="'terminate_client 1 2' answered '1', expected 0"):
        control.terminate_client(MpsClient(2, 1))
    with pytest.raises(ControlFailed, match="answered 'Failed to add partition', expected the name of a partition"):
        control.add_partition(GPU, 99)


def test_the_rows_of_protocol_3() -> None:
    control = Protocol3(
        Answers(
            {
                "server list": "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-",
                "client list --all": (
                    "51023,training,0,default,python train.py\n51087,training,0,high_priority,python eval.py, really"
                ),
            }
        )
    )
    assert control.servers() == (MpsServer(48201, "ACTIVE"),)
    assert control.clients() == (MpsClient(51023, 48201), MpsClient(51087, 48201))
    confused = Protocol3(Answers({"server list": "Cannot say"}))
    with pytest.raises(ControlFailed, match="'server list' answered 'Cannot say', expected rows of values"):
        confused.servers()
