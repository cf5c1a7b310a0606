"""Files that are no rule files of Prometheus."""

import pytest
from stepscope.common.errors import UserError
from stepscope.prometheus.crosscheck.rule_files import read_groups


@pytest.mark.parametrize("text", ["", "groups: 5", "groups: 2026-02-30", "[" * 5000, "groups: [{name: a}]"])
def test_a_file_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^rules\.yml: is not a Prometheus rule file") as refused:
        read_groups(text, "rules.yml")
    assert "\n" not in str(refused.value)
