"""Messages of too many parts are found out before they are parsed."""

import pytest
from tritonclient.grpc import service_pb2

from sluice.gateway.grpc.transport.fields import MAX_FIELDS, check_fields
from sluice.models.errors import RequestError

RAW = service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
MIB = 1 << 20


def infer(raw: int, typed: int = 0) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(raw)])
    request.inputs.add(name="x").contents.bytes_contents.append(bytes(typed))
    encoded: bytes = request.SerializeToString()
    return encoded


def test_raw_contents_may_be_large_and_other_parts_may_not() -> None:
    check_fields(infer(raw=16 * MIB, typed=3 * MIB), RAW, 4 * MIB)
    check_fields(infer(raw=0, typed=16 * MIB))
    with pytest.raises(RequestError, match="exceeds 4194304 bytes without its raw contents"):
        check_fields(infer(raw=MIB, typed=5 * MIB), RAW, 4 * MIB)
    with pytest.raises(RequestError, match="exceeds 1000 bytes without its raw contents"):
        check_fields(infer(raw=0, typed=2000), RAW, 1000)


def test_many_small_parts_are_refused() -> None:
    part = b"\x2a\x00"  # an empty input
    check_fields(part * MAX_FIELDS)
    with pytest.raises(RequestError, match=f"more than {MAX_FIELDS} fields"):
        check_fields(part * 3 * MIB)
    kinds = b"\x08\x01" + b"\x09" + bytes(8) + b"\x0d" + bytes(4)  # a number, eight bytes, four bytes
    check_fields(kinds + b"\x22\xff\xff\xff\x07" + bytes(16 * MIB), RAW, 17 * MIB)


@pytest.mark.parametrize("noise", [b"\x07" * 5 * MIB, b"\x0b" * 5 * MIB, b"\x0f" + bytes(5 * MIB)])
def test_noise_is_left_to_the_parser(noise: bytes) -> None:
    check_fields(noise, RAW, 4 * MIB)
