"""Pretrained weights from a file, which are read without executing code and checked against the model."""

import pickle
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.files import check_plain
from pflcore.groups import Tensors, pick, split

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
LIMIT = 16 << 30  # most bytes of a file, and of its unpacked content
_WRAPPERS = ("state_dict", "model")  # keys of the state dict in released files that also have the state of training


def read_weights(path: Path) -> Tensors:
    """Return the tensors in a file of weights by name: safetensors, or a state dict written by ``torch.save``.
    PyTorch's restricted reader unpickles the latter; it creates only tensors and plain containers."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: not a file of weights by its name, which ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file of weights")
    check_plain(path)
    _check_size(path, path.stat().st_size)
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else _read_state_dict(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: truncated, or no safetensors ({_reason(error)})") from None
    # A view can be much larger than its data in the file.
    _check_size(path, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def copy_weights(model: nn.Module, weights: Mapping[str, Tensor], head: Collection[str], where: str) -> str:
    """Copy weights into a model, in place; raise :class:`UserError`, beginning with `where`, if they do not fit it.

    The classifier, the entries in `head`, is not changed if the file lacks it or has it for another number of classes.
    Return a note that says so, or "".
    """
    state = model.state_dict()
    if note := _other_head(pick(state, head), weights):
        state, weights = split(state, head)[1], split(weights, head)[1]
    pairs = [(name, weights[name], state[name]) for name in state if name in weights]
    faults = {
        "missing": [name for name in state if name not in weights],
        "of another shape": [f"{n} {_shape(a)} instead of {_shape(b)}" for n, a, b in pairs if a.shape != b.shape],
        "of another kind of number": [n for n, a, b in pairs if a.is_floating_point() != b.is_floating_point()],
        "not finite": [name for name, weight, _ in pairs if not bool(weight.isfinite().all())],
        "unknown to the model": [name for name in weights if name not in state],
    }
    if problems := [f"{len(names)} {fault} ({_list_names(names)})" for fault, names in faults.items() if names]:
        raise UserError(f"{where}: not the weights of this model: {'; '.join(problems)}")
    with torch.no_grad():
        for _, weight, entry in pairs:
            entry.copy_(weight)
    return note


def _read_state_dict(path: Path) -> Tensors:
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: truncated, or not what torch.save writes since PyTorch 1.6")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, sum(member.file_size for member in archive.infolist()))
        with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError:  # PyTorch's own message tells how to read the file unsafely
        problem = "has more in it than tensors, which is not read since that could run code"
        raise UserError(f"{path}: {problem}; save its state dict as safetensors") from None
    except Exception as error:  # zipfile and pickle raise many kinds of exceptions for damaged input
        raise UserError(f"{path}: damaged ({_reason(error)})") from None
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    entries = list(content.items()) if isinstance(content, dict) else []
    if not entries or not all(isinstance(name, str) and _is_dense(value) for name, value in entries):
        raise UserError(f"{path}: no state dict, in which every name has a dense tensor")
    return dict(entries)


def _is_dense(value: object) -> bool:
    """Return whether a value is a tensor that is strided, not quantised and not on the meta device."""
    if not isinstance(value, Tensor):
        return False
    return value.layout == torch.strided and not value.is_quantized and not value.is_meta


def _check_size(path: Path, size: int) -> None:
    if size > LIMIT:
        raise UserError(f"{path}: {size:,} bytes of weights are more than the {LIMIT:,} that are read")


def _other_head(head: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Return a note if the file lacks the classifier or has it for another number of classes; else ""."""
    shapes = [(head[name].shape, weights[name].shape) for name in head if name in weights]
    if head and not shapes:
        return "the classifier begins anew, since the file has none"
    counts = {in_file[:1] for _, in_file in shapes}
    fits = all(in_file[1:] == expected[1:] and in_file[:1] != expected[:1] for expected, in_file in shapes)
    if len(shapes) == len(head) and len(counts) == 1 and fits:
        return f"the classifier begins anew, since that of the file has {counts.pop()[0]} classes"
    return ""


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _list_names(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 3 else [*names[:3], "…"])


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
