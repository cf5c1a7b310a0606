"""Defines the rules, one file per rule, marked with `@rule`; only the registry reads files."""

from stepscope.rules.parts.registry import all_rules

__all__ = ["all_rules"]
