"""The pinned small runs: one for each thing that the engine does, and one for each registered entry.

Few mistakes cancel out in them, as clients are uneven. A case that is added is recorded by ``make pins RECORD=1``.
"""

from dataclasses import dataclass, fields

from pflcore.methods import METHODS
from pipeline.study.small_run import CONVNET, IMAGES, UNEVEN, SmallRun
from pipeline.study.small_run import POOLED as P
from pipeline.study.small_run import RESUMED as R
from pipeline.study.small_run import STACKED as S

TOLERANCE = 2e-5  # of the largest number of a line; vector units change numbers by 2e-6, stacks by as much

_HELD_BACK = {**UNEVEN, "validation_share": 0.3}
_NOVEL = {**UNEVEN, "novel_share": 0.4}
_NORM = {"name": "lenet_bn", "channels": [4, 6], "kernel": 3, "padding": 1}
_VIT = {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4}
_STILL = {**_VIT, "dropout": 0.0}
_LANGUAGE = {"name": "language_transformer", "depth": 1, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12}
_LSTM = {"name": "lstm", "embedding": 4, "hidden": 6, "layers": 1}
_SIGNAL_NET = {"name": "convnet1d", "channels": [4, 6], "hidden": [12]}
_SIGNALS = {"dataset": {"name": "har", "stand_in": 120}, "partition": {"name": "natural", "attribute": "person"}}
_FEATURES = {"name": "har", "inputs": "features", "stand_in": 120}
_MLP = {"name": "mlp", "hidden": [6]}
_SHAKESPEARE = {"name": "shakespeare", "stand_in": 120}
_TEXTS = {"dataset": _SHAKESPEARE, "partition": {"name": "natural", "min_samples": 1}}


@dataclass(frozen=True)
class Case(SmallRun):
    """A small run whose numbers are pinned."""

    ways: tuple[str, ...] = ()  # how it is trained beside sequentially; all ways have to agree
    tolerance: float = TOLERANCE  # of its numbers, relative
    brief: bool = False  # whether only the last round and the cost are pinned


_FIELDS = {field.name for field in fields(Case)}


def _trained(name, method, *ways, **rest):
    """A case; what is no field of it is an option of the method."""
    options = {key: value for key, value in rest.items() if key not in _FIELDS}
    return Case(name, {"name": method, **options}, ways=ways, **{key: rest[key] for key in rest.keys() - options})


_HYPER = {"embedding": 4, "hidden": 6}
_WIDE = {"rounds": 2, "batch_size": 16, "lr": 0.05}  # batch norm of few samples magnifies rounding
_SGD = {"momentum": 0.9, "weight_decay": 0.02}
_DROPS = {"schedule": "exponential", "gamma": 0.3, "schedule_by": "step"}
_AUGMENT = {"augment_crop": 1, "augment_flip": 0.5, "augment_rotation": 10.0}
_ADAMW = {"optimizer": "adamw", "weight_decay": 0.1, "clip": 1.0, "lr": 0.01}
_FEW = {"rounds": 2, "local_epochs": 1, "batch_size": 3}
_ONCE = {**_FEW, "rounds": 1}
_CLIPPED = {**_FEW, "lr": 2.0, "clip": 1.0}
_MEASURED = {"every": 2, "window": 4, "curve_every": 3}
_ADAPTED = {"name": "adaptation", "epochs": 2, "parts": ["head", "all"]}
_ENCODER = {"backbone": "lenet_bn", "channels": [4, 6], "kernel": 3, "padding": 1}
_ENCODED = {**IMAGES, "features": {**_ENCODER, "pretrain": {"share": 0.3, "epochs": 2, "lr": 0.05, "seed": 1}}}
_AWAY = {"name": "availability", "away": 0.6, "slow": 0.5, "redrawn": True, "pace": 0.3}
_ATTACK = {"name": "attack", "share": 0.4, "strength": 1.5}
_NOISE = {**_ATTACK, "kind": "gaussian", "strength": 0.1}
_RELEASED = {"name": "noise", "sigma_max": 1.0, "variant": "as_released"}

