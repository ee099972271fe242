"""Object detection as a task: a model's outputs are offsets from default boxes and logits of what is in them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pflcore.detection.average_precision import RIGHT, mean_average_precision
from pflcore.detection.ssd import candidates, distinct, losses, overlaps
from pflcore.task import Measured, Score


@dataclass(frozen=True, eq=False)
class Detection:
    """Objects and the boxes around them, by SSD's default boxes.

    Outputs are (…, images, boxes, 4 + 1 + classes), targets (…, images, objects, 6).
    """

    defaults: Tensor  # (boxes, 4), centre and size as shares of the image

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return SSD's, divided by the number of default boxes that are objects'; there are no weights."""
        summed, boxes = losses(outputs, targets, self.defaults)
        return summed.sum() / boxes.sum().clamp_min(1)

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return whether the most certain candidate is right, the loss as float64, the candidates, and the targets."""
        leading = targets.shape[:-2]
        outputs, flat = outputs.flatten(0, -3), targets.flatten(0, -3)
        summed, boxes = losses(outputs, flat, self.defaults)
        found = candidates(outputs, self.defaults)
        first = found[:, :1]
        right = (overlaps(first[..., 1:5], flat[..., 1:5])[:, 0] >= RIGHT) & (first[..., 0] == flat[..., 0])
        made = right.any(-1), summed.double() / boxes.clamp_min(1), found, flat
        return tuple(part.view(*leading, *part.shape[1:]) for part in made)

    def score(self, measured: Measured) -> Score:
        """Count an image's most certain detection as its prediction; behind is the mean average precision."""
        hits, losses_, found, targets = measured
        precision = mean_average_precision([distinct(one) for one in found], targets)
        return int(hits.sum()), len(hits), float(losses_.sum()), int(hits.sum()), precision

    def at_once(self, samples: int) -> int:
        """Return a quarter as many: images are larger, and feature maps are as fine."""
        return max(1, samples // 4)
