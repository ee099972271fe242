"""Models of timm, adapted to the engine: ResNet-50, ViTs, and any other classifier, with groups found by rules."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.backbones._local_attention import NONE, AttentiveBackbone
from pflcore.errors import UserError
from pflcore.options import option


def create(model: str, shape: tuple[int, ...], classes: int, **changes: Any) -> nn.Module:
    """Return a freshly initialised model of timm by its name, which must exist; `changes` are further arguments.

    No module works in place, because vectorised execution does not always allow that. All dropout rates are 0, because
    the engine draws all random numbers and supports only ``nn.Dropout``.
    """
    import timm  # here, because it takes seconds

    net: nn.Module = timm.create_model(model, pretrained=False, in_chans=shape[0], num_classes=classes, **changes)
    for module in net.modules():
        if getattr(module, "inplace", False):
            setattr(module, "inplace", False)  # noqa: B010 - a module's attributes have no types
        rates = ["drop_prob", "drop_rate", "drop_path_rate", "attn_drop_rate"]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append("p")
        for rate in rates:
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    return net


@BACKBONES.register
class ResNet50(AttentiveBackbone):
    """ResNet-50 of timm, from scratch.

    It has 23,528,522 parameters for 10 classes, 23,712,932 for 100 and 25,557,032 for 1000, whatever the image size.
    Images of 32×32 pixels are reduced to one position. The last norm of each block begins with weight zero. Local
    attention comes after each of the four stages; no paper has figures for it.
    """

    name = "resnet50"
    citation = "He et al., CVPR 2016, as in timm; for FedPerfix"
    smoke: ClassVar[dict[str, Any]] = {"blocks_per_stage": 1, "width": 4}
    groups: ClassVar[dict[str, str]] = {
        "conv": r"(conv1|layer\d\.\d+\.(conv\d|downsample\.0))\.",
        "norm": r"(bn1|layer\d\.\d+\.(bn\d|downsample\.1))\.",
        "head": r"fc\.",
    }
    width: int = option(64, ge=1, help="Inner width of the first stage's blocks; the others have 2, 4, 8 times it.")
    blocks_per_stage: int | None = option(None, ge=1, help="Blocks in each of the four stages; null: 3, 4, 6, 3.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = (self.blocks_per_stage,) * 4 if self.blocks_per_stage else (3, 4, 6, 3)
        channels = tuple(factor * self.width for factor in (1, 2, 4, 8))
        model = create("resnet50", shape, classes, layers=layers, channels=channels)
        if self.attention != NONE:
            for index, inner in enumerate(channels, 1):  # a block's output has four times its inner width
                model.get_submodule(f"layer{index}").add_module("attention", self.make_attention(4 * inner))
        return model


@BACKBONES.register
class ViT(Backbone):
    """A vision Transformer (ViT-T, ViT-S, ViT-B) of timm, from scratch.

    On 3×224×224 images with 100 classes ViT-T has 5,543,716 parameters, ViT-S 21,704,164 and ViT-B 85,875,556. The
    number of position embeddings depends on the image size: on 3×32×32, ViT-T has 5,489,482 parameters for 10 classes
    and 5,506,852 for 100.
    """

    name = "vit"
    citation = "Dosovitskiy et al., ICLR 2021, and Touvron et al., ICML 2021, as in timm; for FedPerfix"
    smoke: ClassVar[dict[str, Any]] = {"size": "tiny", "depth": 1}
    groups: ClassVar[dict[str, str]] = {
        "patch_embed": r"patch_embed\.",
        "cls_token": r"cls_token$",
        "pos_embed": r"pos_embed$",
        "norm": r"(blocks\.\d+\.norm[12]|norm)\.",
        "attention.qkv": r"blocks\.\d+\.attn\.qkv\.",
        "attention.out": r"blocks\.\d+\.attn\.proj\.",
        "mlp": r"blocks\.\d+\.mlp\.",
        "head": r"head\.",
    }
    size: str = option("tiny", choices=("tiny", "small", "base"), help="Tokens of 192, 384, 768 with 3, 6, 12 heads.")
    patch: int = option(16, ge=1, help="Side of a square patch, in pixels; it must divide the image's sides.")
    depth: int = option(12, ge=1, help="Number of Transformer blocks.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        check_patches(f"backbone {self.name}: patch {self.patch} does", shape, self.patch, self.patch)
        changes = {"img_size": shape[1:], "patch_size": self.patch, "depth": self.depth}
        return create(f"vit_{self.size}_patch16_224", shape, classes, **changes)


def check_patches(subject: str, shape: tuple[int, ...], height: int, width: int) -> None:
    """Raise :class:`UserError`, beginning with `subject`, if a patch's height and width do not divide the images'."""
    if shape[1] % height or shape[2] % width:
        raise UserError(f"{subject} not divide images of {shape[1]}×{shape[2]} pixels")


_ATTENTION = ("attention.qkv", "attention.out", "attention.other")
_MLP = re.compile(r"(mlp|ffn)(\d*|_tokens|_channels)$")
_QKV = re.compile(r"(to_|w)?(q|k|v|kv|qk|qkv|query|key|value)\d*(_proj|_bias)?$")
_OUT = re.compile(r"(proj|proj_out|out|out_proj|to_out|output)$")


@BACKBONES.register
class TimmModel(Backbone):
    """Any image classifier of timm by its name, from scratch.

    The first rule that applies to a state entry gives its group: timm's classifier is ``head``; a module whose type is
    a norm is ``norm``; tokens and positions are found by their names; entries in a part named attention or MLP are
    ``attention.qkv``, ``attention.out``, ``attention.other`` or ``mlp``; then follow ``patch_embed``, convolutions as
    ``conv`` and linear layers as ``fc``; the rest is ``other``. A model of fixed image size is built for the size of
    the data. Dropout rates are zero.
    """

    name = "timm_model"
    citation = "Wightman, PyTorch Image Models, 2019; each model's own paper is named in timm"
    smoke: ClassVar[dict[str, Any]] = {"model": "test_resnet"}
    # The groups that the rules can find; :meth:`patterns` finds their entries.
    groups: ClassVar[dict[str, str]] = dict.fromkeys(
        ("patch_embed", "cls_token", "pos_embed", "conv", "norm", *_ATTENTION, "mlp", "fc", "other", "head"), "by rule"
    )
    model: str = option("resnet18", help="timm's name of the architecture, without a tag of pretrained weights.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        import timm

        # The list has no names of hubs and folders, from which timm would read.
        names = timm.list_models()
        if self.model not in names:
            near = difflib.get_close_matches(self.model, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; timm.list_models() lists its models"
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
        """Raise :class:`UserError` if the model does not classify such images; two are tried on the meta device."""
        size = "×".join(map(str, shape))
        try:
            with torch.device("meta"):
                model = create(self.model, shape, classes, **changes)
                logits = model(torch.zeros(2, *shape))
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            problem = f"{self.model!r} does not take images of {size} ({reason})"
            raise UserError(f"backbone {self.name}: {problem}; use another model or image size") from None
        # timm would ignore the pixels of incomplete patches.
        if patch := getattr(getattr(model, "patch_embed", None), "patch_size", None):
            subject = f"backbone {self.name}: patches of {patch[0]}×{patch[1]} of {self.model!r} do"
            check_patches(subject, shape, *patch)
        if not isinstance(logits, torch.Tensor) or logits.shape != (2, classes):
            problem = f"{self.model!r} is no classifier: images of {size} do not give {classes} logits each"
            raise UserError(f"backbone {self.name}: {problem}; use another model")


def _classifiers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules that compute the logits; a distilled model has several."""
    names = getattr(model, "default_cfg", {}).get("classifier") or ()
    names = (names,) if isinstance(names, str) else tuple(names)
    modules = dict(model.named_modules())
    if names and all(name in modules for name in names):
        return names
    classifier = getattr(model, "get_classifier", lambda: None)()  # the model's configuration does not name it
    return tuple(name for name, module in modules.items() if name and module is classifier)


def _group(name: str, modules: Mapping[str, nn.Module], classifiers: tuple[str, ...]) -> str:
    """Return the group of one state entry by the rules of :class:`TimmModel`."""
    path, _, leaf = name.rpartition(".")
    owner, parts = modules[path], name.split(".")
    if any(name.startswith(f"{classifier}.") for classifier in classifiers):
        return "head"
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    # timm's norms have no common base class, but their class names contain "norm".
    if isinstance(owner, norms) or (not list(owner.children()) and "norm" in type(owner).__name__.lower()):
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
            inside = parts[index + 1 :]
            if any(_QKV.match(part) for part in inside):
                return "attention.qkv"
            return "attention.out" if any(_OUT.match(part) for part in inside) else "attention.other"
    if parts[0] == "patch_embed":
        return "patch_embed"
    if isinstance(owner, nn.modules.conv._ConvNd):
        return "conv"
    return "fc" if isinstance(owner, nn.Linear) else "other"
