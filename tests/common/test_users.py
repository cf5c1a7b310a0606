"""Names of users, from a directory service that is slow, or down for a while."""

import pwd
from types import SimpleNamespace

import pytest
from stepscope.common import users
from stepscope.common.users import KEPT_SECONDS, RETRY_SECONDS, user_name


def test_a_name_is_asked_for_once_and_stays_while_the_service_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked, known = 100.0, [], {1001: "anna"}

    def getpwuid(uid: int) -> SimpleNamespace:
        asked.append(uid)
        return SimpleNamespace(pw_name=known[uid])

    monkeypatch.setattr(users, "_names", {})
    monkeypatch.setattr(users, "monotonic", lambda: now)
    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    assert [user_name(uid) for uid in (1001, 1001, 1002, 1002)] == ["anna", "anna", "1002", "1002"]
    assert asked == [1001, 1002]
    known = {1002: "ben"}
    now += RETRY_SECONDS
    assert (user_name(1001), user_name(1002)) == ("anna", "ben")
    now += KEPT_SECONDS
    assert (user_name(1001), user_name(1002)) == ("anna", "ben")
    known = {1001: "another", 1002: "ben"}
    now += RETRY_SECONDS
    assert user_name(1001) == "another"
