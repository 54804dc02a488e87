from sluice.mps.isolation.back_off import BackOff


def test_the_first_restart_is_immediate_and_the_next_ones_wait_ever_longer() -> None:
    back_off = BackOff()
    delays = []
    for second in range(9):
        back_off.ready(second)
        delays.append(back_off.lost(second + 0.9, answered=False))
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_worker_that_has_answered_a_batch_is_restarted_at_once_even_the_hundredth_time() -> None:
    back_off = BackOff()
    delays = []
    for second in range(100):
        back_off.ready(second)
        delays.append(back_off.lost(second + 0.1, answered=True))
    assert delays == [0.0] * 100
    assert [back_off.lost(200, answered=False), back_off.lost(201, answered=False)] == [0.5, 1.0]


def test_ten_seconds_of_readiness_are_forgiving() -> None:
    back_off = BackOff()
    assert [back_off.lost(second, answered=False) for second in (0.0, 1.0, 2.0)] == [0.0, 0.5, 1.0]
    back_off.ready(10.0)
    assert back_off.lost(19.9, answered=False) == 2.0
    back_off.ready(100.0)
    assert [back_off.lost(110.0, answered=False), back_off.lost(111.0, answered=False)] == [0.0, 0.5]


def test_a_worker_that_never_came_up_is_not_healthy() -> None:
    back_off = BackOff()
    back_off.ready(0.0)
    assert [back_off.lost(second, answered=False) for second in (9.0, 100.0, 1000.0)] == [0.0, 0.5, 1.0]
