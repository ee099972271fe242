"""The commands of ``pfl``, in groups, each with an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from pipeline.cli import keep, look
from pipeline.cli.run import add, clean, compile_, drop, plan, run, status, validate
from pipeline.stages.cli import stage

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
ledger = typer.Typer(help="List, show and drop kept results: the ledger in results/.", no_args_is_help=True)
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Begin": {
        "pfl init mine --from fedtp/table2": look.init,
        "pfl new method mine": look.new,
        "pfl check mine --set mu=0.5 --with tiny_vit": look.check,
        "pfl fetch cifar10": look.fetch,
        "pfl schema --write": look.schema,
    },
    "Run": {
        "pfl validate fedtp/table2": validate,
        "pfl plan fedtp": plan,
        "pfl run fedtp/table2 -j 4": run,
        "pfl status": status,
        "pfl compile --check": compile_,
        "pfl add fedtp/table2": add,
        "pfl drop --all": drop,
        "pfl clean --dry-run": clean,
    },
    "Look": {
        "pfl list methods": look.list_,
        "pfl describe partition dirichlet --dataset digits --set alpha=0.1": look.describe,
        "pfl results first --per-client": look.results,
        "pfl compare fedtp/table3_jpeg fedofa/table1_jpeg --where partition=Pathological": look.compare,
        "pfl report fedtp": look.report,
    },
    "Keep": {
        "pfl keep fedofa/table_s1": keep.keep,
        "pfl verify fedofa/table_s1 --cells 3": keep.verify,
        "pfl export 'quickstart: FedTP, pathological' --client 7 --seed 0": keep.export,
        "pfl export-split quickstart --out exports": keep.export_split,
    },
}
LEDGER: dict[str, Callable[..., None]] = {
    "pfl ledger drop fedofa/table_s1": keep.drop,
    "pfl ledger list": keep.list_,
    "pfl ledger show cfl-convnet-mnist-17dd9350": keep.show,
    "pfl ledger report": keep.report,
}
for panel, commands in COMMANDS.items():
    for example, command in commands.items():
        app.command(example.split()[1], rich_help_panel=panel, epilog=f"Example: {example}")(command)
for example, command in LEDGER.items():
    ledger.command(example.split()[2], epilog=f"Example: {example}")(command)
app.add_typer(ledger, name="ledger", rich_help_panel="Keep", epilog="Example: pfl ledger list")
app.command("setup", hidden=True)(look.setup)
app.command("stage", hidden=True)(stage)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"pfl {version('pfl-pipeline')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def pfl(version: Version = False) -> None:
    """Compile experiment specs into a DVC pipeline, run it, and read the reports."""