_TRAINED = (
    _trained("average", "fedavg", P, S, R),
    _trained("momentum and decay", "fedavg", S, training={**_SGD, "lr": 0.03}),
    _trained("clipping", "fedavg", S, training={**_SGD, "clip": 1.0, "lr": 0.03}),
    _trained("nesterov", "fedavg", S, training={**_SGD, "nesterov": True, "lr": 0.03}),
    _trained("adam", "ditto", P, S, training={"optimizer": "adam", "weight_decay": 0.02, "lr": 0.01}),
    _trained("adamw", "fedavg", S, training=_ADAMW),
    _trained("cosine", "fedavg", S, R, training={"schedule": "cosine", "warmup": 1, "lr_min": 0.01}),
    _trained("drops within rounds", "fedper", S, training={**_DROPS, **_SGD}),
    _trained("server's momentum", "fedavg", S, training={"server_optimizer": "momentum", "server_lr": 0.5}),
    _trained("server's adam", "fedper", P, R, training={"server_optimizer": "adam"}),
    _trained("server's yogi", "fedbn", R, backbone=_NORM, training={**_WIDE, "server_optimizer": "yogi"}),
    _trained("server's adagrad", "fedtp", backbone=_STILL, **_HYPER, training={"server_optimizer": "adagrad"}),
    _trained("features", "fedper", P, dataset=_ENCODED, backbone={"name": "mlp", "hidden": [6]}),
    _trained("class weights", "ditto", P, S, training={"class_weights": "balanced"}),
    _trained("augmentation", "fedavg", P, S, R, training=_AUGMENT),
    _trained("local steps", "fedavg", P, S, training={"local_steps": 3}),
    _trained("few sampled", "fedavg", clients=9, training={"sample_rate": 0.29, "rounds": 5}),
    _trained("when measured", "fedavg", training={"rounds": 8}, evaluation=_MEASURED),
    _trained("validation", "fedavg", P, S, partition=_HELD_BACK),
    _trained("personal validation", "fedper", P, S, R, partition={**_HELD_BACK, "novel_share": 0.3}),
    _trained("batch norm", "fedavg", P, S, backbone=_NORM, training=_WIDE),
    _trained("personal norm", "fedbn", S, R, backbone=_NORM, training=_WIDE),
    _trained("dropout", "fedavg", P, S, backbone=_VIT),
    _trained("bfloat16", "fedavg", S, backbone=_STILL, training={**_FEW, "precision": "bf16"}, tolerance=5e-3),
    _trained("diverges", "fedavg", P, S, training={"lr": 1e30}),
    _trained("proximal", "fedprox", P, S, mu=2.0),
    _trained("personal head", "fedper", P, S, R),
    _trained("personal block", "personal_groups", backbone=_STILL, groups=["blocks.-1", "head"]),
    _trained("alone", "local", P),
    _trained("tuning epochs", "fedbabu", P, S, backbone=_VIT, finetune_epochs=2, training={**_FEW, "batch_size": 8}),
    _trained("tuning steps", "fedbabu", S, finetune_steps=2, finetune_lr=0.05, training=_SGD),
    _trained("neighbours", "knn_per", P, S, neighbours=4),
    _trained("personal neighbours", "fedper", backbone=_STILL, knn=0.6, neighbours=3),
    _trained("second model", "ditto", P, S, R, training={"momentum": 0.5}),
    _trained("mixed models", "apfl", S),
    _trained("normalised average", "fednova", training={"momentum": 0.5}),
    _trained("two heads", "fedrod", S),
    _trained("alternating", "fedrep", S, head_epochs=1),
    _trained("prototypes", "fedproto", S),
    _trained("distilled", "fedkd"),
    _trained("several passes", "moon", S, backbone=_VIT, training=_FEW),
    _trained("projected features", "moon", S, R, projection=6),
    _trained("meta-learning", "per_fedavg", S),
    _trained("coupled", "fedu"),
    _trained("mixed before rounds", "fedala", P, S, R, share=0.6, eta=30.0),
    _trained("opening", "feddbe", P, S, R, kappa=1.0, mu=0.4),
    _trained("control variates", "scaffold", P, S, R, training={"schedule": "exponential", "gamma": 0.5}),
    _trained("dynamic regulariser", "feddyn", P, S, R, alpha=0.2),
    _trained("attentive", "fedamp", P, S, R, sigma=5.0, alpha=1.0),
    _trained("attentive by cosine", "fedamp", backbone=_NORM, attention="cosine", training=_WIDE),
    _trained("clusters", "ifca", P, S, R, clusters=3),
    _trained("clusters of norms", "ifca", S, backbone=_NORM, training=_WIDE),
    _trained("combined classifiers", "fedpac", P, S, R, lam=0.5),
    _trained("trained beside the model", "gpfl", S, training={**_SGD, "lr": 0.03}),
    _trained("estimated classifiers", "pfedfda", P, S, R, grid=4),
    _trained("drawn for a client", "pfedgp", P, S, R, chains=3, measured_chains=4),
    _trained("split clusters", "cfl", P, S, R, eps1=9.0, eps2=0.0, after=1),
    _trained("selected parameters", "fedselect", P, S, R, every=1, rate=0.3),
    _trained("generated", "fedtp", P, S, R, backbone=_VIT, **_HYPER, training={"rounds": 2, "momentum": 0.9}),
    _trained("generated models", "pfedhn", S, **_HYPER),
    _trained("generated norms", "pfedhn", backbone=_NORM, **_HYPER, training=_WIDE),
    _trained("generated weights", "pfedla_layerwise", R, **_HYPER),
    _trained("kept layers", "heurpfedla", P, S, R, **_HYPER, keep=2),
    _trained("added modules", "adapters", backbone=_STILL, width=4),
    _trained("fixed parameters", "lora", S, R, backbone=_STILL, rank=2),
    _trained("novel clients", "local", P, partition=_NOVEL),
    _trained("novel clients, sampled", "fedavg", partition=_NOVEL, analyses=(_ADAPTED,), clients=6),
    _trained("clients away", "scaffold", P, S, R, condition=_AWAY),
    _trained("wrong labels", "fedrod", S, condition={"name": "label_noise", "flipped": 0.4, "noisy": 0.6}),
    _trained("attackers", "fedper", P, S, R, partition=_HELD_BACK, condition=_ATTACK),
    _trained("noisy attackers", "fedavg", S, averaging="krum", condition=_NOISE),
    _trained("trimmed", "fedbn", R, backbone=_NORM, training=_WIDE, averaging="trimmed_mean", condition=_ATTACK),
    _trained("geometric median", "feddyn", P, averaging="geometric_median"),
    _trained("noise", "fedavg", partition={"name": "noise", "sigma_max": 40.0}),
    _trained("fresh noise", "fedper", S, partition=_RELEASED),
    _trained("scaled up", "fedavg", backbone=_STILL, size=12, training=_FEW),
    _trained("signals", "fedrod", P, S, R, backbone=_SIGNAL_NET, **_SIGNALS),
    _trained("standardised features", "ditto", P, S, backbone=_MLP, dataset=_FEATURES),
    _trained("texts", "fedtp", P, S, backbone=_LANGUAGE, **_HYPER, **_TEXTS, training=_CLIPPED),
    _trained("remembered texts", "knn_per", backbone=_LSTM, knn=0.9, neighbours=3, **_TEXTS, training=_ONCE),
    _trained("recurrent", "fedrod", backbone=_LSTM, **_TEXTS, clients=3, training=_CLIPPED),
)


