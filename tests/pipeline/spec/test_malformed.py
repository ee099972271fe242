"""Bad specs end in one line that says where and what; no other exception, nothing on a second line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_catalog import BASE, CATALOG, write_specs

from pflcore.errors import UserError
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec

GRID = f"""\
title: A table
grid:
  base: {BASE}
  axes:
    method: {{FedAvg: fedavg, FedTP: fedtp}}
    clients: [20, 50]
table:
  rows: [method]
  columns: [clients]
"""
CSV = "method,clients,mean,std,quoted,note\n"


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(lines)


# name: (text of specs/a.yaml, or files by path; message)
CASES: dict[str, tuple[str | bytes | dict[str, str | bytes], str]] = {
    # The YAML itself.
    "not UTF-8": (b"title: ok\nnotes: [caf\xe9]\n", "specs/a.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    "binary": (b"\x00\x01\x02ELF", "specs/a.yaml:1: character 0x00 is not allowed in YAML"),
    "control character": ("title: a\nnotes: [\x07]\n", "specs/a.yaml:2: character 0x07 is not allowed in YAML"),
    "10 MB": (
        "a: &a x\nb: [" + "*a, " * 2_500_000 + "*a]",
        "specs/a.yaml: larger than 1 MiB; a spec is a small text file",
    ),
    "many aliases": (
        "a: &a [x, x]\nb:\n" + "- *a\n" * 9_000,
        "specs/a.yaml:6668: more than 20000 values, aliases expanded; split the file",
    ),
    "alias bomb": (bomb(), "specs/a.yaml:5: more than 20000 values, aliases expanded; split the file"),
    "alias in itself": ("a: &a [1, *a]", "specs/a.yaml:1: the alias *a stands inside the value that it repeats"),
    "unknown alias": ("a: 1\nb: *c", "specs/a.yaml:2: the alias *c repeats no earlier `&` anchor"),
    "tab": ("grid:\n\tbase: {}\n", "specs/a.yaml:2: a tab cannot indent YAML; use spaces"),
    "unclosed": (
        "title: [a, b\n",
        "specs/a.yaml:2: not valid YAML: did not find expected ',' or ']'",
    ),
    "deep": ("a: " + "[" * 500 + "]" * 500, "specs/a.yaml:1: nested deeper than 40 levels"),
    "duplicate key": ("title: a\nnotes: []\ntitle: b\n", "specs/a.yaml:3: the key 'title' is already stated in line 1"),
    "empty": ("", "specs/a.yaml:1: the file is empty"),
    "only a comment": ("# nothing\n", "specs/a.yaml:1: the file is empty"),
    "top-level list": ("\n- a\n", "specs/a.yaml:2: expected `key: value` lines at the top level, found a list"),
    "top-level text": ("fedavg", "specs/a.yaml:1: expected `key: value` lines at the top level, found 'fedavg'"),
    "two documents": ("a: 1\n---\nb: 2\n", "specs/a.yaml:2: a second document (`---`) in one file; a file holds one"),
    "python tag": (
        "title: !!python/object/apply:os.system ['true']\n",
        "specs/a.yaml:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed; "
        "specs are plain data",
    ),
    "merge key": (
        "a: &a {title: x}\n<<: *a\n",
        "specs/a.yaml:2: merge keys (<<) are not supported; use `extends`",
    ),
    "list as key": ("[a, b]: 1\n", "specs/a.yaml:1: a key must be plain text"),
    "empty key": ("~: 1\n", "specs/a.yaml:1: a key must not be empty"),
    "NaN": (
        "grid:\n  base:\n    training: {lr: .nan}\n",
        "specs/a.yaml:3: the number .nan is not allowed; numbers are finite and zero has no sign",
    ),
    "infinite": (
        "grid:\n  base:\n    training: {lr: 1e999}\n",
        "specs/a.yaml:3: the number 1e999 is not allowed; numbers are finite and zero has no sign",
    ),
    "negative zero": (
        "grid:\n  base:\n    training: {momentum: -0.0}\n",
        "specs/a.yaml:3: the number -0.0 is not allowed; numbers are finite and zero has no sign",
    ),
    "long number": (
        f"grid: {{base: {{seed: 1{'0' * 5000}}}}}",
        f"specs/a.yaml:1: the number '1{'0' * 55}... is too long; quote it if it is text",
    ),
    # Structure.
    "unknown key": ("titel: x\n", "specs/a.yaml:1: titel: unknown key; did you mean 'title'?"),
    "unknown key inside": (
        "table:\n  rows: []\n  colums: []\n",
        "specs/a.yaml:3: table.colums: unknown key; did you mean 'columns'?",
    ),
    "unknown key in a list": (
        "claims:\n  - text: t\n    better: {method: A}\n    then: others\n",
        "specs/a.yaml:4: claims[0].then: unknown key; did you mean 'than'?",
    ),
    "missing key": (
        "claims:\n  - text: t\n    better: {method: A}\n",
        "specs/a.yaml:2: claims[0]: 'than' is missing",
    ),
    "wrong type": ("title: 5\n", "specs/a.yaml:1: title: 5 must be text; quote it"),
    "list for mapping": ("grid:\n  - base\n", "specs/a.yaml:1: grid: ['base'] must be `key: value` lines"),
    "unknown metric": (
        "table: {metric: accuracy}\n",
        "specs/a.yaml:1: table.metric: 'accuracy' must be one of 'last_rounds', 'last_ten', 'clients', 'final', "
        "'worst_tenth', 'last_position', 'best_by_validation', 'parameters', 'shared', 'personal', 'stored', 'sent', "
        "'step_flops', 'forward_flops', 'bytes_up', 'bytes_down', 'rounds_to' or 'attention_weight'",
    ),
    "misprint without a reason": (
        {
            "specs/a.yaml": GRID + "  published: a.csv\n",
            "specs/a.csv": CSV[:-1] + ",misprint\nFedAvg,20,33.+1,,,,yes\n",
        },
        "specs/a.csv:2: note: missing; a misprint has what is printed, and why it cannot be so",
    ),
    # Numbers that are no accuracies.
    "quantity of nothing": (
        GRID + "  quantities: {method: {FedTP: {metric: stord}}}\n",
        "specs/a.yaml:10: table.quantities.method.FedTP.metric: 'stord' must be one of 'last_rounds', 'last_ten', "
        "'clients', 'final', 'worst_tenth', 'last_position', 'best_by_validation', 'parameters', 'shared', 'personal', "
        "'stored', 'sent', 'step_flops', 'forward_flops', 'bytes_up', 'bytes_down', 'rounds_to' or 'attention_weight'",
    ),
    "quantity of an unknown axis": (
        GRID + "  quantities: {methods: {FedTP: {metric: stored}}}\n",
        "specs/a.yaml:10: table.quantities.methods: unknown axis; did you mean 'method'?",
    ),
    "quantity of an unknown label": (
        GRID + "  quantities: {method: {FedPT: {metric: stored}}}\n",
        "specs/a.yaml:10: table.quantities.method.FedPT: unknown label 'FedPT'; did you mean 'FedTP'?",
    ),
    "quantities beside accuracies": (
        GRID + "  quantities: {method: {FedTP: {metric: stored}}}\n",
        "specs/a.yaml:10: table.quantities: leave some cells with accuracies; make a table of its own for other "
        "quantities",
    ),
    "quantity without its option": (
        GRID + "  metric: rounds_to\n",
        "specs/a.yaml:7: table.quantity: the metric 'rounds_to' needs 'accuracy'",
    ),
    "quantity with an option of another": (
        GRID + "  metric: stored\n  quantity: {accuracy: 80.0}\n",
        "specs/a.yaml:11: table.quantity: 'accuracy' is no option of the metric 'stored'",
    ),
    "accuracy in percent of another": (
        GRID + "  quantity: {percent_of: {method: FedAvg}}\n",
        "specs/a.yaml:10: table.quantity: the metric 'last_rounds' is not shown in percent of anything",
    ),
    "quantity in percent of no row": (
        GRID + "  metric: stored\n  quantity: {percent_of: {method: FedAgv}}\n",
        "specs/a.yaml:11: table.quantity: method: unknown label 'FedAgv'; did you mean 'FedAvg'?",
    ),
    "columns derived of a quantity": (
        GRID + "  metric: stored\n  derived: [{show: rank}]\n",
        "specs/a.yaml:11: table.derived: columns are derived from accuracies, which this table has none of",
    ),
    "published quantity": (
        {
            "specs/a.yaml": GRID + "  metric: stored\n  published: a.csv\n",
            "specs/a.csv": CSV + "FedAvg,20,45.17 X,,,\n",
        },
        "specs/a.csv:2: mean: '45.17 X' is not a number such as 45.17 K",
    ),
    "empty selection": (
        "grid:\n  exclude:\n    - method: []\n",
        "specs/a.yaml:3: grid.exclude[0].method: an empty list picks nothing; leave the axis out to pick every label",
    ),
    # Runs.
    "no run": (
        "grid:\n  base: {dataset: ten}\n",
        "specs/a.yaml:2: grid.base: no partition; state it here or on an axis",
    ),
    "no grid": ("title: x\n", "specs/a.yaml:1: grid.base: no dataset; state it here or on an axis"),
    "unknown field": (
        "grid:\n  base:\n    methd: fedtp\n",
        "specs/a.yaml:3: grid.base.methd: unknown run field; did you mean 'method'?",
    ),
    "dotted field": (
        "grid:\n  base:\n    training.lr: 0.1\n",
        "specs/a.yaml:3: grid.base.training.lr: unknown run field; write training: {lr: …}",
    ),
    "unknown method": (
        "grid:\n  base:\n    method: fedpt\n",
        "specs/a.yaml:3: grid.base.method: unknown method 'fedpt'; did you mean 'fedtp'?",
    ),
    "shell in a name": (
        "grid:\n  base:\n    dataset:\n      name: $(reboot); ls\n",
        "specs/a.yaml:4: grid.base.dataset.name: unknown dataset '$(reboot); ls'; known: hundred, ten",
    ),
    "dots in a name": (
        "grid:\n  base:\n    backbone: ../../vit\n",
        "specs/a.yaml:3: grid.base.backbone: unknown backbone '../../vit'; known: convnet, vit",
    ),
    "number as a name": (
        "grid:\n  base:\n    method: 5\n",
        "specs/a.yaml:3: grid.base.method: 5 must be the name of a method or its options",
    ),
    "unknown option": (
        GRID.replace("FedTP: fedtp", "FedTP: {name: fedtp, embeding: 8}"),
        "specs/a.yaml:5: grid.axes.method.FedTP.embeding: unknown option; did you mean 'embedding'?",
    ),
    "option of an entry without options": (
        "grid:\n  base:\n    method: {name: fedavg, mu: 1}\n",
        "specs/a.yaml:3: grid.base.method.mu: unknown option; there are none",
    ),
    "option of another entry": (
        GRID.replace(
            "table:", "  overrides:\n    - when: {method: FedAvg}\n      set:\n        method: {embedding: 8}\ntable:"
        ),
        "specs/a.yaml:10: grid.overrides[0].set.method.embedding: unknown option; there are none",
    ),
    "missing option": (
        "grid:\n  base: {dataset: ten, partition: dirichlet, clients: 9, backbone: vit,\n    method: fedper}\n",
        "specs/a.yaml:3: grid.base.method: method 'fedper' needs the option 'layers'",
    ),
    "option without a name": (
        "grid:\n  base:\n    dataset: {stand_in: 8}\n",
        "specs/a.yaml:3: grid.base.dataset.stand_in: an option without a dataset: no name is stated for these runs",
    ),
    "negative rounds": (
        "grid:\n  base:\n    training:\n      rounds: -1\n",
        "specs/a.yaml:4: grid.base.training.rounds: -1 must be at least 1",
    ),
    "sample rate": (
        "grid:\n  base:\n    training: {sample_rate: 2}\n",
        "specs/a.yaml:3: grid.base.training.sample_rate: 2 must be at most 1",
    ),
    "text for a number": (
        "grid:\n  base:\n    training: {lr: fast}\n",
        "specs/a.yaml:3: grid.base.training.lr: 'fast' must be a number",
    ),
    "fraction for a count": (
        "grid:\n  base:\n    training: {rounds: 1.5}\n",
        "specs/a.yaml:3: grid.base.training.rounds: 1.5 must be a whole number",
    ),
    "truth for a number": (
        "grid:\n  base:\n    training: {rounds: true}\n",
        "specs/a.yaml:3: grid.base.training.rounds: true must be a whole number",
    ),
    "word for a truth": (
        "grid:\n  base:\n    method: {name: fedtp, normalised: yes}\n",
        "specs/a.yaml:3: grid.base.method.normalised: 'yes' must be true or false",
    ),
    "choice": (
        "grid:\n  base:\n    method: {name: fedtp, variant: released}\n",
        "specs/a.yaml:3: grid.base.method.variant: 'released' must be one of 'as_written' or 'as_released'",
    ),
    "choice of numbers": (
        "grid:\n  base:\n    backbone: {name: convnet, pool: 3}\n",
        "specs/a.yaml:3: grid.base.backbone.pool: 3.0 must be one of 1.0, 2.0",
    ),
    "item of a list": (
        "grid:\n  base:\n    backbone:\n      name: convnet\n      channels:\n        - 8\n        - 0\n",
        "specs/a.yaml:7: grid.base.backbone.channels[1]: 0 must be at least 1",
    ),
    "number for a list": (
        "grid:\n  base:\n    backbone: {name: convnet, channels: 8}\n",
        "specs/a.yaml:3: grid.base.backbone.channels: 8 must be a list",
    ),
    "no clients": (
        "grid:\n  base:\n    clients: 0\n",
        "specs/a.yaml:3: grid.base.clients: 0 must be a whole number, at least 1",
    ),
    # Analyses.
    "analysis misspelt": (
        "grid:\n  base:\n    analyses:\n      - weights\n      - mapps\n",
        "specs/a.yaml:5: grid.base.analyses[1]: unknown analysis 'mapps'; did you mean 'maps'?",
    ),
    "option of an analysis misspelt": (
        "grid:\n  base:\n    analyses:\n      - {name: maps, image: 1}\n",
        "specs/a.yaml:4: grid.base.analyses[0].image: unknown option; did you mean 'images'?",
    ),
    "item of an analysis": (
        "grid:\n  base:\n    analyses:\n      - name: maps\n        clients: [0, -2]\n",
        "specs/a.yaml:5: grid.base.analyses[0].clients[1]: -2 must be at least 0",
    ),
    "analysis twice": (
        "grid:\n  base:\n    analyses:\n      - {name: maps, images: 1}\n      - weights\n      - maps\n",
        "specs/a.yaml:6: grid.base.analyses[2]: the analysis 'maps' is named twice",
    ),
    "analysis without a name": (
        "grid:\n  base:\n    analyses: [{images: 1}]\n",
        "specs/a.yaml:3: grid.base.analyses[0]: {'images': 1} must be a name, or {name: …} with options",
    ),
    "number as an analysis": (
        "grid:\n  base:\n    analyses: [{name: 3}]\n",
        "specs/a.yaml:3: grid.base.analyses[0].name: 3 is no analysis's name; quote it if it is one",
    ),
    "analysis where a list belongs": (
        "grid:\n  base:\n    analyses: maps\n",
        "specs/a.yaml:3: grid.base.analyses: 'maps' must be a list",
    ),
    "unused list": (
        f"grid: {{base: {BASE}, overrides: [{{when: {{seed: 7}}, set: {{analyses: [map]}}}}]}}\n",
        "specs/a.yaml:1: grid.overrides[0].set.analyses[0]: unknown analysis 'map'; did you mean 'maps'?",
    ),
    "analyses of the evaluation": (
        "grid:\n  base:\n    evaluation: {analyses: [maps]}\n",
        "specs/a.yaml:3: grid.base.evaluation.analyses: unknown option; known: every, window, curve_every",
    ),
    "axis of analyses without labels": (
        GRID.replace("clients: [20, 50]", "analyses:\n      - [maps]\n      - []"),
        "specs/a.yaml:7: grid.axes.analyses[0]: ['maps'] has no label; write `label: value` lines",
    ),
    "axis of an option of an analysis": (
        GRID.replace("clients: [20, 50]", "analyses.images: [1, 2]"),
        "specs/a.yaml:6: grid.axes.analyses.images: call the axis 'analyses'; its values are `label: list` lines",
    ),
    "figure misspelt": (
        "figures:\n  - gain\n  - weight\n",
        "specs/a.yaml:3: figures[1]: 'weight' is no figure of a report; did you mean 'weights'?",
    ),
    # Axes.
    "all excluded": (
        GRID.replace("table:", "  exclude:\n    - clients: [20, 50]\ntable:"),
        "specs/a.yaml:7: grid.exclude: excludes every run of the grid",
    ),
    "empty axis": (
        GRID.replace("[20, 50]", "[]"),
        "specs/a.yaml:6: grid.axes.clients: [] must be a list of values or `label: value` lines",
    ),
    "duplicate labels": (
        GRID.replace("[20, 50]", "\n    - 20\n    - 50\n    - 20"),
        "specs/a.yaml:9: grid.axes.clients[2]: a second value labelled '20'; write `label: value` lines",
    ),
    "value without a label": (
        GRID.replace("{FedAvg: fedavg, FedTP: fedtp}", "[fedavg, {embedding: 8}]"),
        "specs/a.yaml:5: grid.axes.method[1]: {'embedding': 8} has no label; write `label: value` lines",
    ),
    "component for an axis": (
        GRID.replace("{FedAvg: fedavg, FedTP: fedtp}", "{name: fedtp}"),
        "specs/a.yaml:5: grid.axes.method.name: a method where a list or `label: method` lines belong; "
        "write it as [{name: …}]",
    ),
    "axis misspelt": (
        GRID.replace("    method:", "    methods:").replace("{FedAvg: fedavg, FedTP: fedtp}", "[fedavg]"),
        "specs/a.yaml:5: grid.axes.methods: no run field, so its values must be `label: patch of a run` lines; "
        "did you mean 'method'?",
    ),
    "axis of an unknown option": (
        GRID.replace("clients: [20, 50]", "partition.alfa: [1, 2]"),
        "specs/a.yaml:6: grid.axes.partition.alfa: no partition has an option 'alfa'; did you mean 'alpha'?",
    ),
    "axis of an unknown part": (
        GRID.replace("clients: [20, 50]", "trainig.lr: [1, 2]"),
        "specs/a.yaml:6: grid.axes.trainig.lr: unknown part 'trainig' of a run; did you mean 'training'?",
    ),
    "bad axis value": (
        GRID.replace("clients: [20, 50]", "training.lr:\n      - 0.1\n      - -1"),
        "specs/a.yaml:8: grid.axes.training.lr[1]: -1 must be greater than 0",
    ),
    "axis name": (
        GRID.replace("clients: [20, 50]", "mean: {A: {clients: 20}}"),
        "specs/a.yaml:6: grid.axes.mean: 'mean' cannot name an axis; use letters, digits, '_', '-', and a name that is "
        "none of mean, std, quoted, note, misprint, explained",
    ),
    "free axis without a patch": (
        GRID.replace("clients: [20, 50]", "setting: {A: 20}"),
        "specs/a.yaml:6: grid.axes.setting.A: 20 must be `field: value` lines",
    ),
    "too many runs": (
        GRID.replace("clients: [20, 50]", "\n    ".join(f"backbone.depth: {list(range(1, 200))}".splitlines())).replace(
            "table:", f"    seed: {list(range(200))}\ntable:"
        ),
        "specs/a.yaml:4: grid.axes: 79600 runs; a spec holds at most 20000",
    ),
    "axis without effect": (
        GRID.replace("clients: [20, 50]", "setting: {A: {seed: 0}, B: {}}").replace("[clients]", "[setting]"),
        "specs/a.yaml:6: grid.axes.setting: has no effect: its values give the same runs",
    ),
    "unknown label in when": (
        GRID.replace("table:", "  overrides:\n    - when: {method: FedTp}\n      set: {seed: 1}\ntable:"),
        "specs/a.yaml:8: grid.overrides[0].when.method: unknown label 'FedTp'; did you mean 'FedTP'?",
    ),
    "unknown label in exclude": (
        GRID.replace("table:", "  exclude:\n    - {method: FedTP, clients: [20, 100]}\ntable:"),
        "specs/a.yaml:8: grid.exclude[0].clients[1]: unknown label '100'; known: 20, 50",
    ),
    "unknown axis in exclude": (
        GRID.replace("table:", "  exclude:\n    - {client: 20}\ntable:"),
        "specs/a.yaml:8: grid.exclude[0].client: unknown axis; did you mean 'clients'?",
    ),
    # A part of the axes.
    "only an unknown label": (
        GRID.replace("table:", "  only:\n    method: FedTp\ntable:"),
        "specs/a.yaml:8: grid.only.method: unknown label 'FedTp'; did you mean 'FedTP'?",
    ),
    "only of an unknown axis": (
        GRID.replace("table:", "  only: {methods: [FedTP]}\ntable:"),
        "specs/a.yaml:7: grid.only.methods: unknown axis; did you mean 'method'?",
    ),
    "only nothing": (
        GRID.replace("table:", "  only: {method: []}\ntable:"),
        "specs/a.yaml:7: grid.only.method: an empty list picks nothing; leave the axis out to pick every label",
    ),
    "claim about what is left out": (
        GRID.replace("table:", "  only: {method: FedTP}\ntable:")
        + "claims:\n  - text: t\n    better: {clients: 20}\n    than: others\n    where: {method: FedAvg}\n",
        "specs/a.yaml:15: claims[0].where.method: 'FedAvg' is left out by grid.only; restate the claims without it",
    ),
    "value added behind only": (
        {
            "specs/a.yaml": "extends: b.yaml\ngrid:\n  axes:\n    method:\n      Deep: {name: fedtp, embedding: 9}\n",
            "specs/b.yaml": GRID.replace("table:", "  only: {method: [FedAvg]}\ntable:"),
        },
        "specs/a.yaml:5: grid.axes.method.Deep: is left out by grid.only in specs/b.yaml:7; "
        "write `only: {method+: [Deep]}` to have it",
    ),
    # Tables.
    "unknown table axis": (
        GRID.replace("rows: [method]", "rows: [metod]"),
        "specs/a.yaml:8: table.rows[0]: unknown axis 'metod'; did you mean 'method'?",
    ),
    "axis in two places": (
        GRID.replace("columns: [clients]", "columns: [clients, method]"),
        "specs/a.yaml:9: table.columns[1]: the axis 'method' is already in rows",
    ),
    "axis in no place": (
        GRID.replace("columns: [clients]", "columns: []"),
        "specs/a.yaml:7: table: the axis 'clients' is in none of rows, columns and average_over",
    ),
    "average of one run": (
        GRID.replace("clients: [20, 50]", "clients: {A: 20, B: 20, C: 50}").replace("columns", "average_over"),
        "specs/a.yaml:6: grid.axes.clients: is averaged over, but some of its values give the same run",
    ),
    "client of an unknown axis": (
        GRID + "  clients: {methods: {FedTP: 0}}\n",
        "specs/a.yaml:10: table.clients.methods: unknown axis; did you mean 'method'?",
    ),
    "client of an unknown label": (
        GRID + "  clients: {method: {FedTB: 0}}\n",
        "specs/a.yaml:10: table.clients.method.FedTB: unknown label 'FedTB'; did you mean 'FedTP'?",
    ),
    "client beyond the last": (
        GRID + "  clients: {method: {FedTP: 20}}\n",
        "specs/a.yaml:10: table.clients.method.FedTP: no client 20: a run here has 20 clients, counted from 0",
    ),
    "negative client": (
        GRID + "  clients: {method: {FedTP: -1}}\n",
        "specs/a.yaml:10: table.clients.method.FedTP: -1 must be at least 0",
    ),
    "clients of two axes": (
        GRID + "  clients: {method: {FedTP: 0}, clients: {20: 0}}\n",
        "specs/a.yaml:10: table.clients.clients: a second axis; cells are of one client already by 'method'",
    ),
    "client of an averaged axis": (
        GRID.replace("columns", "average_over") + "  clients: {clients: {20: 0}}\n",
        "specs/a.yaml:10: table.clients.clients: is in neither rows nor columns, so its labels have no cells of their "
        "own",
    ),
    "the same client twice": (
        GRID.replace("[20, 50]", "{A: 20, B: 20}") + "  clients: {clients: {A: 1, B: 1}}\n",
        "specs/a.yaml:6: grid.axes.clients: has no effect: its values give the same runs",
    ),
    # Claims.
    "claim with an unknown label": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: {method: [FedAvgg]}}\n",
        "specs/a.yaml:11: claims[0].than.method[0]: unknown label 'FedAvgg'; did you mean 'FedAvg'?",
    ),
    "claim with an unknown axis": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, where: {dataset: ten}}\n",
        "specs/a.yaml:11: claims[0].where.dataset: unknown axis; known: method, clients",
    ),
    "claim over different axes": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: {clients: 20}}\n",
        "specs/a.yaml:11: claims[0].than: must name the same axes as `better`: method",
    ),
    "claim about all": (
        GRID + "claims:\n  - {text: t, better: {method: [FedTP, FedAvg]}, than: others}\n",
        "specs/a.yaml:11: claims[0].than: the axis 'method' has no other labels",
    ),
    "claim restricted by what it compares": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, where: {method: FedTP}}\n",
        "specs/a.yaml:11: claims[0].where.method: this axis is compared; restrict other axes",
    ),
    "negative margin": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, margin: -1}\n",
        "specs/a.yaml:11: claims[0].margin: -1 must be at least 0",
    ),
    "claim of no form": (
        GRID + "claims:\n  - {text: t, than: others}\n",
        "specs/a.yaml:11: claims[0]: needs one of `better`, `steadier` and `within`",
    ),
    "claim of two forms": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, steadier: {method: FedTP}, than: others}\n",
        "specs/a.yaml:11: claims[0]: has 2 of `better`, `steadier` and `within`; state one",
    ),
    "range compared with others": (
        GRID + "claims:\n  - {text: t, within: 1, over: [method], than: others}\n",
        "specs/a.yaml:11: claims[0]: `within` compares cells among themselves, so 'than' does not belong there",
    ),
    "range over nothing": (
        GRID + "claims:\n  - {text: t, within: 1}\n",
        "specs/a.yaml:11: claims[0]: 'over' is missing: the axes on which the cells differ that are close together",
    ),
    "mean over an unknown axis": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, over: [client]}\n",
        "specs/a.yaml:11: claims[0].over[0]: unknown axis 'client'; did you mean 'clients'?",
    ),
    "mean over what is compared": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, over: [method]}\n",
        "specs/a.yaml:11: claims[0].over[0]: 'method' is compared; name other axes",
    ),
    "mean over an axis twice": (
        GRID + "claims:\n  - {text: t, better: {method: FedTP}, than: others, over: [clients, clients]}\n",
        "specs/a.yaml:11: claims[0].over[1]: 'clients' is named twice",
    ),
    "range of one": (
        GRID + "claims:\n  - {text: t, within: 1, over: [clients], where: {clients: 20}}\n",
        "specs/a.yaml:11: claims[0].over: leaves single cells, which have neither mean nor range",
    ),
    "spread of single runs": (
        GRID + "  metric: final\nclaims:\n  - {text: t, steadier: {method: FedTP}, than: others}\n",
        "specs/a.yaml:12: claims[0].steadier: a single run has no ± under the metric 'final'; name axes in `over`",
    ),
    # Derived columns.
    "derived of nothing": (
        GRID + "  derived: [{show: means}]\n",
        "specs/a.yaml:10: table.derived[0].show: 'means' must be one of 'rank'",
    ),
    "derived key": (
        GRID + "  derived: [{show: rank, ower: [clients]}]\n",
        "specs/a.yaml:10: table.derived[0].ower: unknown key; did you mean 'over'?",
    ),
    "derived over a misspelt axis": (
        GRID + "  derived: [{show: rank, over: [client]}]\n",
        "specs/a.yaml:10: table.derived[0].over[0]: 'client' is no axis of the columns; did you mean 'clients'?",
    ),
    "derived over rows": (
        GRID + "  derived: [{show: rank, over: [method]}]\n",
        "specs/a.yaml:10: table.derived[0].over[0]: 'method' is no axis of the columns; known: clients",
    ),
    "derived rank against a row": (
        GRID + "  derived: [{show: rank, than: {method: FedTP}}]\n",
        "specs/a.yaml:10: table.derived[0].than: unknown key; known: show, over",
    ),
    "derived twice": (
        GRID + "  derived: [{show: rank}, {show: rank, over: [clients]}]\n",
        "specs/a.yaml:10: table.derived[1]: the same columns as derived[0]",
    ),
    # Inheritance.
    "cycle": (
        {"specs/a.yaml": "title: a\nextends: b.yaml\n", "specs/b.yaml": "extends: a.yaml\n"},
        "specs/b.yaml:1: extends: a spec cannot inherit from itself: specs/a.yaml -> specs/b.yaml -> specs/a.yaml",
    ),
    "itself": (
        "extends: a.yaml",
        "specs/a.yaml:1: extends: a spec cannot inherit from itself: specs/a.yaml -> specs/a.yaml",
    ),
    "extends outside": (
        {"specs/a.yaml": "title: a\nextends: ../b.yaml\n", "b.yaml": "title: b\n"},
        "specs/a.yaml:2: extends: '../b.yaml' leads out of specs/",
    ),
    "extends an absolute path": (
        "extends: /etc/passwd",
        "specs/a.yaml:1: extends: '/etc/passwd' must be a relative path with forward slashes",
    ),
    "extends nothing": (
        "extends: base.yaml",
        "specs/a.yaml:1: extends: 'base.yaml' does not exist (specs/base.yaml)",
    ),
    "extends nothing, further up": (
        {"specs/a.yaml": "extends: b.yaml", "specs/b.yaml": "title: b\nextends: sub/c.yaml\n"},
        "specs/b.yaml:2: extends: 'sub/c.yaml' does not exist (specs/sub/c.yaml); "
        "chain: specs/a.yaml -> specs/b.yaml -> sub/c.yaml",
    ),
    "extends a mapping": (
        "title: a\nextends: {b: c}\n",
        "specs/a.yaml:2: extends: {'b': 'c'} must be the path of a spec, or a list of paths",
    ),
    "extends an empty list": (
        "extends: []",
        "specs/a.yaml:1: extends: [] must be the path of a spec, or a list of paths",
    ),
    "extends a number": (
        {"specs/a.yaml": "extends:\n  - b.yaml\n  - 5\n", "specs/b.yaml": "title: b\n"},
        "specs/a.yaml:3: extends[1]: 5 must be the path of a spec",
    ),
    "extends nothing, second": (
        {"specs/a.yaml": "extends:\n  - b.yaml\n  - c.yaml\n", "specs/b.yaml": "title: b\n"},
        "specs/a.yaml:3: extends[1]: 'c.yaml' does not exist (specs/c.yaml)",
    ),
    "extends one twice": (
        {"specs/a.yaml": "extends: [b.yaml, ./b.yaml]\n", "specs/b.yaml": "title: b\n"},
        "specs/a.yaml:1: extends[1]: './b.yaml' is named twice",
    ),
    "extends in the wrong order": (
        {
            "specs/a.yaml": "extends:\n- b.yaml\n- c.yaml\n",
            "specs/b.yaml": "extends: c.yaml\n",
            "specs/c.yaml": "title: c",
        },
        "specs/a.yaml:3: extends[1]: 'c.yaml' is inherited in front of specs/b.yaml; name it in front of it, "
        "or leave it out",
    ),
    "cycle by the second": (
        {
            "specs/a.yaml": "extends: [c.yaml, b.yaml]\n",
            "specs/b.yaml": "title: b\nextends:\n  - c.yaml\n  - a.yaml\n",
            "specs/c.yaml": "title: c",
        },
        "specs/b.yaml:4: extends[1]: a spec cannot inherit from itself: specs/a.yaml -> specs/b.yaml -> specs/a.yaml",
    ),
    "label in a list that replaces one": (
        {
            "specs/a.yaml": "extends: b.yaml\ngrid:\n  exclude: [{method: FedBN}]\n",
            "specs/b.yaml": GRID.replace("table:", "  exclude:\n    - method:\n        - FedAvg\ntable:"),
        },
        "specs/a.yaml:3: grid.exclude[0].method: unknown label 'FedBN'; did you mean 'FedTP'?",
    ),
    # Lists that are added to.
    "added to a number": (
        {"specs/a.yaml": "extends: b.yaml\ntable:\n  decimals+: [1]\n", "specs/b.yaml": "table: {decimals: 3}\n"},
        "specs/a.yaml:3: table.decimals+: adds to a list, and what is inherited is none: 3",
    ),
    "added to labels": (
        {"specs/a.yaml": "extends: b.yaml\ngrid: {axes: {method+: [fedper]}}\n", "specs/b.yaml": GRID},
        "specs/a.yaml:2: grid.axes.method+: adds to a list, and what is inherited is none: "
        "{'FedAvg': 'fedavg', 'FedTP': 'fedtp'}",
    ),
    "text added to a list": (
        "notes: []\ntable:\n  rows+: method\n",
        "specs/a.yaml:3: table.rows+: 'method' must be a list, whose items are added to those inherited",
    ),
    "added and replaced": (
        "title: a\nnotes: [a]\nnotes+: [b]\n",
        "specs/a.yaml:3: notes+: stands beside 'notes', which replaces the list; keep one of them",
    ),
    "added to a misspelt list": ("title: a\nnote+: [b]\n", "specs/a.yaml:2: note: unknown key; did you mean 'notes'?"),
    "added in an item of a list": (
        GRID.replace("table:", "  overrides:\n    - {when: {method: FedTP}, set: {analyses+: [maps]}}\ntable:"),
        "specs/a.yaml:8: grid.overrides[0].set.analyses+: unknown run field; did you mean 'analyses'?",
    ),
    "mistake in an added item": (
        {
            "specs/a.yaml": "extends: [b.yaml, c.yaml]\ngrid:\n  exclude+:\n    - {clients: 20}\n    - {clients: 30}\n",
            "specs/b.yaml": GRID.replace("table:", "  exclude: [{method: FedAvg, clients: 20}]\ntable:"),
            "specs/c.yaml": "abstract: true\ngrid: {exclude+: [{method: FedTP, clients: 50}]}\n",
        },
        "specs/a.yaml:5: grid.exclude[3].clients: unknown label '30'; known: 20, 50",
    ),
    "mistake in an item added in between": (
        {
            "specs/a.yaml": "extends: [b.yaml, c.yaml]\ngrid:\n  exclude+:\n    - {clients: 20}\n",
            "specs/b.yaml": GRID.replace("table:", "  exclude: [{method: FedAvg, clients: 20}]\ntable:"),
            "specs/c.yaml": "abstract: true\ngrid:\n  exclude+:\n  - method: FedTP\n    clients: [50, 60]\n",
        },
        "specs/c.yaml:5: grid.exclude[1].clients[1]: unknown label '60'; known: 20, 50",
    ),
    "name inherited as text": (
        {
            "specs/a.yaml": "extends: b.yaml\ngrid:\n  base: {method: {embedding: 3}}\n",
            "specs/b.yaml": "title: b\ngrid:\n  base:\n    method: fedpt\n",
        },
        "specs/b.yaml:4: grid.base.method.name: unknown method 'fedpt'; did you mean 'fedtp'?",
    ),
    "mistake in the base": (
        {
            "specs/a.yaml": "extends: b.yaml\ngrid: {base: {seed: 1}}\n",
            "specs/b.yaml": "abstract: true\ngrid:\n  base:\n    method: fedpt\n",
        },
        "specs/b.yaml:4: grid.base.method: unknown method 'fedpt'; did you mean 'fedtp'?",
    ),
    # Published values.
    "published missing": (
        GRID + "  published: t.csv\n",
        "specs/a.yaml:10: table.published: 't.csv' does not exist (specs/t.csv)",
    ),
    "published outside": (
        {"specs/a.yaml": GRID + "  published: ../t.csv\n", "t.csv": CSV},
        "specs/a.yaml:10: table.published: '../t.csv' leads out of specs/",
    ),
}

PUBLISHED: dict[str, tuple[str | bytes, str]] = {
    "empty": (
        "",
        "specs/t.csv:1: the file is empty; its first line names the columns method, clients, mean, std, quoted, note",
    ),
    "missing column": (
        "method,clients,mean,std,quoted\n",
        "specs/t.csv:1: no column 'note'; the columns are method, clients, mean, std, quoted, note",
    ),
    "unknown column": (
        "methd,clients,mean,std,quoted,note\n",
        "specs/t.csv:1: unknown column 'methd'; did you mean 'method'?",
    ),
    "column twice": (
        "method,method,clients,mean,std,quoted,note\n",
        "specs/t.csv:1: the column 'method' is stated twice",
    ),
    "not a number": (CSV + "FedTP,20,9O.1,,,\n", "specs/t.csv:2: mean: '9O.1' is not a number"),
    "nan": (CSV + "FedTP,20,nan,,,\n", "specs/t.csv:2: mean: 'nan' is not a number"),
    "no mean": (CSV + "FedTP,20,,,,\n", "specs/t.csv:2: mean: '' is not a number"),
    "negative spread": (CSV + "FedTP,20,90,-1,,\n", "specs/t.csv:2: std: '-1' must not be negative"),
    "quoted": (CSV + "FedTP,20,90,1,true,\n", "specs/t.csv:2: quoted: 'true' must be yes or empty"),
    "short line": (CSV + "FedTP,20,90\n", "specs/t.csv:2: 3 cells under 6 columns"),
    "duplicate": (
        CSV + "FedTP,20,90,,,\n\nFedAvg,20,80,,,\nFedTP,20,91,,,\n",
        "specs/t.csv:5: a second value for FedTP, 20; the first is in specs/t.csv:2",
    ),
    "unknown label": (
        CSV + "FedTP,20,90,,,\nFedAvgT,20,80,,,\n",
        "specs/t.csv:3: method: 'FedAvgT' is no label of this axis; did you mean 'FedAvg'?",
    ),
    "open quote": (CSV + '"FedTP,20,90,,,\n', "specs/t.csv:2: not valid CSV: unexpected end of data"),
    "not UTF-8": (
        CSV.encode() + b"Fed\xff,20,90,,,\n",
        "specs/t.csv:2: byte 0xff is not UTF-8; save the file as UTF-8",
    ),
    "large": (CSV + "\n" * (1 << 20), "specs/t.csv: larger than 1 MiB; a spec is a small text file"),
}


def message_of(specs: Path) -> str:
    """What compiling the specs of a folder says, ``a`` first."""
    with pytest.raises(UserError) as caught:
        resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG)
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_where_and_what(tmp_path: Path, name: str) -> None:
    content, expected = CASES[name]
    specs = write_specs(tmp_path, content if isinstance(content, dict) else {"specs/a.yaml": content})
    message = message_of(specs)
    assert message == expected
    assert "\n" not in message


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values_are_read_strictly(tmp_path: Path, name: str) -> None:
    content, expected = PUBLISHED[name]
    specs = write_specs(tmp_path, {"specs/a.yaml": GRID + "  published: t.csv\n", "specs/t.csv": content})
    assert message_of(specs) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "specs/a b.yaml",
            "specs/a b.yaml: the name 'a b' is not allowed; use a-z, 0-9, '_', '.', '-', and begin with a letter "
            "or digit",
        ),
        (
            "specs/$(ls)/a.yaml",
            "specs/$(ls)/a.yaml: the name '$(ls)' is not allowed; use a-z, 0-9, '_', '.', '-', and begin with a letter "
            "or digit",
        ),
        (
            "specs/Table.yaml",
            "specs/Table.yaml: the name 'Table' is not allowed; use a-z, 0-9, '_', '.', '-', and begin with a letter "
            "or digit",
        ),
        (
            "specs/a\nb.yaml",
            r"specs/a b.yaml: the name 'a\nb' is not allowed; use a-z, 0-9, '_', '.', '-', and begin with a letter "
            "or digit",
        ),
        ("specs/table.yml", "specs/table.yml: specs end in .yaml; rename it"),
    ],
)
def test_names_of_files(tmp_path: Path, path: str, expected: str) -> None:
    specs = write_specs(tmp_path, {path: "title: x\n"})
    with pytest.raises(UserError) as caught:
        find_specs(specs)
    assert str(caught.value) == expected


def test_colliding_names(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a/b.yaml": "title: x", "specs/a.b.yaml": "title: x"})
    with pytest.raises(UserError) as caught:
        find_specs(specs)
    assert str(caught.value) == (
        "specs/a/b.yaml: its stage would be called 'a-b', as that of specs/a.b.yaml; rename one of them"
    )


def test_links_that_lead_out(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": "extends: b.yaml", "b.yaml": "title: b", "c/c.yaml": "title: c"})
    (specs / "b.yaml").symlink_to(tmp_path / "b.yaml")
    assert message_of(specs) == "specs/a.yaml:1: extends: 'b.yaml' leads out of specs/"
    with pytest.raises(UserError) as caught:
        find_specs(specs)
    assert str(caught.value) == "specs/b.yaml: leads out of specs/; specs must stay inside it"
    (specs / "b.yaml").unlink()
    (specs / "c").symlink_to(tmp_path / "c")
    with pytest.raises(UserError) as caught:
        find_specs(specs)
    assert str(caught.value) == "specs/c: a linked folder; specs are not looked for in it"


def test_a_path_out_of_the_folder(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": "title: a", "b.yaml": "title: b"})
    with pytest.raises(UserError) as caught:
        load_spec(specs / ".." / "b.yaml", specs, CATALOG)
    assert str(caught.value) == "specs/../b.yaml: leads out of specs/; specs must stay inside it"


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_specs(tmp_path / "specs")
    assert str(caught.value) == "specs: no such folder; specs are YAML files in it"
    with pytest.raises(UserError) as caught:
        load_spec(tmp_path / "specs" / "a.yaml", tmp_path / "specs", CATALOG)
    assert str(caught.value) == "specs/a.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize("profile", ["smok", "Paper", ""])
def test_unknown_profile(tmp_path: Path, profile: str) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": GRID})
    with pytest.raises(UserError) as caught:
        resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG, profile)
    tails = {"smok": "did you mean 'smoke'?", "Paper": "did you mean 'paper'?", "": "known: paper, smoke"}
    assert str(caught.value) == f"unknown profile {profile!r}; {tails[profile]}"
