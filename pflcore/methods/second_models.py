"""Methods with a second model on each client: Ditto, pFedMe, APFL, FedKD."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import ALL, Roles, Tensors, add_prefix, pick, split, strip_prefix
from pflcore.method import COMMON, OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._bases import check_classifier
from pflcore.options import option


class _SecondModel(Method):  # base of methods whose clients are measured with a second model
    keeps = ("a second model",)

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return pick(initial, roles.all)

    def eval_state(self, state: Tensors) -> Tensors:
        """Return the client's second model; it shares entries that are never trained with the first."""
        return {**model_part(state), **strip_prefix(OWN, state)}


@METHODS.register
class Ditto(_SecondModel):
    """FedAvg, and on each client a second model v that minimises its loss + λ/2 · ‖v − w_received‖².

    For every batch w takes its step and v takes one on the same batch, as in the authors' code. v stays on the client,
    begins as the initial model and has its own batch norm statistics. A client is measured with v.
    """

    name = "ditto"
    citation = "Li et al., Ditto, ICML 2021, algorithm 1"
    ignores_unlabelled = True
    lam: float = option(1.0, ge=0, help="Weight λ of the distance to the global model; 0 is training alone.")

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        state, loss = super().step(local, state, batch)
        trained, rest = split(self.eval_state(state["model"]), local.parameters)
        grads, _ = local.gradient(lambda params: self.loss(local, {**params, **rest}, batch), trained)
        for name in grads.keys() & local.roles.shared:
            grads[name] = grads[name] + self.lam * (trained[name] - local.received[name])
        trained, opt_state = local.sgd(trained, grads, state.get("own_opt_state", {}))
        return {**state, "model": {**state["model"], **add_prefix(OWN, trained)}, "own_opt_state": opt_state}, loss


@METHODS.register
class PFedMe(_SecondModel):
    """Each client seeks θ = argmin loss(θ) + λ/2 · ‖θ − w‖², and moves w towards it.

    θ begins a round as the received model. For every batch it takes ``inner_steps`` gradient steps on that objective,
    then w ← w − lr · λ · (w − θ). A client is measured with its last θ. Groups in `also_personal` are not pulled and
    are the same in both models. Both steps use the run's learning rate, without momentum; decay and clipping act on θ
    alone, as in the authors' code.
    """

    name = "pfedme"
    citation = "T. Dinh, Tran and Nguyen, pFedMe, NeurIPS 2020, algorithm 1"
    results_version = 2  # w does not decay
    plain_sgd = True
    ignores_unlabelled = True
    lam: float = option(15.0, gt=0, help="Weight λ of the distance between personal and global model.")
    inner_steps: int = option(5, ge=1, help="Gradient steps towards the proximal point for every batch.")
    beta: float = option(1.0, gt=0, help="The server's step: w ← (1 − β) · w + β · average; FedTP uses 1.")

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        theta = {name: start[name].clone() for name in strip_prefix(OWN, start)}
        return super().begin(local, {**start, **add_prefix(OWN, theta)})

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        theta, rest = split(self.eval_state(model), local.parameters)
        losses = []
        for _ in range(self.inner_steps):
            grads, loss = local.gradient(lambda params: self.loss(local, {**params, **rest}, batch), theta)
            losses.append(loss)
            for name in grads.keys() & local.roles.shared:
                grads[name] = grads[name] + self.lam * (theta[name] - model[name])
            theta, _ = local.sgd(theta, grads, {})
        # Personal parameters have no global value to stay near: they are the same in both models.
        near, rate = local.roles.shared, local.lr * self.lam
        moved = {name: model[name].lerp(t, rate) if name in near else t.clone() for name, t in theta.items()}
        # The statistics of batch norm are those of θ, the model that saw the batches.
        return {**state, "model": {**model, **add_prefix(OWN, theta), **moved, **rest}}, losses[0]

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        mean = self.average(updates, roles.shared)
        if self.beta != 1.0:
            for name in mean.keys() & server.federation.parameters:  # not running variances: β may be above 1
                mean[name] = server.shared[name].lerp(mean[name], self.beta)
        return Server(mean, server.extra)


