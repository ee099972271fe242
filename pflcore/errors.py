"""The one exception that a user of the tool is meant to see, and which failures are for want of memory."""

from __future__ import annotations


class UserError(Exception):
    """Bad input of any kind: a spec, a data file, a checkpoint, an argument.

    The message is one line that says where the problem is and what to do about it. Command-line entry points
    print it without a traceback and exit with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class TooLittleMemory(UserError):
    """There is not enough memory, not even for the least. Where others share it, a later attempt may succeed."""


def is_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory; PyTorch has a class for few of the ways to."""
    text = str(error)
    return (
        isinstance(error, (MemoryError, TooLittleMemory))
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in text for words in _OUT_OF_MEMORY)
    )


# The second is what CUDA's own functions say, as when a graph is made; the third and fourth its libraries.
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