def _dealt(name, dataset, clients=5, stand_in=200, **options):
    shown = ", ".join(f"{key} {value}" for key, value in options.items())
    entry = {"name": dataset, "stand_in": stand_in}
    return Case(f"{name} ({shown})" if shown else name, None, {}, entry, None, {"name": name, **options}, clients)


_MIXED = {"train_share": 0.35, "train_limit": 60, "validation_share": 0.1, "test_share": 0.2, "novel_share": 0.3}
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
    _dealt("pathological", "digits", 10, classes_per_client=3, variant="as_released_pfedhn"),
    _dealt("dirichlet", "digits", 6, 900, alpha=0.5, **_MIXED),
    _dealt("noise", "digits", sigma_max=20.0),
    _dealt("domains", "digits5"),
    _dealt("domain_dirichlet", "digits5", 10, 400, alpha=1.0, min_samples=2),
    _dealt("coarse_classes", "cifar100", 20, 400),
    _dealt("coarse_classes", "cifar100", 100, 1000, fine="single"),
    _dealt("pachinko", "cifar100", 10, 400),
    _dealt("natural", "shakespeare", 4),
    _dealt("natural", "digits5", 4, 400, attribute="domain", min_samples=2),
)

# Small options of methods and backbones that no case above has, and what they are trained on.
_ON_ATTENTION = ("fedperfix", "fedtp_fedrod", "prefix", "prompts", "vanilla_attention")
_FEDOFA = {"embedding": 4, "hidden": 4, "heads": 2, "percent": 50.0}
_OF_METHOD = {"fedofa": _FEDOFA, "fedtp_fedrod": _HYPER}
_COLOURS = {"name": "cifar10", "stand_in": 60}
_BOXES = {"name": "voc2007", "size": 64, "stand_in": 40}
_NORMED = {**_WIDE, "lr": 0.02}
_ALEXNET = {"width": 4, "hidden": 16, "grid": 1, "kernel": 3, "stride": 1, "padding": 1, "pool_padding": 1}
_SMALL_BACKBONES = {
    "alexnet_bn": (_ALEXNET, IMAGES, _NORMED),
    "linear": ({}, _FEATURES, {}),
    "lenet": ({"kernel": 3, "padding": 1}, IMAGES, {}),
    "mobilenetv2_ssd": ({"width": 35}, _BOXES, {**_FEW, "local_steps": 1, "lr": 0.01}),
    "resnet50": ({"blocks_per_stage": 1, "width": 4}, _COLOURS, _NORMED),
    "timm_model": ({"model": "test_resnet"}, _COLOURS, _NORMED),
    "vit": ({"size": "tiny", "depth": 1}, _COLOURS, {**_FEW, "local_steps": 1}),
}
_ENGINE = (*_TRAINED, *_DEALT, Case("handwritten digits", dataset={"name": "digits"}, partition=None, backbone={}))


def _methods():
    """Yield a case for each method that none of the engine's cases has."""
    used = {case.method["name"] for case in _ENGINE if case.method}
    for name in METHODS.names():
        if name not in used:
            options = _OF_METHOD.get(name, METHODS.get(name).smoke)
            net = _STILL if name in _ON_ATTENTION else CONVNET
            yield Case(f"method {name}", {"name": name, **options}, net, brief=True)


def _backbones():
    """Yield a case for each backbone that none of the engine's cases has."""
    for name, (options, dataset, training) in _SMALL_BACKBONES.items():
        net, how = {"name": name, **options}, {"clients": 3, "training": training, "brief": True}
        yield Case(f"backbone {name}", {"name": "fedavg"}, net, dataset, **how)


CASES = (*_ENGINE, *_methods(), *_backbones())