@METHODS.register
class Apfl(Method):
    """Clients predict with α · v + (1 − α) · w, a mixture of a personal model v and the global model w.

    As written: on each batch w takes its step of FedAvg, v takes one on the loss of the mixture, and α one on ⟨v − w,
    gradient of the mixture⟩ + 0.02 · α, clipped to 0..1. As released with FedPerfix (and PFLlib): v is trained on its
    own loss, α's step uses α · g_v + (1 − α) · g_w and v − w after their steps, and at the end of a round v becomes the
    mixture, with which the client is measured. Buffers are those of v.
    """

    name = "apfl"
    citation = "Deng, Kamani and Mahdavi, APFL, arXiv 2003.13461, algorithm 1"
    keeps = ("a second model", "the weight of its mixture")
    plain_sgd = True
    ignores_unlabelled = True
    alpha: float = option(0.25, ge=0, le=1, help="Initial weight α of the personal model; 1 is training alone.")
    adaptive: bool = option(True, help="Whether α is learned, with a step after every batch.")
    variant: str = option("as_written", choices=("as_written", "as_released"), help="How v and α train; see above.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {**pick(initial, roles.all), "alpha": torch.tensor(self.alpha)}

    def eval_state(self, state: Tensors) -> Tensors:
        w = model_part(state)
        v, alpha = _personal_model(state)
        return {**w, **(v if self.variant == "as_released" else mix(alpha, v, w))}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        before = {name: tensor.clone() for name, tensor in state["model"].items() if name in local.parameters}
        personal, alpha = _personal_model(state["model"])
        v, rest = split({**model_part(state["model"]), **personal}, local.parameters)

        def loss_of(params: Tensors) -> Tensor:
            return self.loss(local, {**params, **rest}, batch)

        if self.variant == "as_released":
            grads, _ = local.gradient(loss_of, v)
            w_grads, _ = local.gradient(loss_of, before)
            mixed_grads = {name: alpha * grads[name] + (1 - alpha) * w_grads[name] for name in v}
        else:
            mixed_grads, _ = local.gradient(loss_of, mix(alpha, v, before))
            grads = {name: alpha * grad for name, grad in mixed_grads.items()}  # gradients of v, by the chain rule
        difference = {name: tensor - before[name] for name, tensor in v.items()}
        state, loss = super().step(local, state, batch)
        v, opt_state = local.sgd(v, grads, state.get("own_opt_state", {}))
        if self.variant == "as_released":
            difference = {name: tensor - state["model"][name] for name, tensor in v.items()}
        if self.adaptive:
            # 0.02 · α is in every released code.
            slope = sum((difference[name] * mixed_grads[name]).sum() for name in v) + 0.02 * alpha
            alpha = (alpha - local.lr * slope).clamp(0, 1)
        model = {**state["model"], **add_prefix(OWN, {**v, "alpha": alpha})}
        return {**state, "model": model, "own_opt_state": opt_state}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        if self.variant == "as_written":
            return state
        v, alpha = _personal_model(state["model"])
        return {**state, "model": {**state["model"], **add_prefix(OWN, mix(alpha, v, model_part(state["model"])))}}


def _personal_model(state: Tensors) -> tuple[Tensors, Tensor]:
    """Return the personal model v and the weight α."""
    entries = strip_prefix(OWN, state)
    return entries, entries.pop("alpha")


def mix(alpha: Tensor, v: Tensors, w: Tensors) -> Tensors:
    """Return α · v + (1 − α) · w for the entries of `v`; integer entries are those of `v`."""
    mixed = {name: alpha * tensor + (1 - alpha) * w[name] for name, tensor in v.items() if tensor.is_floating_point()}
    return {**v, **mixed}


_PROJECTION = "own/projection"
# Counts of exchanged numbers. From the server, [1] counts all that it has broadcast so far, the first whole student
# included. A client keeps the last such count that it saw and returns how many numbers it [0] sent and [1] received.
_NUMBERS, _HAD = "common/numbers", "own/numbers"
_MIN_LOSS = 1e-6  # least divisor: the sum of losses can be 0 in float32


@METHODS.register
class FedKD(Method):
    """A personal teacher and a shared student learn from each other; only the student is exchanged.

    L_t and L_s are the cross-entropies, D = L_t + L_s, h classifier inputs, and P is a personal map, the identity at
    first. The teacher's loss is L_t + KL(student ‖ teacher) / D + MSE(h_t, P h_s) / D, that of student and P is L_s +
    KL(teacher ‖ student) / D + MSE(h_t, P h_s) / D; all else is constant in each. ``training.clip`` applies to the two
    separately. Clients compress their updates of the student, the server compresses their plain mean: every tensor of
    two or more axes, as a matrix of its first axis and the rest, is cut to the smallest rank that keeps a share T of
    its squared singular values. T rises linearly from ``tmin`` to ``tmax``. Traffic is 4 bytes per number left.
    """

    name = "fedkd"
    beyond_mean = "its server sums and compresses changes"
    citation = "Wu et al., FedKD, Nature Communications 13, 2022"
    keeps = ("a projection of features",)
    exchanges = ("a student model",)
    personal = (ALL,)
    facts = ("progress",)
    own_averaging = "uniform"
    tmin: float = option(0.95, gt=0, le=1, help="Share of squared singular values that is kept, at the beginning.")
    tmax: float = option(0.98, gt=0, le=1, help="Share that is kept in the last round; with both at 1 all are kept.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        return {"projection": torch.eye(federation.features), "numbers": torch.tensor(0)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        student = pick(initial, roles.all)
        return {**student, "numbers": torch.tensor([0, sum(tensor.numel() for tensor in student.values())])}

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        teacher, rest = split(model, local.parameters)
        student, rest = split(rest, {*add_prefix(COMMON, teacher), _PROJECTION})

        def loss(params: Tensors) -> Tensor:
            entries = {**rest, **params}
            logits, features = local.features(model_part(entries), batch.inputs)
            logits_s, features_s = local.features({**entries, **strip_prefix(COMMON, entries)}, batch.inputs)
            mapped = F.linear(features_s, params[_PROJECTION])
            teacher_loss = local.cross_entropy(logits, batch.labels)
            student_loss = local.cross_entropy(logits_s, batch.labels)
            to_teacher = kl_divergence(logits_s.detach(), logits) + F.mse_loss(features, mapped.detach())
            to_student = kl_divergence(logits.detach(), logits_s) + F.mse_loss(mapped, features.detach())
            scale = (teacher_loss + student_loss).detach().clamp_min(_MIN_LOSS)
            return teacher_loss + student_loss + (to_teacher + to_student) / scale

        # Each loss treats what the other one trains as constant, so their sum has the gradients of each.
        grads, value = local.gradient(loss, {**teacher, **student})
        teacher_grads, student_grads = split(grads, teacher)
        teacher, opt_state = local.sgd(teacher, teacher_grads, state["opt_state"])
        student, student_opt_state = local.sgd(student, student_grads, state.get("student_opt_state", {}))
        moved = {**model, **teacher, **student}
        return {**state, "model": moved, "opt_state": opt_state, "student_opt_state": student_opt_state}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, received = state["model"], local.received
        energy = self.tmin + (self.tmax - self.tmin) * model["data/progress"].double()
        returned = {}
        up = torch.zeros_like(model[_HAD])
        size = 0
        for name in pick(model_part(model), strip_prefix(COMMON, model)):
            before, after = received[COMMON + name], model[COMMON + name]
            if before.ndim > 1 and before.is_floating_point():
                change, numbers = compress(after - before, energy)
                after = before + change
            else:
                numbers = torch.full_like(up, before.numel())
            returned[COMMON + name] = after
            up = up + numbers
            size += before.numel()
        broadcast = model[_NUMBERS][1]
        down = (broadcast - model[_HAD]).clamp_max(size)
        return {**state, "model": {**model, **returned, _NUMBERS: torch.stack([up, down]), _HAD: broadcast}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        energy = self.tmin + (self.tmax - self.tmin) * torch.tensor(server.round / server.federation.rounds).double()
        shares = self.shares(updates)
        student = {}
        sent = server.shared[_NUMBERS].clone()
        for name, before in server.shared.items():
            numbers: int | Tensor = before.numel()
            if name == _NUMBERS:
                continue
            student[name] = updates[0].returned[name].clone()  # for a counter
            if before.is_floating_point():
                pairs = zip(shares, updates, strict=True)
                changes = [share * (update.returned[name] - before) for share, update in pairs]
                change = torch.stack(changes).sum(0)
                if before.ndim > 1:
                    change, numbers = compress(change, energy)
                student[name] = before + change
            sent[1] += numbers
        return Server({**student, _NUMBERS: sent})

    def traffic(self, update: Update) -> tuple[int, int]:
        up, down = update.returned[_NUMBERS].tolist()
        return 4 * up, 4 * down


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(target ‖ logits) of the softmax over the last axis, averaged over all other axes."""
    p, q = target.log_softmax(-1).flatten(0, -2), logits.log_softmax(-1).flatten(0, -2)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def compress(change: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Return a change at the smallest rank that keeps a share `energy`, and how many numbers it takes to send.

    Dropped singular values become zeros and are not cut off, so that shapes do not depend on the data. A change that is
    not finite stays as it is. The count is at most the size of the change.
    """
    matrix = change.flatten(1)
    finite = matrix.isfinite().all()
    u, singular, vh = torch.linalg.svd(torch.where(finite, matrix, 0.0), full_matrices=False)
    squares = singular.double().square()
    # Sums of all earlier squares, as a product: cumulative sums are not deterministic on CUDA.
    earlier = torch.ones(2 * squares.shape[-1:], dtype=squares.dtype, device=squares.device).triu(1)
    keep = (squares.unsqueeze(-2) @ earlier).squeeze(-2) < energy * squares.sum(-1, keepdim=True)
    truncated = (u * (singular * keep).unsqueeze(-2)) @ vh
    numbers = (keep.sum(-1) * (sum(matrix.shape) + 1)).clamp(max=matrix.shape[0] * matrix.shape[1])
    return torch.where(finite, truncated, matrix).view_as(change), numbers
