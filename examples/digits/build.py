"""Trains the digits models with NumPy and writes a model repository: `python -m examples.digits.build DIRECTORY`.

Every model is fitted in closed form or by full-batch descent from a fixed seed, so that its accuracy on the test rows
is the same on every machine.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

HERE = Path(__file__).parent
DATA = HERE / "digits.npz"
CLASSES = 10
PIXELS = 64
GRAY_LEVELS = 16

Floats = NDArray[np.float64]
Constants = dict[str, NDArray[np.generic]]

Signature = tuple[ValueInfoProto, ValueInfoProto]
"""A model's one input and one output."""

IMAGE = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 8, 8])
RAW_IMAGE = helper.make_tensor_value_info("raw", TensorProto.UINT8, ["N", 1, 8, 8])
PROBABILITIES = helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["N", CLASSES])
CLASSIFIER: Signature = (IMAGE, PROBABILITIES)


class Digits(NamedTuple):
    """Images `(rows, 1, 8, 8)` with gray levels 0 to 16, and their labels `(rows,)`, 0 to 9."""

    train_raw: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_raw: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


class Layer(NamedTuple):
    """An affine map: `weights` is `(inputs, outputs)`, `bias` is `(outputs,)`."""

    weights: NDArray[np.floating]
    bias: NDArray[np.floating]


def load_digits(path: Path = DATA) -> Digits:
    """Load the committed data set, split into 898 training rows and 899 test rows."""
    with np.load(path) as file:
        raw, labels, test = file["raw"], file["y"], file["test"]
    is_test = np.zeros(len(raw), dtype=bool)
    is_test[test] = True
    return Digits(raw[~is_test], labels[~is_test], raw[test], labels[test])


def one_hot(labels: NDArray[np.uint8]) -> Floats:
    """One-hot encoding `(rows, 10)` of labels."""
    return np.eye(CLASSES)[labels]


def fit_softmax_regression(x: Floats, labels: NDArray[np.uint8], steps: int = 400, rate: float = 0.05) -> Layer:
    """Fit a logistic regression on `x` `(rows, 64)` with an L2 penalty of 1 on the weights, by full-batch Adam."""
    rows = len(x)
    inputs = np.hstack([x, np.ones((rows, 1))])
    targets = one_hot(labels)
    penalty = np.ones((PIXELS + 1, 1)) / rows
    penalty[-1] = 0  # the bias is free
    parameters, mean, square = (np.zeros((PIXELS + 1, CLASSES)) for _ in range(3))
    for step in range(1, steps + 1):
        logits = inputs @ parameters
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = exponentials / exponentials.sum(axis=1, keepdims=True) - targets
        gradient = inputs.T @ errors / rows + penalty * parameters
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        parameters -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return Layer(parameters[:-1], parameters[-1])


def fit_random_features(
    x: Floats, labels: NDArray[np.uint8], widths: Sequence[int], sharpness: float = 6.0
) -> list[Layer]:
    """Draw random ReLU layers of the given widths, and fit a ridge read-out in closed form.

    The last layer's outputs are the regression onto -1 and 1, scaled by `sharpness` to logits.
    """
    random = np.random.default_rng(0)
    layers: list[Layer] = []
    features = x.astype(np.float32)  # in the runtime's precision
    for width in widths:
        inputs = features.shape[1]
        weights = (random.standard_normal((inputs, width)) * np.sqrt(2 / inputs)).astype(np.float32)
        bias = np.zeros(width, np.float32) if layers else (0.3 * random.standard_normal(width)).astype(np.float32)
        features = np.maximum(features @ weights + bias, 0)
        layers.append(Layer(weights, bias))
    mean = features.mean(axis=0, dtype=np.float64)
    read_out = fit_ridge(features - mean, 2 * one_hot(labels) - 1)
    layers.append(Layer(read_out.weights * sharpness, (read_out.bias - mean @ read_out.weights) * sharpness))
    return layers


def fit_ridge(centred: Floats, targets: Floats, penalty: float = 1e-2) -> Layer:
    """Fit a ridge regression of `targets` `(rows, outputs)` on `centred` `(rows, features)`, whose columns have mean 0.

    The smaller of two equivalent systems is solved, with `rows` or with `features` unknowns. The penalty is relative to
    the mean squared length of a row.
    """
    rows, features = centred.shape
    bias = targets.mean(axis=0)
    penalty = penalty * float((centred**2).sum()) / rows
    if features >= rows:
        weights = centred.T @ np.linalg.solve(centred @ centred.T + penalty * np.eye(rows), targets - bias)
    else:
        weights = np.linalg.solve(centred.T @ centred + penalty * np.eye(features), centred.T @ (targets - bias))
    return Layer(weights, bias)


