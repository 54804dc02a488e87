import pytest

from sluice.batcher.interface.config import DeviceShare
from sluice.gateway.config.configured_partitions import partition_config
from sluice.gateway.config.server_config import ServerConfig
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, ShareMode

GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (ShareMode.HARD, DeviceShare(GPU, 0.3, 0.3)),
        (ShareMode.ELASTIC, DeviceShare(GPU, 0.3, 1.0)),
        (ShareMode.UNCAPPED, DeviceShare(GPU, 0.0, 1.0)),
        (ShareMode.STATIC, None),
    ],
)
def test_the_scheduler_knows_what_a_share_is_promised_and_what_it_may_have(
    mode: ShareMode, expected: DeviceShare | None
) -> None:
    config = ServerConfig()
    assert partition_config(config, MpsPartition("a", GPU, 30, mode=mode)).device == expected


def test_nobody_shares_cores_or_instances_by_time() -> None:
    config = ServerConfig()
    assert partition_config(config, CpuPartition("cpu0", (0,))).device is None
    assert partition_config(config, MigPartition("slice", "MIG-5d1f", "2g.20gb")).device is None
