from sluice.mps.isolation.back_off import BackOff


def test_the_first_restart_is_immediate_and_the_next_ones_wait_ever_longer() -> None:
    back_off = BackOff()
    delays = []
    for second in range(9):
        back_off.ready(second)
        delays.append(back_off.lost(second + 0.9))
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_minute_of_health_is_forgiving() -> None:
    back_off = BackOff()
    assert [back_off.lost(0.0), back_off.lost(1.0), back_off.lost(2.0)] == [0.0, 0.5, 1.0]
    back_off.ready(10.0)
    assert back_off.lost(69.9) == 2.0
    back_off.ready(100.0)
    assert [back_off.lost(160.0), back_off.lost(161.0)] == [0.0, 0.5]


def test_a_worker_that_never_came_up_is_not_healthy() -> None:
    back_off = BackOff()
    back_off.ready(0.0)
    assert [back_off.lost(10.0), back_off.lost(100.0), back_off.lost(1000.0)] == [0.0, 0.5, 1.0]
