"""Settings: what a person may write, and what each mistake says."""

from pathlib import Path
from typing import Any

import pytest
from stepscope.common.errors import UserError
from stepscope.evaluation.settings import Settings


def parameters(settings: Settings, rule: str) -> Any:
    return next(one.parameters for one in settings.rules() if one.name == rule)


def test_what_is_not_set_has_its_default() -> None:
    its = parameters(Settings.parse(["CPUBottleneck.cpu_threshold=80"]), "CPUBottleneck")
    assert (its.cpu_threshold, its.gpu_threshold, its.threshold, its.patience) == (80, 10, 50, 1000)


def test_the_last_word_counts() -> None:
    settings = Settings.parse(["StepOutlier.stddev=2", "StepOutlier.stddev=2.5", "StepOutlier.mode=eval"])
    its = parameters(settings, "StepOutlier")
    assert (its.stddev, its.mode) == (2.5, "eval")
    assert parameters(Settings.parse(["StepOutlier.mode=None"]), "StepOutlier").mode is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("CPUBottleneck.threshold", "write Rule.parameter=value"),
        ("threshold=5", "write Rule.parameter=value"),
        (
            "CPUBotleneck.threshold=5",
            "there is no rule 'CPUBotleneck'; did you mean CPUBottleneck?",
        ),
        ("CPUBottleneck.treshold=5", "did you mean threshold?"),
        ("OverallSystemUsage.threshold=5", "it has none"),
        ("SamplesMissed.treshold=5", "did you mean threshold?"),
        ("Account.larg=5", "did you mean large?"),
        ("ExporterDown.minutes=-1", "minutes must be a number of at least 0 (minutes), not -1"),
        ("CPUBottleneck.threshold=101", "threshold must be a number from 0 to 100 (%), not 101"),
        ("CPUBottleneck.threshold=-0.1", "threshold must be a number from 0 to 100 (%), not -0.1"),
        ("CPUBottleneck.threshold=nan", "threshold must be a number from 0 to 100 (%), not nan"),
        ("CPUBottleneck.threshold=many", "threshold must be a number from 0 to 100 (%), not many"),
        ("CPUBottleneck.patience=1.5", "patience must be a whole number of at least 0 (samples), not 1.5"),
        ("LowGPUUtilization.window=0", "window must be a whole number of at least 1 (samples), not 0"),
        ("CPUBottleneck.live_window=1441", "live_window must be a number from 2 to 1440 (minutes), not"),
        ("StepOutlier.stddev=inf", "stddev must be a number of at least 0 (standard deviations), not inf"),
        (
            "StepOutlier.mode=training",
            "mode must be one of train, eval, predict, global or none, not",
        ),
    ],
)
def test_each_mistake_gets_one_line_that_names_it_and_what_may_be_written(word: str, said: str) -> None:
    with pytest.raises(UserError) as mistake:
        Settings.parse([word])
    assert said in str(mistake.value)
    assert word in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_a_yaml_file_sets_and_words_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "CPUBottleneck:\n  threshold: 40\n  patience: 10\nStepOutlier:\n  mode: null\nDataStarved:\n"
    )
    settings = Settings.parse(["CPUBottleneck.patience=20"], file)
    its = parameters(settings, "CPUBottleneck")
    assert (its.threshold, its.patience) == (40, 20)
    assert parameters(settings, "StepOutlier").mode is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "CPUBottleneck:\n  threshold: 400\n",
            "CPUBottleneck.threshold: threshold must be a number",
        ),
        ("CPUBottleneck:\n  threshold: yes\n", "not True"),
        ("CPUBottleneck:\n  threshold: [1]\n", "not [1]"),
        ("CPUBottleneck:\n  patience: '12.5'\n", "must be a whole number"),
        ("Nothing:\n  threshold: 1\n", "there is no rule 'Nothing'"),
        ("CPUBottleneck: 5\n", "write `Rule:` and below it"),
        ("- 5\n", "write `Rule:` and below it"),
        ("CPUBottleneck: {\n", "line 2: is not YAML"),
        ("\x00", "is not YAML"),
        ("CPUBottleneck: 2026-02-30", "is not YAML"),
        ("[" * 5000, "is not YAML"),
    ],
)
def test_each_mistake_in_a_file_names_the_file(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(content)
    with pytest.raises(UserError) as mistake:
        Settings.read(file)
    assert said in str(mistake.value)
    assert str(file) in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rules.yaml: cannot be read \(No such file or directory\)"):
        Settings.read(tmp_path / "rules.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").touch()
    assert Settings.read(tmp_path / "rules.yaml").values == {}
