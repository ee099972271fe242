"""Object detection as a task: outputs are offsets from default boxes and logits of what is in them; how good it is
says mean average precision, by COCO's evaluation at an overlap of one half."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.detection.ssd import Found, candidates, distinct, losses, overlaps
from pflcore.task import Measured, Score, Task

RIGHT = 0.5  # overlap from which a detection is right


class Detection(Task):
    """Objects and the boxes around them, by SSD's default boxes.

    Outputs are (…, images, boxes, 4 + 1 + classes), targets (…, images, objects, 6).
    """

    defaults: Tensor  # (boxes, 4), centre and size as shares of the image

    def __init__(self, defaults: Tensor) -> None:
        super().__init__(further=("precision",))
        object.__setattr__(self, "defaults", defaults)

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

    def batch_limit(self, samples: int) -> int:
        """Return a quarter as many: images are larger, and feature maps are as fine."""
        return max(1, samples // 4)


def mean_average_precision(found: Sequence[Found], targets: NDArray[np.float32]) -> float:
    """Return the mean over classes of the area under precision over recall, 0 to 1; NaN where there is nothing to find.

    Classes count that have an object. Difficult objects need not be found, and who finds one is neither right nor
    wrong, as in PASCAL VOC's evaluation. Precision is interpolated at 101 recalls. Targets are (images, objects, 6):
    class, -1 for none, corners, 1 if difficult.
    """
    counted = (targets[..., 0] >= 0) & (targets[..., 5] == 0)
    classes = np.unique(targets[..., 0][counted]).astype(int)
    if not len(classes):
        return float("nan")
    # It takes half a second to import, which runs without boxes need not wait for.
    from faster_coco_eval import COCO, COCOeval_faster

    # Numbers from 1 throughout, since its C++ takes 0 for nothing.
    images, objects = np.nonzero(counted)
    truth = [
        {"id": number, "image_id": int(image) + 1, "iscrowd": 0, "ignore": 0, **_box(targets[image, one])}
        for number, (image, one) in enumerate(zip(images, objects, strict=True), 1)
    ]
    claims = [
        {"image_id": image, "score": float(one[5]), **_box(one)}
        for image, (own, there) in enumerate(zip(found, targets, strict=True), 1)
        for one in own[~_at_difficult(own, there) & np.isin(own[:, 0], classes)]
    ]
    known = COCO(
        {
            "images": [{"id": image} for image in range(1, len(found) + 1)],
            "categories": [{"id": int(label) + 1} for label in classes],
            "annotations": truth,
        }
    )
    evaluation = COCOeval_faster(known, known.loadRes(claims), "bbox")
    evaluation.params.iouThrs = np.array([RIGHT])
    evaluation.params.maxDets = [max([1, *map(len, found)])]
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
    evaluation.evaluate()
    evaluation.accumulate()
    return float(np.mean(evaluation.eval["precision"][0, :, :, 0, 0]))


def _box(one: NDArray[np.float32]) -> dict[str, object]:
    label, left, top, right, bottom = (float(number) for number in one[:5])
    width, height = right - left, bottom - top
    return {"category_id": int(label) + 1, "bbox": [left, top, width, height], "area": width * height}


def _at_difficult(found: Found, targets: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return per detection whether the object of its class that it overlaps most, by half at least, is difficult."""
    difficult = targets[:, 5] == 1
    if not len(found) or not difficult.any():
        return np.zeros(len(found), bool)
    overlap = overlaps(torch.from_numpy(found[:, 1:5].copy()), torch.from_numpy(targets[:, 1:5].copy())).numpy()
    overlap[found[:, :1] != targets[None, :, 0]] = 0.0
    made: NDArray[np.bool_] = (overlap.max(1) >= RIGHT) & difficult[overlap.argmax(1)]
    return made
