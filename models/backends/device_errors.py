"""Classifies the errors of a device by their text, since runtimes have no exception types for them."""

import errno
import re

_OUT_OF_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer"  # ONNX Runtime's arena, on any device
    r"|Available memory of \S+ is smaller than requested bytes"  # the same, at its own limit
    r"|std::bad_alloc|\bbad allocation\b"
    r"|\bMemoryError\b|Unable to allocate \S+ \S+ for an array|Cannot allocate memory"
    r"|CUDA out of memory|CUDA (?:failure|error) ?:? ?2: out of memory|CUDA error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
)
_CUDA = re.compile(r"cuda|cublas|cudnn|\bMPS\b", re.IGNORECASE)
_LOST_CODES = frozenset({214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810})
"""Codes of the CUDA runtime after which a context is unusable."""
_CODE = re.compile(r"CUDA (?:failure|error) ?:? ?(\d+)", re.IGNORECASE)
_LOST = re.compile(
    r"illegal memory access|unspecified launch failure|device-side assert|misaligned address|illegal instruction"
    r"|hardware stack error|not supported on global/shared address space|invalid program counter"
    r"|uncorrectable (?:ECC|NVLink) error|launch timed out and was terminated|RPC failure"
    r"|client (?:was |has been )?terminated"
    r"|ILLEGAL_ADDRESS|LAUNCH_(?:FAILED|TIMEOUT)|ILLEGAL_INSTRUCTION|HARDWARE_STACK_ERROR|MISALIGNED_ADDRESS|INVALID_PC"
    r"|INVALID_ADDRESS_SPACE|ECC_UNCORRECTABLE|MPS_CLIENT_TERMINATED|MPS_RPC_FAILURE"
    r"|cudaError(?:IllegalAddress|LaunchFailure|LaunchTimeout|Assert|IllegalInstruction|HardwareStackError"
    r"|MisalignedAddress|InvalidPc|InvalidAddressSpace|ECCUncorrectable|MpsClientTerminated|MpsRpcFailure)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: a smaller batch may run, and the process and its sessions are intact."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or _OUT_OF_MEMORY.search(str(each)) is not None
        for each in _chain(error)
    )


def is_context_lost(error: BaseException) -> bool:
    """Return whether CUDA reports the context as lost ("sticky"): everything later in the process fails as well."""
    return any(_is_lost(str(each)) for each in _chain(error))


def _is_lost(text: str) -> bool:
    if (found := _CODE.search(text)) is not None:
        return int(found[1]) in _LOST_CODES
    return _CUDA.search(text) is not None and _LOST.search(text) is not None


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain
