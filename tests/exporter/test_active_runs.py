"""Which runs are active: ledgers and --run first, then compute processes on a GPU."""

from stepscope.exporter.sampling.active_runs import ActiveRuns

NOW = 1795181220.0  # 2026-11-20 13:27:00 UTC
UNNAMED = "unnamed-20261120T132700"


def test_every_run_with_a_held_ledger_and_the_run_of_the_flag_are_active() -> None:
    assert ActiveRuns().at(NOW, {"a", "b"}, ()) == {"a", "b"}
    assert ActiveRuns(run="c").at(NOW, {"a"}, ()) == {"a", "c"}
    assert ActiveRuns(run="c").at(NOW, (), {7}) == {"c"}
    assert ActiveRuns().at(NOW, (), ()) == set()


def test_a_compute_process_makes_an_unnamed_run_from_the_first_to_the_last_one() -> None:
    runs = ActiveRuns()
    assert runs.at(NOW, (), {7}) == {UNNAMED}
    assert runs.at(NOW + 1, (), {7, 8}) == {UNNAMED}
    assert runs.at(NOW + 2, (), {8}) == {UNNAMED}
    assert runs.at(NOW + 3, (), ()) == set()
    assert runs.at(NOW + 60, (), {9}) == {"unnamed-20261120T132800"}


def test_processes_of_a_named_run_make_no_unnamed_one_while_they_exit() -> None:
    runs = ActiveRuns()
    assert runs.at(NOW, {"resnet"}, {7, 8}) == {"resnet"}
    assert runs.at(NOW + 1, (), {7, 8}) == set()
    assert runs.at(NOW + 2, (), {8, 9}) == {"unnamed-20261120T132702"}


def test_a_failed_reading_of_the_gpus_makes_no_unnamed_run_of_a_named_one() -> None:
    runs = ActiveRuns()
    runs.at(NOW, {"resnet"}, {7, 8})
    runs.at(NOW + 1, {"resnet"}, ())
    assert runs.at(NOW + 2, (), {7, 8}) == set()


def test_processes_that_are_gone_are_forgotten() -> None:
    runs = ActiveRuns()
    for pid in range(100):
        runs.at(NOW, {"resnet"}, {pid})
    assert runs._claimed == {99}


def test_an_unnamed_run_goes_on_over_a_restart_while_one_of_its_processes_lives() -> None:
    runs = ActiveRuns()
    runs.resume(UNNAMED, [7, 8])
    assert runs.at(NOW + 500, (), {8}) == {UNNAMED}
    later = ActiveRuns()
    later.resume(UNNAMED, [7, 8])
    assert later.at(NOW + 60, (), {9}) == {"unnamed-20261120T132800"}
