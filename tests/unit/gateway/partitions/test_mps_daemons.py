from sluice.gateway.partitions.mps_daemons import mps_daemons
from sluice.mps.partitions.partition import MpsPartition


def test_no_daemon_is_started_for_a_share_that_names_its_own() -> None:
    with mps_daemons([MpsPartition("a", "GPU-5d1f", 25, pipes="/mps/pipe")]) as controls:
        assert controls == {}
