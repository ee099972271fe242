"""Wrong labels of training samples."""

import numpy as np

from pflcore.conditions import CONDITIONS, Condition, Draws
from pflcore.conditions._base import relabel
from pflcore.data.federation import FederatedData
from pflcore.data.samples import Rows
from pflcore.options import option
from pflcore.seeds import generator


@CONDITIONS.register
class LabelNoise(Condition):
    """Each training label of some clients is wrong by chance, in all rounds in the same way.

    A wrong label is any of the other classes (symmetric), or the next class, the first after the last (pair). Labels
    for validation and test do not change. Whatever a client computes from its labels, such as class counts or a memory,
    comes from the wrong ones.
    """

    citation = "Han et al., Co-teaching, NeurIPS 2018, appendix A"

    flipped: float = option(0.3, gt=0, le=1, help="Probability that a label is wrong.")
    pattern: str = option("symmetric", choices=("symmetric", "pair"), help="Which class stands there instead.")
    noisy: float = option(1.0, gt=0, le=1, help="Share of the clients whose labels are wrong by chance.")

    def data(self, draws: Draws, data: FederatedData) -> FederatedData:
        def wrong(client: int, labels: Rows) -> Rows:
            rng = generator(draws.seed, "label noise", client)
            flips = rng.random(len(labels)) < self.flipped
            steps = rng.integers(1, data.classes, len(labels)) if self.pattern == "symmetric" else 1
            return np.where(flips, (labels + steps) % data.classes, labels)

        return relabel(data, draws.share(self.noisy, "noisy clients"), wrong)
