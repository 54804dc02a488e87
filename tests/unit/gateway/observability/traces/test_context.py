"""Contexts of traces in headers, and ids of spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.observability.traces.context import (
    MAX_STATE,
    OVER_GRPC,
    OVER_HTTP,
    TraceContext,
    batch_span_id,
    derived_span_id,
    new_context,
    new_span_id,
    parse_context,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_a_context_is_read_and_written(flags: str, sampled: bool) -> None:
    context = parse_context(f"00-{TRACE}-{PARENT}-{flags}", "a=b,c=d", OVER_HTTP)
    assert context == TraceContext(TRACE, PARENT, sampled, "a=b,c=d", "http")
    assert context.traceparent == f"00-{TRACE}-{PARENT}-{'01' if sampled else '00'}"


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_a_malformed_context_is_none(traceparent: str) -> None:
    assert parse_context(traceparent, "a=b", OVER_GRPC) is OVER_GRPC


def test_a_later_version_may_say_more() -> None:
    assert parse_context(f"01-{TRACE}-{PARENT}-01-more", "", OVER_HTTP).trace_id == TRACE


@pytest.mark.parametrize("state", ["a=b\r\nx: y", "a=ä", "a" * (MAX_STATE + 1)])
def test_a_state_that_cannot_be_passed_on_is_left_out(state: str) -> None:
    context = parse_context(f"00-{TRACE}-{PARENT}-01", state, OVER_HTTP)
    assert (context.trace_id, context.state) == (TRACE, "")


@given(IDS, st.integers(0, 2**40), st.integers(0, 100))
def test_ids_of_spans_have_64_bits_and_are_never_0(span_id: int, batch: int, stage: int) -> None:
    for each in (new_span_id(), batch_span_id(span_id, batch, stage), derived_span_id(span_id, batch)):
        assert 0 < each < 2**64


@given(IDS)
def test_the_spans_within_a_request_have_ids_of_their_own(span_id: int) -> None:
    ids = {batch_span_id(span_id, batch, stage) for batch in range(50) for stage in range(5)}
    assert len(ids | {span_id}) == 251


def test_a_trace_that_begins_here_has_no_parent() -> None:
    context = new_context("http")
    assert (len(context.trace_id), context.parent_id, context.sampled) == (32, "", True)
    assert new_context("http").trace_id != context.trace_id
