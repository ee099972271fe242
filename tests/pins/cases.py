"""The pinned small runs: one for each thing that the engine does, and one for each registered entry.

Few mistakes cancel out in them, as clients are uneven. A case that is added is recorded by ``python tests/pins``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pflcore.methods import METHODS
from pipeline.study.small_run import CONVNET, IMAGES, POOLED, RESUMED, STACKED, UNEVEN, Entry, SmallRun

TOLERANCE = 2e-5  # of the largest number of a line; vector units change numbers by 2e-6, stacks by as much

_HELD_BACK: Entry = {**UNEVEN, "validation_share": 0.3}
_NORM: Entry = {"name": "lenet_bn", "channels": [4, 6], "kernel": 3, "padding": 1}
_VIT: Entry = {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4}
_STILL: Entry = {**_VIT, "dropout": 0.0}
_TEXTS: Entry = {"name": "shakespeare", "stand_in": 120}
_ROLES: Entry = {"name": "natural", "min_samples": 1}
_LANGUAGE: Entry = {
    **{"name": "language_transformer", "depth": 1, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12},
}
_LSTM: Entry = {"name": "lstm", "embedding": 4, "hidden": 6, "layers": 1}


@dataclass(frozen=True)
class Case(SmallRun):
    """A small run whose numbers are pinned.

    Attributes:
        ways: How it is trained beside :data:`SEQUENTIAL`; all ways have to agree.
        tolerance: Of its numbers, relative.
        brief: Whether only the last round and the cost are pinned.
    """

    ways: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    brief: bool = False


def _trained(
    name: str, method: str, *ways: str, backbone: Entry = CONVNET, more: Entry | None = None, **rest: Any
) -> Case:
    return Case(name, {"name": method, **(more or {})}, backbone, ways=ways, **rest)


_HYPER: Entry = {"embedding": 4, "hidden": 6}
_WIDE: Entry = {"rounds": 2, "batch_size": 16, "lr": 0.05}  # batch norm of few samples magnifies rounding
_SGD: Entry = {"momentum": 0.9, "weight_decay": 0.02}
_DROPS: Entry = {"schedule": "exponential", "gamma": 0.3, "schedule_by": "step"}
_AUGMENT: Entry = {"augment_crop": 1, "augment_flip": 0.5, "augment_rotation": 10.0}
_FEW: Entry = {"rounds": 2, "local_epochs": 1, "batch_size": 3}

_TRAINED = (
    _trained("average", "fedavg", POOLED, STACKED, RESUMED),
    _trained("momentum and decay", "fedavg", STACKED, training={**_SGD, "lr": 0.03}),
    _trained("clipping", "fedavg", STACKED, training={**_SGD, "clip": 1.0, "lr": 0.03}),
    _trained("nesterov", "fedavg", STACKED, training={**_SGD, "nesterov": True, "lr": 0.03}),
    _trained("adam", "ditto", POOLED, STACKED, training={"optimizer": "adam", "weight_decay": 0.02, "lr": 0.01}),
    _trained("adamw", "fedavg", STACKED, training={"optimizer": "adamw", "weight_decay": 0.1, "clip": 1.0, "lr": 0.01}),
    _trained("cosine", "fedavg", STACKED, RESUMED, training={"schedule": "cosine", "warmup": 1, "lr_min": 0.01}),
    _trained("drops within rounds", "fedper", STACKED, training={**_DROPS, **_SGD}),
    _trained("server's momentum", "fedavg", STACKED, training={"server_optimizer": "momentum", "server_lr": 0.5}),
    _trained("server's adam", "fedper", POOLED, RESUMED, training={"server_optimizer": "adam"}),
    _trained("server's yogi", "fedbn", RESUMED, backbone=_NORM, training={**_WIDE, "server_optimizer": "yogi"}),
    _trained("server's adagrad", "fedtp", backbone=_STILL, more=_HYPER, training={"server_optimizer": "adagrad"}),
    _trained("class weights", "ditto", POOLED, STACKED, training={"class_weights": "balanced"}),
    _trained("augmentation", "fedavg", POOLED, STACKED, RESUMED, training=_AUGMENT),
    _trained("local steps", "fedavg", POOLED, STACKED, training={"local_steps": 3}),
    _trained("few sampled", "fedavg", clients=9, training={"sample_rate": 0.29, "rounds": 5}),
    _trained("when measured", "fedavg", training={"rounds": 8}, evaluation={"every": 2, "window": 4, "curve_every": 3}),
    _trained("validation", "fedavg", POOLED, STACKED, partition=_HELD_BACK),
    _trained("personal validation", "fedper", POOLED, STACKED, RESUMED, partition={**_HELD_BACK, "novel_share": 0.3}),
    _trained("batch norm", "fedavg", POOLED, STACKED, backbone=_NORM, training=_WIDE),
    _trained("personal norm", "fedbn", STACKED, RESUMED, backbone=_NORM, training=_WIDE),
    _trained("dropout", "fedavg", POOLED, STACKED, backbone=_VIT),
    _trained("bfloat16", "fedavg", STACKED, backbone=_STILL, training={**_FEW, "precision": "bf16"}, tolerance=5e-3),
    _trained("diverges", "fedavg", POOLED, STACKED, training={"lr": 1e30}),
    _trained("proximal", "fedprox", POOLED, STACKED, more={"mu": 2.0}),
    _trained("personal head", "fedper", POOLED, STACKED, RESUMED),
    _trained("personal block", "personal_groups", backbone=_STILL, more={"groups": ["blocks.-1", "head"]}),
    _trained("alone", "local", POOLED),
    _trained(
        "tuning epochs",
        "fedbabu",
        POOLED,
        STACKED,
        backbone=_VIT,
        more={"finetune_epochs": 2},
        training={**_FEW, "batch_size": 8},
    ),
    _trained("tuning steps", "fedbabu", STACKED, more={"finetune_steps": 2, "finetune_lr": 0.05}, training=_SGD),
    _trained("neighbours", "knn_per", POOLED, STACKED, more={"neighbours": 4}),
    _trained("personal neighbours", "fedper", backbone=_STILL, more={"knn": 0.6, "neighbours": 3}),
    _trained("second model", "ditto", POOLED, STACKED, RESUMED, training={"momentum": 0.5}),
    _trained("mixed models", "apfl", STACKED),
    _trained("normalised average", "fednova", training={"momentum": 0.5}),
    _trained("two heads", "fedrod", STACKED),
    _trained("alternating", "fedrep", STACKED, more={"head_epochs": 1}),
    _trained("prototypes", "fedproto", STACKED),
    _trained("distilled", "fedkd"),
    _trained("several passes", "moon", STACKED, backbone=_VIT, training=_FEW),
    _trained("projected features", "moon", STACKED, RESUMED, more={"projection": 6}),
    _trained("meta-learning", "per_fedavg", STACKED),
    _trained("coupled", "fedu"),
    _trained("mixed before rounds", "fedala", POOLED, STACKED, RESUMED, more={"share": 0.6, "eta": 30.0}),
    _trained("opening", "feddbe", POOLED, STACKED, RESUMED, more={"kappa": 1.0, "mu": 0.4}),
    _trained(
        "control variates", "scaffold", POOLED, STACKED, RESUMED, training={"schedule": "exponential", "gamma": 0.5}
    ),
    _trained("dynamic regulariser", "feddyn", POOLED, STACKED, RESUMED, more={"alpha": 0.2}),
    _trained("attentive", "fedamp", POOLED, STACKED, RESUMED, more={"sigma": 5.0, "alpha": 1.0}),
    _trained("attentive by cosine", "fedamp", backbone=_NORM, more={"attention": "cosine"}, training=_WIDE),
    _trained("clusters", "ifca", POOLED, STACKED, RESUMED, more={"clusters": 3}),
    _trained("clusters of norms", "ifca", STACKED, backbone=_NORM, training=_WIDE),
    _trained("combined classifiers", "fedpac", POOLED, STACKED, RESUMED, more={"lam": 0.5}),
    _trained("trained beside the model", "gpfl", STACKED, training={**_SGD, "lr": 0.03}),
    _trained("estimated classifiers", "pfedfda", POOLED, STACKED, RESUMED, more={"grid": 4}),
    _trained("drawn for a client", "pfedgp", POOLED, STACKED, RESUMED, more={"chains": 3, "measured_chains": 4}),
    _trained("split clusters", "cfl", POOLED, STACKED, RESUMED, more={"eps1": 9.0, "eps2": 0.0, "after": 1}),
    _trained("selected parameters", "fedselect", POOLED, STACKED, RESUMED, more={"every": 1, "rate": 0.3}),
    _trained(
        "generated",
        "fedtp",
        POOLED,
        STACKED,
        RESUMED,
        backbone=_VIT,
        more=_HYPER,
        training={"rounds": 2, "momentum": 0.9},
    ),
    _trained("generated models", "pfedhn", STACKED, more=_HYPER),
    _trained("generated norms", "pfedhn", backbone=_NORM, more=_HYPER, training=_WIDE),
    _trained("generated weights", "pfedla_layerwise", RESUMED, more=_HYPER),
    _trained("kept layers", "heurpfedla", POOLED, STACKED, RESUMED, more={**_HYPER, "keep": 2}),
    _trained("added modules", "adapters", backbone=_STILL, more={"width": 4}),
    _trained("fixed parameters", "lora", STACKED, RESUMED, backbone=_STILL, more={"rank": 2}),
    _trained(
        *("novel clients", "local", POOLED),
        partition={**UNEVEN, "novel_share": 0.4},
    ),
    _trained(
        *("novel clients, sampled", "fedavg"),
        partition={**UNEVEN, "novel_share": 0.4},
        analyses=({"name": "adaptation", "epochs": 2, "parts": ["head", "all"]},),
        clients=6,
    ),
    _trained("noise", "fedavg", partition={"name": "noise", "sigma_max": 40.0}),
    _trained(
        *("fresh noise", "fedper", STACKED),
        partition={"name": "noise", "sigma_max": 1.0, "variant": "as_released"},
    ),
    _trained("scaled up", "fedavg", backbone=_STILL, size=12, training=_FEW),
    _trained(
        *("texts", "fedtp", POOLED, STACKED),
        backbone=_LANGUAGE,
        more=_HYPER,
        dataset=_TEXTS,
        partition=_ROLES,
        training={**_FEW, "lr": 2.0, "clip": 1.0},
    ),
    _trained(
        *("remembered texts", "knn_per"),
        backbone=_LSTM,
        more={"knn": 0.9, "neighbours": 3},
        dataset=_TEXTS,
        partition=_ROLES,
        training={**_FEW, "rounds": 1},
    ),
    _trained(
        *("recurrent", "fedrod"),
        backbone=_LSTM,
        dataset=_TEXTS,
        partition=_ROLES,
        clients=3,
        training={**_FEW, "lr": 2.0, "clip": 1.0},
    ),
)


def _dealt(name: str, dataset: str, clients: int = 5, stand_in: int = 200, **options: Any) -> Case:
    shown = ", ".join(f"{key} {value}" for key, value in options.items())
    entry = {"name": dataset, "stand_in": stand_in}
    return Case(f"{name} ({shown})" if shown else name, None, {}, entry, None, {"name": name, **options}, clients)


_DEALT = (
    _dealt("iid", "digits"),
    _dealt("iid", "digits", test_share=0.3),
    _dealt("iid", "digits", test_share=0.3, test_draw="stratified", train_share=0.4),
    _dealt("quantity", "digits", alpha=0.5, min_samples=3, train_limit=20),
    _dealt("dirichlet", "digits", alpha=0.5, min_samples=5),
    _dealt("dirichlet", "digits", alpha=0.5, min_samples=5, sizes="free", test_share=0.25),
    _dealt("dirichlet", "digits", alpha=0.5, min_samples=5, sizes="equal", novel_share=0.3),
    _dealt("dirichlet", "digits", alpha=0.5, min_samples=5, validation_share=0.2, train_limit=8),
    _dealt("pathological", "digits"),
    _dealt("pathological", "digits", 10, 4000, validation_share=0.1),  # classes are shared, and a share of 1 % shows
    _dealt("dirichlet", "digits", stand_in=4000, alpha=0.5, min_samples=10),
    _dealt("pathological", "digits", variant="as_released"),
    _dealt("noise", "digits", sigma_max=20.0),
    _dealt("domains", "digits5"),
    _dealt("domain_dirichlet", "digits5", 10, 400, alpha=1.0, min_samples=2),
    _dealt("coarse_classes", "cifar100", 20, 400),
    _dealt("pachinko", "cifar100", 10, 400),
    _dealt("natural", "shakespeare", 4),
)

# Small options of methods and backbones that no case above has, and what they are trained on.
_ON_ATTENTION = ("fedperfix", "fedtp_fedrod", "prefix", "prompts", "vanilla_attention")
_OF_METHOD: dict[str, Entry] = {
    "fedofa": {"embedding": 4, "hidden": 4, "heads": 2, "percent": 50.0},
    "fedtp_fedrod": _HYPER,
}
_COLOURS: Entry = {"name": "cifar10", "stand_in": 60}
_NORMED: Entry = {**_WIDE, "lr": 0.02}
_SMALL_BACKBONES: dict[str, tuple[Entry, Entry, Entry]] = {
    "alexnet_bn": (
        {"width": 4, "hidden": 16, "grid": 1, "kernel": 3, "stride": 1, "padding": 1, "pool_padding": 1},
        IMAGES,
        _NORMED,
    ),
    "lenet": ({"kernel": 3, "padding": 1}, IMAGES, {}),
    "mobilenetv2_ssd": (
        {"width": 35},
        {"name": "voc2007", "size": 64, "stand_in": 40},
        {**_FEW, "local_steps": 1, "lr": 0.01},
    ),
    "resnet50": ({"blocks_per_stage": 1, "width": 4}, _COLOURS, _NORMED),
    "timm_model": ({"model": "test_resnet"}, _COLOURS, _NORMED),
    "vit": ({"size": "tiny", "depth": 1}, _COLOURS, {**_FEW, "local_steps": 1}),
}
_ENGINE = (*_TRAINED, *_DEALT, Case("handwritten digits", dataset={"name": "digits"}, partition=None, backbone={}))


def _methods() -> list[Case]:
    """Return a case for each method that none of the engine's cases has."""
    used = {case.method["name"] for case in _ENGINE if case.method}
    return [
        Case(
            f"method {name}",
            {"name": name, **_OF_METHOD.get(name, METHODS.get(name).smoke)},
            _STILL if name in _ON_ATTENTION else CONVNET,
            brief=True,
        )
        for name in METHODS.names()
        if name not in used
    ]


def _backbones() -> list[Case]:
    """Return a case for each backbone that none of the engine's cases has."""
    return [
        Case(
            f"backbone {name}",
            {"name": "fedavg"},
            {"name": name, **options},
            dataset,
            clients=3,
            training=training,
            brief=True,
        )
        for name, (options, dataset, training) in _SMALL_BACKBONES.items()
    ]


CASES = (*_ENGINE, *_methods(), *_backbones())
