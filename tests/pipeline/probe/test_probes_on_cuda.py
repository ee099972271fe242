"""All that the engine does, on a pretended GPU: every probe gives there the numbers that are recorded of a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.pretend_device import pretend_cuda
from torch import Tensor

from pflcore.engine.dropout import DropoutBits
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.probe.cases import PROBES, STACKED, Probe
from pipeline.probe.numbers import TOLERANCE, differences
from pipeline.probe.perform import perform, same_everywhere
from pipeline.probe.probing import Record
from pipeline.stages import train

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")

QUICK = "drops within rounds"
# Mixed precision is switched on for CUDA alone, which the pretended device is not to PyTorch itself.
CASES = [
    pytest.param(probe, marks=[] if probe.name == QUICK else [pytest.mark.matrix], id=probe.name)
    for probe in PROBES
    if probe.trains and probe.training.get("precision") != "bf16"
]


@pytest.fixture
def masks_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout's numbers as the host draws them, copied to the device."""
    draw = DropoutBits.draw

    def drawn(bits: DropoutBits, *ids: int) -> Tensor:
        device, bits.device = bits.device, torch.device("cpu")
        try:
            return draw(bits, *ids).to(device)
        finally:
            bits.device = device

    monkeypatch.setattr(DropoutBits, "draw", drawn)


@pytest.mark.usefixtures("masks_of_the_host")
@pytest.mark.parametrize("probe", CASES)
def test_a_probe_gives_its_numbers_on_cuda(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Record.read(Code(source_folder())).numbers[probe.name]
    run = train.run
    monkeypatch.setattr(train, "run", lambda *args, **named: run(*args, **{**named, "device": "cuda"}))
    with same_everywhere(), pretend_cuda() as events:
        found = perform(probe, STACKED, tmp_path)
    assert events["kernels"] > 0
    assert differences(recorded, found, max(TOLERANCE, probe.tolerance)) == {}
