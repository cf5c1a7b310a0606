"""One file per rule, marked with `@rule`; nothing here reads or writes files but the registry."""

from __future__ import annotations

from trainwatch.rules.registry import all_rules

__all__ = ["all_rules"]
