from sluice.models.pipelines.memory import OutputMemory, output_memory
from sluice.models.pipelines.pipeline import Combiner, Pipeline, Stage, TensorSource, batch_key
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

X = TensorSpec("x", DataType.FP32, (2,))
PROBS = TensorSpec("probs", DataType.FP32, (10,))
TEXT = TensorSpec("text", DataType.BYTES, (1,))
BOXES = TensorSpec("boxes", DataType.FP32, (-1, 4))
LABEL = TensorSpec("label", DataType.INT64, (1,))
MODELS = {
    "a:1": ModelSpec("a", 1, (X,), (PROBS, LABEL), 8),
    "b:1": ModelSpec("b", 1, (X,), (PROBS, TEXT, BOXES), 8),
}
ENSEMBLE = Pipeline(
    name="both",
    version=1,
    inputs=(X,),
    outputs=(PROBS,),
    stages=(
        Stage("left", {"x": TensorSource("request", "x")}, model="a:1"),
        Stage("right", {"x": TensorSource("request", "x")}, model="b:1"),
        Stage("vote", {"0": TensorSource("left", "probs"), "1": TensorSource("right", "probs")}, combine=Combiner.MEAN),
    ),
    sources={"probs": (TensorSource("vote", "probs"),)},
    max_batch_size=8,
)


def test_all_outputs_count_by_row_and_those_of_unknown_size_like_the_inputs() -> None:
    # A combiner puts out what its first source gives it: `probs` alone.
    memory = output_memory(ENSEMBLE, MODELS)
    assert memory == OutputMemory(row_bytes=3 * 40 + 8, variable=2)
    assert memory.output_bytes(rows=3, input_bytes=100) == 3 * 128 + 2 * 100


def test_a_batch_key_names_the_shapes_of_an_item() -> None:
    assert batch_key([("x", (3, 224)), ("y", ())]) == "x=3,224;y="
    assert batch_key([]) == ""
