from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.records.samples import SampleSource, TargetModel, load_samples
from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import DataType, TensorSpec

BATCHED = TargetModel((TensorSpec("x", DataType.FP32, (-1, 2)),), ())
UNBATCHED = TargetModel((TensorSpec("x", DataType.FP32, (2,)),), ())


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "samples.npz"
    np.savez(
        path, raw=np.arange(10, dtype=np.uint8).reshape(5, 2), y=np.array([9, 8, 7, 6, 5]), test=np.array([4, 2, 0])
    )
    return str(path)


def test_keys_subset_and_labels(file: str) -> None:
    samples = load_samples(SampleSource(file, {"x": "raw"}, labels="y", subset="test"), BATCHED, 1, seed=0)
    assert len(samples) == 3
    assert samples.tensors(0)["x"].tolist() == [[8.0, 9.0]]
    assert samples.tensors(0)["x"].dtype == np.float32
    assert samples.labels is not None
    assert samples.labels.tolist() == [5, 7, 9]


def test_a_query_of_several_rows_takes_consecutive_ones(file: str) -> None:
    samples = load_samples(SampleSource(file, {"x": "raw"}), BATCHED, 2, seed=0)
    assert len(samples) == 3
    assert samples.tensors(1)["x"].tolist() == [[4, 5], [6, 7]]
    assert samples.tensors(2)["x"].tolist() == [[8, 9]]


def test_a_model_without_batches_gets_items(file: str) -> None:
    samples = load_samples(SampleSource(file, {"x": "raw"}), UNBATCHED, 1, seed=0)
    assert samples.tensors(1)["x"].tolist() == [2, 3]
    with pytest.raises(ConfigError, match="--rows: the model cannot be batched; expected 1, got 2"):
        load_samples(SampleSource(file, {"x": "raw"}), UNBATCHED, 2, seed=0)


def test_text_is_for_bytes_inputs(tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    np.savez(path, x=np.array(["a", "bcd"]))
    metadata = TargetModel((TensorSpec("x", DataType.BYTES, (-1,)),), ())
    assert load_samples(SampleSource(str(path)), metadata, 1, seed=0).tensors(1)["x"].tolist() == ["bcd"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SampleSource("FILE"), "no array 'x'; it has raw, test, y"),
        (SampleSource("FILE", {"x": "y"}), r"expected arrays of shape \(rows, \*item\)"),
        (SampleSource("FILE", {"x": "raw"}, labels="test"), "expected arrays of equal length"),
        (SampleSource("FILE", {"x": "raw"}, subset="y"), "--subset y: expected row numbers from 0 to 4"),
        (SampleSource("missing.npz"), "^--samples missing.npz: cannot be read: No such file or directory$"),
        (SampleSource("random", labels="y"), "expected --samples FILE.npz"),
    ],
)
def test_a_mismatch_is_named(file: str, source: SampleSource, message: str) -> None:
    if source.file == "FILE":
        source = SampleSource(file, source.inputs, source.labels, source.subset)
    with pytest.raises(ConfigError, match=message):
        load_samples(source, BATCHED, 1, seed=0)


def test_a_file_that_is_no_npz_is_named_with_what_was_expected(tmp_path: Path) -> None:
    document, array, cut = tmp_path / "ok.json", tmp_path / "x.npy", tmp_path / "cut.npz"
    document.write_text('{"x": [1, 2]}')
    np.save(array, np.zeros((3, 2)))
    cut.write_bytes(b"")
    for path in (document, array, cut):
        said = f"^--samples {path}: expected an .npz file, as numpy.savez writes it, or random$"
        with pytest.raises(ConfigError, match=said):
            load_samples(SampleSource(str(path)), BATCHED, 1, seed=0)


def test_an_array_that_only_pickle_could_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match=f"^--samples {path}: cannot be read as an .npz file: Object arrays"):
        load_samples(SampleSource(str(path)), BATCHED, 1, seed=0)


def test_a_datatype_that_would_lose_information_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "floats.npz"
    np.savez(path, x=np.zeros((3, 2)))
    metadata = TargetModel((TensorSpec("x", DataType.INT32, (-1, 2)),), ())
    with pytest.raises(ConfigError, match="input x: expected INT32, got float64"):
        load_samples(SampleSource(str(path)), metadata, 1, seed=0)


def test_random_samples_depend_on_the_seed_only() -> None:
    metadata = TargetModel((TensorSpec("x", DataType.FP32, (-1, 2)), TensorSpec("t", DataType.BYTES, (-1, 1))), ())
    first, again, other = (load_samples(SampleSource(), metadata, 3, seed) for seed in (1, 1, 2))
    assert len(first) == 64
    assert first.tensors(63)["x"].shape == (3, 2)
    assert first.tensors(0)["t"].shape == (3, 1)
    assert first.tensors(5)["x"].tolist() == again.tensors(5)["x"].tolist() != other.tensors(5)["x"].tolist()


def test_random_samples_need_fixed_items() -> None:
    metadata = TargetModel((TensorSpec("x", DataType.FP32, (-1, -1)),), ())
    with pytest.raises(ConfigError, match="input x: variable shape"):
        load_samples(SampleSource(), metadata, 1, seed=0)
