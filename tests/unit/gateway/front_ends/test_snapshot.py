"""The table of what is served, as front ends know it."""

import pytest

from sluice.gateway.front_ends.messages import ServedName
from sluice.gateway.front_ends.snapshot import NAMES_A_MESSAGE, PIPELINES_A_MESSAGE, ServedTable, changes
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.tensors.spec import DataType, TensorSpec

X = TensorSpec("x", DataType.FP32, (4,))
Y = TensorSpec("y", DataType.FP32, (2,))


def pipeline(name: str, version: int = 1, revision: int = 0) -> Pipeline:
    stages = (Stage("only", {"x": TensorSource("request", "x")}, model=f"{name}:{version}"),)
    sources: dict[str, tuple[TensorSource, ...]] = {"y": (TensorSource("only", "y"),)}
    return Pipeline(name, version, (X,), (Y,), stages, sources, 8, config="{}", revision=revision)


def serving(*pipelines: Pipeline) -> dict[tuple[str, str], Pipeline]:
    named = {(each.name, str(each.version)): each for each in pipelines}
    return named | {(each.name, ""): each for each in sorted(pipelines, key=lambda each: each.version)}


def test_a_table_follows_the_changes() -> None:
    table = ServedTable()
    states = [
        serving(pipeline("a"), pipeline("b")),
        serving(pipeline("a"), pipeline("a", 2), pipeline("b", 1, 1)),
        serving(pipeline("a", 2)),
        {},
    ]
    before: dict[tuple[str, str], Pipeline] = {}
    for now in states:
        for change in changes(before, now, draining=False):
            table.apply(change)
        before = now
        for asked in (("a", ""), ("a", "1"), ("a", "2"), ("b", ""), ("b", "1")):
            if asked in now:
                assert table.pipeline(*asked).key == now[asked].key
            else:
                with pytest.raises(RelayNeeded):
                    table.pipeline(*asked)
    assert table.versions("a") == []


def test_only_the_gateway_knows_which_model_is_meant_where_there_is_not_exactly_one() -> None:
    table = ServedTable()
    before: dict[tuple[str, str], Pipeline] = {}
    for now, only in (
        ({}, None),
        (serving(pipeline("a"), pipeline("a", 2)), "a"),
        (serving(pipeline("a"), pipeline("b")), None),
    ):
        for change in changes(before, now, draining=False):
            table.apply(change)
        before = now
        if only is None:
            with pytest.raises(RelayNeeded):
                table.only_name()
        else:
            assert table.only_name() == only


def test_pipelines_come_before_their_names_and_without_what_only_the_scheduler_needs() -> None:
    first, second = changes({}, serving(pipeline("a")), draining=True)
    assert first.names == ()
    assert [(each.key, each.stages, each.sources, each.config) for each in first.pipelines] == [("a:1", (), {}, "")]
    assert first.pipelines[0].inputs == (X,)
    assert second.pipelines == ()
    assert set(second.names) == {ServedName("a", "", "a:1"), ServedName("a", "1", "a:1")}
    assert second.draining


def test_a_pipeline_that_stays_is_not_sent_again() -> None:
    stays = pipeline("a")
    (change,) = changes(serving(stays), serving(stays), draining=True)
    assert (change.names, change.pipelines, change.draining) == ((), (), True)


def test_many_models_come_in_messages_of_bounded_length() -> None:
    many = serving(*(pipeline(f"m{number}") for number in range(NAMES_A_MESSAGE)))
    messages = list(changes({}, many, draining=False))
    assert max(len(each.pipelines) for each in messages) == PIPELINES_A_MESSAGE
    assert max(len(each.names) for each in messages) == NAMES_A_MESSAGE
    table = ServedTable()
    for each in messages:
        table.apply(each)
    assert table.pipeline("m7", "").key == "m7:1"
