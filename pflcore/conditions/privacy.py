"""Differential privacy of clients by clipped and noisy updates."""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import chain

import torch
from torch import Tensor

from pflcore.client_view import COMMON
from pflcore.conditions import CONDITIONS, Condition, Draws
from pflcore.conditions._base import change_entries, floating, normal_noise
from pflcore.errors import UserError
from pflcore.exchange import Update
from pflcore.groups import Tensors
from pflcore.method import Method, name_of
from pflcore.options import option


@CONDITIONS.register
class Privacy(Condition):
    """Clients' updates are clipped and noisy, so that they reveal little about a client: DP-FedAvg.

    The difference between all floating-point entries that a client sends and those that it received is clipped, as one
    vector, to an L2 norm C. Noise is normal with multiplier z: its standard deviation is z · C on the sum of a round's
    differences (central; each of m gets z · C / √m, so a single one is not private), or on each (client). ε at δ is
    computed by RDP, for a client with all its samples. Counters are sent as they are.
    """

    citation = "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018; Mironov, CSF 2017"

    clip: float = option(1.0, gt=0, help="Norm C that a client's difference is cut down to.")
    noise: float = option(1.0, gt=0, help="Noise multiplier z.")
    where: str = option("central", choices=("central", "client"), help="Whether noise is of the sum or of each client.")
    delta: float = option(1e-5, gt=0, lt=1, help="Probability δ at which ε is stated; below one over the clients.")

    def check(self, method: Method, sent: Tensors) -> None:
        if reason := self._refusal(method, sent):
            raise UserError(f"condition privacy does not go with method {name_of(method)}: {reason}")
        if find_spec("dp_accounting") is None:
            raise UserError("condition privacy: its ε needs dp-accounting; pip install 'pfl-pipeline[privacy]'")

    def _refusal(self, method: Method, sent: Tensors) -> str:
        averaging = method.averaging or method.own_averaging
        others = [name for name in sent if name.startswith(COMMON) and not sent[name].is_floating_point()]
        if not floating(sent):
            return "its clients send nothing"
        if others:
            return f"its clients send {others[0].removeprefix(COMMON)!r}, to which no noise can be added"
        if method.warmup():
            return "its clients send something before the first round, which is not accounted for"
        if self.where == "client":
            return ""
        if averaging != "uniform":
            return "noise on the sum needs method.averaging: uniform"
        reason = method.beyond_mean or ("its server makes models for single clients" if method.generated else "")
        return f"noise on the sum protects a mean, and {reason}" if reason else ""

    def sent(self, draws: Draws, round_: int, updates: Sequence[Update]) -> list[Update]:
        spread = self.noise * self.clip
        if self.where == "central":
            spread /= len(updates) ** 0.5
        return [self._privatise(draws, round_, update, spread) for update in updates]

    def _privatise(self, draws: Draws, round_: int, update: Update, spread: float) -> Update:
        stream = draws.stream("privacy", round_, update.client)
        names = floating(update.returned)
        differences = [(update.returned[name] - update.before(name)).flatten() for name in names]
        norm = torch.cat(differences).norm()
        factor: Tensor = (self.clip / norm).clamp(max=1.0)

        def noisy(received: Tensor, returned: Tensor) -> Tensor:
            return received + factor * (returned - received) + spread * normal_noise(received, stream)

        return change_entries(update, noisy)

    def epsilon(self, clients: int, cohorts: Iterable[Sequence[int]]) -> float:
        import dp_accounting  # optional, and slow to import
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(range(2, 513))  # for fractional orders it warns that sums do not converge
        rounds = list(cohorts)
        if self.where == "central":
            rate = max(map(len, rounds)) / clients
            event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(self.noise))
            accountant.compose(event, len(rounds))
        else:
            # With any samples, a client's difference has a norm of C at most, so two may be 2 C apart.
            count = max(Counter(chain.from_iterable(rounds)).values())
            accountant.compose(dp_accounting.GaussianDpEvent(self.noise / 2), count)
        return float(accountant.get_epsilon(self.delta))
