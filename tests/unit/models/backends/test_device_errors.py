"""Messages of runtimes when there is no memory, and when a context is lost."""

import errno

import numpy as np
import pytest

from sluice.models.backends.device_errors import is_context_lost, is_out_of_memory
from sluice.models.errors import BackendFailed

NO_MEMORY = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. Name:'' Status Message: "
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal("
    "size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size 134217728",
    "BFCArena::AllocateRawInternal Available memory of 1048576 is smaller than requested bytes of 8388608",
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; file=cuda_allocator.cc ; expr=cudaMalloc((void**)&p)",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB",
    "RuntimeError: CUDA error: out of memory",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    "model.py, line 7: MemoryError",
    "Unable to allocate 4.00 TiB for an array with shape (1099511627776,) and data type float32",
)
LOST = (
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; expr=cudaStreamSynchronize(s)",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "CUDA failure 719: unspecified launch failure ; GPU=0",
    "CUDA error 810: MPS client terminated",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "CUDA error: uncorrectable ECC error encountered",
    "cudaErrorLaunchFailure",
)
CONTENT = (
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x",
    "division by zero",
    "the file is misaligned address 7 of the parcel",  # a model may say what it likes without CUDA
    "CUDA failure 1: invalid argument ; GPU=0",
    "CUDA failure 9: invalid configuration argument",
)


@pytest.mark.parametrize("text", NO_MEMORY)
def test_there_was_no_memory(text: str) -> None:
    assert is_out_of_memory(BackendFailed(text))
    assert not is_context_lost(BackendFailed(text))


@pytest.mark.parametrize("text", LOST)
def test_the_context_is_lost(text: str) -> None:
    assert is_context_lost(BackendFailed(text))
    assert not is_out_of_memory(BackendFailed(text))


@pytest.mark.parametrize("text", CONTENT)
def test_the_batch_itself_is_to_blame(text: str) -> None:
    assert not is_out_of_memory(BackendFailed(text))
    assert not is_context_lost(BackendFailed(text))


def test_errors_of_python_and_numpy_are_known_whatever_they_say() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OSError(errno.ENOMEM, "no"))
    assert not is_out_of_memory(OSError(errno.ENOENT, "no"))
    with pytest.raises(MemoryError) as raised:
        np.zeros(1 << 50, np.float32)
    assert is_out_of_memory(raised.value)


def test_the_cause_of_an_error_counts() -> None:
    failed = BackendFailed("the model failed")
    failed.__cause__ = MemoryError()
    assert is_out_of_memory(failed)
