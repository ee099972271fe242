"""Metrics of a client's predictions beside accuracy, from the probabilities of classes.

Probabilities are the softmax of the method's predictions, also if these are log-probabilities (their softmax are the
probabilities) or negative distances. All metrics except ``nll`` are 0 to 1.

- ``balanced_accuracy``, ``macro_f1``: means of recalls and of F1 over the classes that occur in the client's samples.
- ``auc``: the area under the ROC curve of each class against all others, the mean over the classes that occur; NaN
  for a client with one class.
- ``ece``: the expected calibration error of Guo et al. (ICML 2017), by 15 bins of equal width.
- ``nll``: the mean cross-entropy in nats, over predictions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BINS = 15
Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Probabilities (samples, classes) and labels (samples,) of the same samples."""


def score_metrics(names: Sequence[str], loss: float, predictions: Labelled | None) -> tuple[float, ...]:
    """Return the metrics in `names` from the mean loss and, except for ``nll``, from `predictions`; all others are NaN
    if `predictions` is None or the loss is not finite."""
    values = {"nll": loss}
    if predictions and np.isfinite(loss):
        # Imported here, because the import takes a second and runs without metrics do not need it.
        from sklearn.metrics import f1_score, recall_score, roc_auc_score

        probabilities, labels = predictions
        classes, predicted = np.unique(labels), probabilities.argmax(1)
        if "balanced_accuracy" in names:
            values["balanced_accuracy"] = recall_score(labels, predicted, labels=classes, average="macro")
        if "macro_f1" in names:
            values["macro_f1"] = f1_score(labels, predicted, labels=classes, average="macro")
        if "auc" in names and len(classes) > 1:
            values["auc"] = roc_auc_score(labels[:, None] == classes, probabilities[:, classes])
        confidence = probabilities.max(1)
        bins = np.ceil(confidence * _BINS).astype(np.int64)  # bins are open at the lower end, as in the paper
        values["ece"] = np.abs(np.bincount(bins, confidence - (predicted == labels))).sum() / len(labels)
    return tuple(float(values.get(name, np.nan)) for name in names)
