"""Requests in JSON that repeat: only their numbers are read, and what comes out is as if all had been."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.http.codec import decode_request
from sluice.gateway.inference.request_template import JsonTemplate
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import ServingError
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import ARRIVED_NS, Client, identity, instant_gateway, message, talk

SIGNATURE = Signature(identity("m", ("x", DataType.FP32, (2,))))


def form_of(body: bytes, signature: Signature = SIGNATURE) -> JsonTemplate:
    request, flags = decode_request(body, None, signature)
    inputs, rows, key, memory_bytes = signature.check_inputs(request.inputs)
    return JsonTemplate(body, signature, inputs, RequestOptions(("x",), rows, key, memory_bytes, 0, request.id), flags)


def request(data: str, shape: str = "[1,2]", head: str = '{"inputs":[{', tail: str = "}]}") -> bytes:
    return f'{head}"name":"x","shape":{shape},"datatype":"FP32","data":{data}{tail}'.encode()


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ('{"inputs":[{', "}]}"),
        ('{ "inputs" : [ { ', ' , "parameters" : {} } ] , "parameters" : {"slo_ms": 5} }'),
        ('{"outputs":[{"name":"x"}],"inputs":[{', ', "else": "]}"} ]}'),
    ],
)
@pytest.mark.parametrize("data", ["[1,2]", "[[1,2]]", "[ [ 1.5e0 , -2 ] ]", "[[[1],[2]]]"])
def test_the_numbers_of_a_request_that_repeats_are_those_of_its_body(head: str, tail: str, data: str) -> None:
    template = form_of(request("[[0.25, 7]]", head=head, tail=tail))
    assert template.repeatable
    body = request(data, head=head, tail=tail)
    assert template.matches(body, None, SIGNATURE)
    inputs = template.tensors(body)
    assert inputs is not None
    expected = SIGNATURE.check_inputs(decode_request(body, None, SIGNATURE)[0].inputs).inputs["x"]
    assert isinstance(expected, np.ndarray)
    assert isinstance(inputs["x"], np.ndarray)
    assert inputs["x"].dtype == np.float32
    assert inputs["x"].tolist() == expected.tolist()
    assert inputs["x"].shape == (1, 2)


@pytest.mark.parametrize(
    "data",
    ["", "[", "[[", "[]", "[1]", "[1,2,3]", "[1,true]", "[1,2", "1,2", "[1,NaN]", "[1,1e40]", '[1,"2"]', "[1,2],[3]",
     '[9,9],"data":[1,2]', '[1,2],"shape":[2,1]', "null", "[[1],2]", "[1,2]]}]}"],
)  # fmt: skip
def test_data_that_is_not_as_before_is_left_to_who_reads_the_whole_body(data: str) -> None:
    template = form_of(request("[1,2]"))
    body = request(data)
    assert not template.matches(body, None, SIGNATURE) or template.tensors(body) is None


def test_requests_that_say_something_else_do_not_fit() -> None:
    template = form_of(request("[1,2]"))
    assert template.matches(request("[3,4]"), None, SIGNATURE)
    assert not template.matches(request("[3,4]"), 10, SIGNATURE)
    assert not template.matches(request("[3,4]"), None, Signature(SIGNATURE.pipeline))
    assert not template.matches(request("[3,4]", shape="[ 1,2]"), None, SIGNATURE)
    assert not template.matches(request("[3,4]", tail='}],"id":"a"}'), None, SIGNATURE)


@pytest.mark.parametrize(
    "body",
    [
        request("[1,2]", head='{"data":[1,2],"inputs":[{'),
        request("[1,2]", head='{"inputs":[{').replace(b'"data"', b'"d\\u0061ta"'),
        request("[1,2]", tail='}],"id":"a"}'),
        request("[1,2]", tail="}]" + " " * 5000 + "}"),
    ],
)
def test_a_request_with_an_id_or_whose_data_is_not_told_by_its_text_is_not_repeatable(body: bytes) -> None:
    assert not form_of(body).repeatable


def test_a_body_in_pieces_is_as_good() -> None:
    template = form_of(bytes(request("[1,2]")))
    inputs = template.tensors(bytearray(request("[3,4]")))
    assert inputs is not None
    assert isinstance(inputs["x"], np.ndarray)
    assert inputs["x"].tolist() == [[3, 4]]


def test_a_connection_answers_each_request_with_its_own_numbers_and_errors() -> None:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,))), identity("n", ("x", DataType.FP32, (1,))))

    async def conversation(client: Client) -> None:
        async def ask(data: str, model: str = "m") -> object:
            tensor = f'{{"name":"x","shape":[1,2],"datatype":"FP32","data":{data}}}'
            body = f'{{"inputs":[{tensor}],"parameters":{{"slo_ms":5}}}}'.encode()
            client.send(message("POST", f"/v2/models/{model}/infer", body))
            reply = await client.reply()
            return json.loads(reply.body)["outputs"][0]["data"] if reply.status == 200 else reply.json["error"]

        assert await ask("[1,2]") == [1, 2]
        assert await ask("[[3.5, 4]]") == [3.5, 4]
        assert await ask("[3]") == "input 'x' has 1 elements, but its shape [1,2] takes 2"
        assert "but its data does not fit" in str(await ask('[1,"2"]'))
        assert "unexpected shape for input 'x' for model 'n'" in str(await ask("[1,2]", "n"))
        assert await ask("[5, 6]") == [5, 6]

    talk(served, conversation)
    assert [given["inputs"]["x"].tolist() for given in served.runtime.submitted] == [[[1, 2]], [[3.5, 4]], [[5, 6]]]
    assert [given["deadline_ns"] - ARRIVED_NS for given in served.runtime.submitted] == 3 * [5_000_000]


def test_an_input_in_shared_memory_that_is_called_data_is_read_there_each_time() -> None:
    served = instant_gateway(identity("m", ("data", DataType.FP32, (2,))))
    key = f"/test-json-form-{os.getpid()}"
    region = Path(f"/dev/shm{key}")
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    tensor = {"name": "data", "shape": [1, 2], "datatype": "FP32", "parameters": place}
    bodies = [{"inputs": [tensor]}, {"inputs": [{each: tensor[each] for each in reversed(tensor)}]}]

    def store(number: int) -> None:
        region.write_bytes(np.array([number, 7], np.float32).tobytes())

    async def conversation(client: Client) -> list[object]:
        answers = []
        for number, body in enumerate([*bodies, *bodies]):
            store(number)
            client.send(message("POST", "/v2/models/m/infer", json.dumps(body).encode()))
            answers.append((await client.reply()).json["outputs"][0]["data"])
        return answers

    try:
        store(0)
        served.dataplane.shared_memory.register("r", key, 0, 8)
        assert talk(served, conversation) == [[0, 7], [1, 7], [2, 7], [3, 7]]
    finally:
        region.unlink()


SPACE = st.sampled_from(["", "", " ", "\r\n\t"])
NUMBERS = st.sampled_from(["0", "-0", "1", "1.0", "-0.0", "1e5", "1E+2", "1e-50", "16777217", "300", "true"])
ODD = st.sampled_from(["1e40", "1e400", "NaN", "-Infinity", "null", '"a"', '"]"', "01", "1.", "[1]", "{}", "]", ""])
MORE = st.sampled_from(
    ['"a":1', '"a":"]"', '"a":"}"', '"a":"data"', '"data":[1,2]', '"d\\u0061ta":[1,2]', '"a":{"data":[1,2]}',
     '"shape":[1,2]', '"a":"\\"]"', '"parameters":{}', '"name":"x"', '"id":""', '"datatype":"FP64"']
)  # fmt: skip
TYPES = st.sampled_from([DataType.FP32, DataType.FP64, DataType.INT16, DataType.UINT64, DataType.BOOL])
AFTER = st.sampled_from(["", "", " ", ",", "]", "}", '}],"id":"', ',"shape":[2,1]', ',"data":[3,4]'])


@st.composite
def numbers(draw: st.DrawFn, elements: st.SearchStrategy[str] = NUMBERS) -> str:
    """Data of two elements, if these are of the datatype."""
    template = draw(st.sampled_from(["[{},{}]", "[[{},{}]]", "[ [{}], [{}]]", "[[[{}\n,{} ]]]"]))
    return template.format(*[draw(SPACE) + draw(elements) for _ in range(2)])


@st.composite
def texts(draw: st.DrawFn, datatype: DataType) -> str:
    """A request whose data is left open."""
    tensor = ['"name":"x"', '"shape":[1,2]', f'"datatype":"{datatype.value}"', f'"data"{draw(SPACE)}:{draw(SPACE)}@']
    tensor = draw(st.permutations(tensor + draw(st.lists(MORE, max_size=1))))
    request = ['"inputs":[{' + f"{draw(SPACE)},".join(tensor) + draw(SPACE) + "}]", *draw(st.lists(MORE, max_size=1))]
    return "{" + ",".join(draw(st.permutations(request))) + draw(SPACE) + "}" + draw(SPACE)


@settings(max_examples=100)
@given(st.data())
def test_what_is_read_of_a_request_that_repeats_is_what_is_read_of_all_of_it(data: st.DataObject) -> None:
    datatype = data.draw(TYPES)
    signature = Signature(identity("m", ("x", datatype, (2,))))
    text = data.draw(texts(datatype))
    try:
        template = form_of(text.replace("@", data.draw(numbers())).encode(), signature)
    except ServingError:
        return
    for _ in range(5 if template.repeatable else 0):
        given = data.draw(numbers() | numbers(NUMBERS | ODD)) + data.draw(AFTER)
        body = text.replace("@", given).encode()
        inputs = template.tensors(body) if template.matches(body, None, signature) else None
        if inputs is not None:
            again = form_of(body, signature)
            expected = signature.check_inputs(decode_request(body, None, signature)[0].inputs).inputs["x"]
            assert isinstance(read := inputs["x"], np.ndarray)
            assert isinstance(expected, np.ndarray)
            assert (template.options, template.binary_flags) == (again.options, again.binary_flags)
            assert (read.tobytes(), read.dtype, read.shape) == (expected.tobytes(), expected.dtype, expected.shape)
