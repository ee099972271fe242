"""The checks of our own: what makes their comparisons fair."""

from __future__ import annotations

from support.paper_specs import resolve_specs

from pflcore.settings import Evaluation, Training


def test_every_method_on_mnist_has_as_many_trainings_of_a_client_and_measurements() -> None:
    runs = resolve_specs("checks", ["mnist"])["mnist"].runs
    schedules = {}
    for record in (run.record for run in runs):
        training, evaluation = Training(**record["training"]), Evaluation(**record["evaluation"])
        cohort = training.cohort_size(record["clients"])
        trainings = [cohort * round_ for round_ in evaluation.due(training.rounds)]
        schedules[record["method"]["name"]] = cohort, trainings
    assert schedules["pfedhn"] == schedules["fedofa"] == (1, [150, 175, 200])
    assert schedules["pfedla_layerwise"] == (20, [160, 180, 200])
    assert schedules["fedavg"] == (5, [150, 175, 200])
    assert {trainings[-1] for _, trainings in schedules.values()} == {200}
    assert {len(trainings) for _, trainings in schedules.values()} == {3}
