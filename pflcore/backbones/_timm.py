"""Models of timm, made fit for the engine. timm takes seconds to import, so it is imported when one is built."""

from __future__ import annotations

from typing import Any

from torch import nn


def create(model: str, shape: tuple[int, ...], classes: int, **changes: Any) -> nn.Module:
    """Return a freshly initialised model of timm.

    Nothing in it works in place, which vectorised execution does not always allow, and nothing draws random numbers of
    its own: the randomness of a run is the engine's, which knows ``nn.Dropout`` only.

    Args:
        model: timm's name, which must exist.
        shape: Channels, height, width of an image.
        classes: Outputs of the classifier.
        changes: Further arguments of the model.
    """
    import timm

    net: nn.Module = timm.create_model(model, pretrained=False, in_chans=shape[0], num_classes=classes, **changes)
    for module in net.modules():
        if getattr(module, "inplace", False):
            setattr(module, "inplace", False)  # noqa: B010 - a module's attributes have no types
        for rate in ("p", "drop_prob", "drop_rate", "drop_path_rate", "attn_drop_rate"):
            if isinstance(getattr(module, rate, None), float) and (rate != "p" or _is_dropout(module)):
                setattr(module, rate, 0.0)
    return net


def _is_dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd)
