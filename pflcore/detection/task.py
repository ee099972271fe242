"""Object detection as a task, measured by mean average precision, by COCO's evaluation at an overlap of one half."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.detection.ssd import Boxes, candidates, losses, non_maximum_suppression, overlaps
from pflcore.task import Measured, Score, Task

RIGHT = 0.5  # overlap from which a detection is right


class Detection(Task):
    """Objects and the boxes around them, predicted as offsets from SSD's default boxes and logits of their classes.

    Outputs are (…, images, boxes, 4 + 1 + classes), targets (…, images, objects, 6).
    """

    defaults: Tensor  # (boxes, 4), centre and size as shares of the image

    def __init__(self, defaults: Tensor) -> None:
        super().__init__(further=("precision",))
        object.__setattr__(self, "defaults", defaults)

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return SSD's loss, divided by the number of default boxes that are assigned to objects, without weights."""
        summed, boxes = losses(outputs, targets, self.defaults)
        return summed.sum() / boxes.sum().clamp_min(1)

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return whether the most certain candidate is right, the loss as float64, the candidates, and the targets."""
        leading = targets.shape[:-2]
        outputs, flat = outputs.flatten(0, -3), targets.flatten(0, -3)
        summed, boxes = losses(outputs, flat, self.defaults)
        detections = candidates(outputs, self.defaults)
        first = detections[:, :1]
        right = (overlaps(first[..., 1:5], flat[..., 1:5])[:, 0] >= RIGHT) & (first[..., 0] == flat[..., 0])
        parts = right.any(-1), summed.double() / boxes.clamp_min(1), detections, flat
        return tuple(part.view(*leading, *part.shape[1:]) for part in parts)

    def score(self, measured: Measured) -> Score:
        """Return the score, in which an image's most certain detection counts as its prediction, and as a further
        number the mean average precision."""
        hits, losses_, detections, targets = measured
        precision = mean_average_precision(list(map(non_maximum_suppression, detections)), targets)
        return int(hits.sum()), len(hits), float(losses_.sum()), int(hits.sum()), precision

    def batch_limit(self, samples: int) -> int:
        """Return a quarter as many: images are larger, and feature maps are as fine."""
        return max(1, samples // 4)


def mean_average_precision(detections: Sequence[Boxes], targets: NDArray[np.float32]) -> float:
    """Return the mean over classes of the area under precision over recall, 0 to 1; NaN if there is no object.

    Only classes with an object count. Detections of difficult objects are neither right nor wrong, as in PASCAL VOC's
    evaluation. Precision is interpolated at 101 recalls. Targets are (images, objects, 6): class, -1 for no object,
    corners, 1 if difficult.
    """
    counted = (targets[..., 0] >= 0) & (targets[..., 5] == 0)
    classes = np.unique(targets[..., 0][counted]).astype(int)
    if not len(classes):
        return float("nan")
    # Imported here, because it takes half a second and runs without boxes do not need it.
    from faster_coco_eval import COCO, COCOeval_faster

    # All ids begin with 1, because the library's C++ code takes 0 for no object.
    annotations = [
        {"id": id_, "image_id": int(image) + 1, "iscrowd": 0, "ignore": 0, **_coco_box(targets[image, index])}
        for id_, (image, index) in enumerate(np.argwhere(counted), 1)
    ]
    results = [
        {"image_id": image, "score": float(box[5]), **_coco_box(box)}
        for image, (boxes, objects) in enumerate(zip(detections, targets, strict=True), 1)
        for box in boxes[~_at_difficult(boxes, objects) & np.isin(boxes[:, 0], classes)]
    ]
    images = [{"id": image} for image in range(1, len(detections) + 1)]
    categories = [{"id": int(label) + 1} for label in classes]
    truth = COCO({"images": images, "categories": categories, "annotations": annotations})
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox")
    evaluation.params.iouThrs = np.array([RIGHT])
    evaluation.params.maxDets = [max([1, *map(len, detections)])]
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
    evaluation.evaluate()
    evaluation.accumulate()
    return float(np.mean(evaluation.eval["precision"][0, :, :, 0, 0]))


def _coco_box(box: NDArray[np.float32]) -> dict[str, object]:
    label, left, top, right, bottom = map(float, box[:5])
    width, height = right - left, bottom - top
    return {"category_id": int(label) + 1, "bbox": [left, top, width, height], "area": width * height}


def _at_difficult(boxes: Boxes, targets: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return whether each box overlaps an object of its class by at least one half, and the nearest is difficult."""
    difficult = targets[:, 5] == 1
    if not len(boxes) or not difficult.any():
        return np.zeros(len(boxes), bool)
    overlap = overlaps(torch.from_numpy(boxes[:, 1:5].copy()), torch.from_numpy(targets[:, 1:5].copy())).numpy()
    overlap[boxes[:, :1] != targets[None, :, 0]] = 0.0
    return cast(NDArray[np.bool_], (overlap.max(1) >= RIGHT) & difficult[overlap.argmax(1)])
