"""Mutual distillation between a personal teacher and a shared student that travels compressed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import ALL, Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import COMMON, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier
from pflcore.operators.compression import low_rank
from pflcore.options import option

_PROJECTION = "own/projection"
# Numbers that travelled. From the server, [1] is how many it has broadcast since the beginning, the first whole student
# included; a client keeps what it had of them, and returns how many it [0] sent and [1] received in the round.
_NUMBERS, _HAD = "common/numbers", "own/numbers"
_MIN_LOSS = 1e-6  # of the sum of losses that divides, which can be 0 in float32


@METHODS.register
class FedKD(Method):
    """A personal teacher and a shared student learn from each other; only the student travels.

    Both begin as the same model. With cross-entropies L_t and L_s, D = L_t + L_s, classifier inputs h and a personal
    linear map P, the identity at first, one step descends on both L_t + KL(student ‖ teacher) / D + MSE(h_t, P h_s) / D
    for the teacher and L_s + KL(teacher ‖ student) / D + MSE(h_t, P h_s) / D for the student and P, in which D and all
    of the other model are constants. ``training.clip`` applies to the teacher, and to student and P together.

    Clients cut their updates of the student, the server cuts the plain mean of these: every tensor of two or more axes,
    as a matrix of its first axis and the rest, to the smallest rank that keeps a share T of its squared singular
    values, T rising linearly from ``tmin`` to ``tmax``. Traffic is 4 bytes for each number of what is left.
    """

    citation = "Wu et al., FedKD, Nature Communications 13, 2022"
    keeps = ("a projection of features",)
    exchanges = ("a student model",)
    personal = (ALL,)
    facts = ("progress",)
    own_averaging = "uniform"

    tmin: float = option(0.95, gt=0, le=1, help="Share of squared singular values that is kept, at the beginning.")
    tmax: float = option(0.98, gt=0, le=1, help="Share that is kept in the last round; with both at 1 all are kept.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        return {"projection": torch.eye(federation.features), "numbers": torch.tensor(0)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {**initial, "numbers": torch.tensor([0, sum(tensor.numel() for tensor in initial.values())])}

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "student_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        teacher, rest = split(model, local.parameters)
        student, rest = split(rest, {*add_prefix(COMMON, teacher), _PROJECTION})

        def loss(params: Tensors) -> Tensor:
            everything = {**rest, **params}
            logits, features = local.features(model_part(everything), batch.inputs)
            logits_s, features_s = local.features(strip_prefix(COMMON, everything), batch.inputs)
            mapped = F.linear(features_s, params[_PROJECTION])
            of_teacher = local.cross_entropy(logits, batch.labels)
            of_student = local.cross_entropy(logits_s, batch.labels)
            to_teacher = divergence(logits_s.detach(), logits) + F.mse_loss(features, mapped.detach())
            to_student = divergence(logits.detach(), logits_s) + F.mse_loss(mapped, features.detach())
            scale = (of_teacher + of_student).detach().clamp_min(_MIN_LOSS)
            return of_teacher + of_student + (to_teacher + to_student) / scale

        # What one of the losses trains is a constant in the other, so the gradients of their sum are those of each.
        grads, value = local.gradient(loss, {**teacher, **student})
        of_teacher, of_student = ({name: grads[name] for name in part} for part in (teacher, student))
        teacher, opt_state = local.sgd(teacher, of_teacher, state["opt_state"])
        student, student_opt_state = local.sgd(student, of_student, state["student_opt_state"])
        moved = {**model, **teacher, **student}
        return {**state, "model": moved, "opt_state": opt_state, "student_opt_state": student_opt_state}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, received = state["model"], local.received
        energy = self._energy(model["data/progress"].double())
        returned, up, whole = {}, torch.zeros_like(model[_HAD]), 0
        for name in model_part(model):
            before, after = received[COMMON + name], model[COMMON + name]
            if _is_matrix(before):
                change, numbers = compressed(after - before, energy)
                after = before + change
            else:
                numbers = torch.full_like(up, before.numel())
            returned[COMMON + name], up, whole = after, up + numbers, whole + before.numel()
        broadcast = model[_NUMBERS][1]
        down = (broadcast - model[_HAD]).clamp_max(whole)
        counted = {_NUMBERS: torch.stack([up, down]), _HAD: broadcast}
        return {**state, "model": {**model, **returned, **counted}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        energy = self._energy(torch.tensor(server.round / server.federation.rounds).double())
        shares = self.shares(updates)
        student, sent = {}, server.shared[_NUMBERS].clone()
        for name, before in server.shared.items():
            numbers: int | Tensor = before.numel()
            if name == _NUMBERS:
                continue
            if before.is_floating_point():
                changes = [share * (one.returned[name] - before) for share, one in zip(shares, updates, strict=True)]
                change = torch.stack(changes).sum(0)
                if _is_matrix(before):
                    change, numbers = compressed(change, energy)
                student[name] = before + change
            else:  # a counter
                student[name] = updates[0].returned[name].clone()
            sent[1] += numbers
        return Server({**student, _NUMBERS: sent})

    def traffic(self, update: Update) -> tuple[int, int]:
        up, down = update.returned[_NUMBERS].tolist()
        return 4 * up, 4 * down

    def _energy(self, progress: Tensor) -> Tensor:
        """Return the share T in a round, `progress` its number among all rounds."""
        return self.tmin + (self.tmax - self.tmin) * progress


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(target ‖ logits) of the softmax over the last axis, the mean over all others."""
    p, q = target.log_softmax(-1).flatten(0, -2), logits.log_softmax(-1).flatten(0, -2)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def compressed(change: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Return a change cut to the rank that keeps `energy`, and how many numbers it takes; as it is if not finite."""
    matrix = change.flatten(1)
    finite = matrix.isfinite().all()
    regular = torch.where(finite, matrix, 0.0)
    short, numbers = low_rank(regular, energy)
    return torch.where(finite, short, matrix).view_as(change), numbers


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.is_floating_point()