def write_model(path: Path, nodes: Sequence[NodeProto], constants: Constants, signature: Signature) -> None:
    """Write a checked model file; float constants are stored in single precision."""
    tensors = [
        numpy_helper.from_array(np.ascontiguousarray(value, np.float32 if value.dtype == np.float64 else None), key)
        for key, value in constants.items()
    ]
    input_, output = signature
    graph = helper.make_graph(nodes, path.parts[-3], [input_], [output], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def write_prep(path: Path) -> None:
    """The pre-processing model: gray levels 0 to 16 become floats 0 to 1."""
    nodes = [
        helper.make_node("Cast", ["raw"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["levels", "white"], ["x"]),
    ]
    write_model(path, nodes, {"white": np.array(GRAY_LEVELS, np.float32)}, (RAW_IMAGE, IMAGE))


def write_network(path: Path, layers: Sequence[Layer]) -> None:
    """A classifier of affine layers with ReLU between them and softmax behind the last."""
    nodes = [helper.make_node("Flatten", ["x"], ["features0"])]
    constants: Constants = {}
    for index, layer in enumerate(layers):
        weights, bias, sums = f"weights{index}", f"bias{index}", f"sums{index}"
        constants |= {weights: layer.weights, bias: layer.bias}
        nodes.append(helper.make_node("Gemm", [f"features{index}", weights, bias], [sums]))
        if layer is layers[-1]:
            nodes.append(helper.make_node("Softmax", [sums], ["probs"], axis=1))
        else:
            nodes.append(helper.make_node("Relu", [sums], [f"features{index + 1}"]))
    write_model(path, nodes, constants, CLASSIFIER)


def write_kernel_machine(
    path: Path, x: Floats, labels: NDArray[np.uint8], penalty: float = 1e-2, sharpness: float = 4.0
) -> None:
    """Kernel ridge regression with a Gaussian kernel; every row of `x` `(rows, 64)` is a support vector.

    The graph computes exp(-gamma |x - s|^2) from |x|^2 - 2 x.s + |s|^2.
    """
    gamma = 0.5 / (PIXELS * x.var())
    support = x.astype(np.float32)
    squares = (support**2).sum(axis=1)
    kernel = np.exp(-gamma * (squares[:, None] + squares[None] - 2 * support @ support.T))
    weights = np.linalg.solve(kernel + penalty * np.eye(len(x)), 2 * one_hot(labels) - 1) * sharpness
    nodes = [
        helper.make_node("Flatten", ["x"], ["features"]),
        helper.make_node("Mul", ["features", "features"], ["squared"]),
        helper.make_node("ReduceSum", ["squared", "row_axis"], ["row_squares"], keepdims=1),
        helper.make_node("MatMul", ["features", "minus_twice_support"], ["products"]),
        helper.make_node("Add", ["products", "support_squares"], ["partial_distances"]),
        helper.make_node("Add", ["partial_distances", "row_squares"], ["distances"]),
        helper.make_node("Mul", ["distances", "minus_gamma"], ["exponents"]),
        helper.make_node("Exp", ["exponents"], ["kernel"]),
        helper.make_node("MatMul", ["kernel", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
    ]
    constants: Constants = {
        "row_axis": np.array([1], np.int64),
        "minus_twice_support": -2 * support.T,
        "support_squares": squares[None],
        "minus_gamma": np.array(-gamma, np.float32),
        "weights": weights,
    }
    write_model(path, nodes, constants, CLASSIFIER)


def model_path(repository: Path, name: str) -> Path:
    """Path of version 1 of a model in a repository."""
    return repository / name / "1" / "model.onnx"


def build_repository(repository: Path, wide: bool = True) -> None:
    """Write the models and the two pipelines; `wide` adds the 33 MB network that gains from batching."""
    digits = load_digits()
    x, labels = digits.train_raw.reshape(-1, PIXELS) / GRAY_LEVELS, digits.train_labels
    write_prep(model_path(repository, "prep"))
    write_network(model_path(repository, "logreg"), [fit_softmax_regression(x, labels)])
    write_kernel_machine(model_path(repository, "rbf"), x, labels)
    for widths in ([256], [1024], [2048, 2048, 2048]) if wide else ([256], [1024]):
        name = "rf" + "x".join(map(str, widths))
        write_network(model_path(repository, name), fit_random_features(x, labels, widths))
    shutil.copytree(HERE / "pipelines", repository, dirs_exist_ok=True)


if __name__ == "__main__":
    build_repository(Path(sys.argv[1]))
