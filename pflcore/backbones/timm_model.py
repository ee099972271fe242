"""Any classifier of timm, its groups found by rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.backbones._timm import create
from pflcore.errors import UserError
from pflcore.options import option

_MLP = re.compile(r"(mlp|ffn)(\d*|_tokens|_channels)$")
_QKV = re.compile(r"(to_|w)?(q|k|v|kv|qk|qkv|query|key|value)\d*(_proj|_bias)?$")
_OUT = re.compile(r"(proj|proj_out|out|out_proj|to_out|output)$")


@BACKBONES.register
class TimmModel(Backbone):
    """Any image classifier of timm by its name, from scratch.

    Groups by the first rule that holds for a state entry: what timm calls the classifier is ``head``; a module whose
    type is a norm is ``norm``; tokens and positions by their names; what lies in a part named attention or MLP is
    ``attention.qkv``, ``attention.out``, ``attention.other`` or ``mlp``; then ``patch_embed``, convolutions ``conv``,
    linear layers ``fc``; the rest is ``other``. ``pfl describe`` cannot know which of them a model has; a method that
    names a missing one says what there is. A model of fixed image size is made for the size of the data.

    Rates of dropout and stochastic depth are zero. The executor ``stacked`` takes a model if vectorisation over clients
    supports its operations.
    """

    citation = "Wightman, PyTorch Image Models, 2019; each model's own paper is named in timm"
    smoke: ClassVar[dict[str, Any]] = {"model": "test_resnet"}
    # What the rules can find; which entries belong to a group is found in :meth:`patterns`.
    groups: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            *("patch_embed", "cls_token", "pos_embed", "conv", "norm"),
            *("attention.qkv", "attention.out", "attention.other", "mlp", "fc", "other", "head"),
        ),
        "by rule",
    )

    model: str = option("resnet18", help="timm's name of the architecture, without a tag of pretrained weights.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        import timm

        # Names of hubs and folders, which timm would read from, are not in this list.
        names = timm.list_models()
        if self.model not in names:
            near = difflib.get_close_matches(self.model, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; timm.list_models() in Python lists its models"
            raise UserError(f"backbone {self.name}: timm {timm.__version__} has no model {self.model!r}{hint}")
        facts = timm.get_pretrained_cfg(self.model)
        changes = {"img_size": shape[1:]} if facts is not None and facts.fixed_input_size else {}
        self._check(shape, classes, changes)
        return create(self.model, shape, classes, **changes)

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        classifiers = _classifiers(model)
        if not classifiers:
            raise UserError(f"backbone {self.name}: {self.model!r} has no classifier by timm's account; use another")
        members: dict[str, list[str]] = {}
        modules = dict(model.named_modules())
        for name in model.state_dict():
            members.setdefault(_group(name, modules, classifiers), []).append(re.escape(name))
        return {group: f"({'|'.join(names)})$" for group, names in members.items()}

    def _check(self, shape: tuple[int, ...], classes: int, changes: dict[str, Any]) -> None:
        """Send two images through the model without memory or arithmetic, to say in one line what it refuses.

        Raises:
            UserError: The model cannot be built for such images, or does not give one row of logits per image.
        """
        channels, height, width = shape
        size = f"{channels}×{height}×{width}"
        try:
            with torch.device("meta"):
                model = create(self.model, shape, classes, **changes)
                logits = model(torch.zeros(2, *shape))
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            raise UserError(
                f"backbone {self.name}: {self.model!r} does not take images of {size} ({reason}); "
                "use another model or image size"
            ) from None
        # timm cuts off what a last patch does not fill.
        patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
        if patch and (height % patch[0] or width % patch[1]):
            raise UserError(
                f"backbone {self.name}: patches of {patch[0]}×{patch[1]} of {self.model!r} do not divide images of "
                f"{height}×{width} pixels"
            )
        if not isinstance(logits, torch.Tensor) or logits.shape != (2, classes):
            raise UserError(
                f"backbone {self.name}: {self.model!r} is no classifier: images of {size} do not give {classes} "
                "logits each; use another model"
            )


def _classifiers(model: nn.Module) -> tuple[str, ...]:
    """Return names of the modules that give the logits; several in a distilled model."""
    found = getattr(model, "default_cfg", {}).get("classifier") or ()
    names = (found,) if isinstance(found, str) else tuple(found)
    modules = dict(model.named_modules())
    if names and all(name in modules for name in names):
        return names
    # No name in the model's facts: the module itself is looked for.
    find: Callable[[], Any] = getattr(model, "get_classifier", lambda: None)
    own = find()
    return tuple(name for name, module in modules.items() if name and module is own)


def _group(name: str, modules: Mapping[str, nn.Module], classifiers: tuple[str, ...]) -> str:
    """Return the group of one state entry by the rules of :class:`TimmModel`."""
    path, _, leaf = name.rpartition(".")
    owner, parts = modules[path], name.split(".")
    if any(name.startswith(f"{one}.") for one in classifiers):
        return "head"
    if _is_norm(owner):
        return "norm"
    if leaf in ("cls_token", "dist_token", "reg_token", "class_token"):
        return "cls_token"
    if any(part.startswith("pos_embed") for part in parts):
        return "pos_embed"
    # The innermost part decides: the MLP of an attention block is an MLP.
    for index in range(len(parts) - 1, -1, -1):
        if _MLP.match(parts[index]):
            return "mlp"
        if "attn" in parts[index] or "attention" in parts[index]:
            return _within_attention(parts[index + 1 :])
    if parts[0] == "patch_embed":
        return "patch_embed"
    if isinstance(owner, nn.modules.conv._ConvNd):
        return "conv"
    return "fc" if isinstance(owner, nn.Linear) else "other"


def _within_attention(parts: list[str]) -> str:
    if any(_QKV.match(part) for part in parts):
        return "attention.qkv"
    return "attention.out" if any(_OUT.match(part) for part in parts) else "attention.other"


def _is_norm(module: nn.Module) -> bool:
    """Norms of PyTorch and those of timm, which have no base of their own but are named so."""
    known = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    return isinstance(module, known) or (not list(module.children()) and "norm" in type(module).__name__.lower())
