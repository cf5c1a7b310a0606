"""Validators by JSON Schema, whose package takes seconds to import: only the tests that need it do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


def validator_of(schema: dict[str, Any]) -> Draft202012Validator:
    """Returns the validator of a schema, which is checked first. Raises SchemaError."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def validate_for_kubernetes(resource: dict[str, Any], version: str) -> None:
    """Raises ValidationError if this version of Kubernetes does not take a resource with all its fields."""
    import kubernetes_validate

    kubernetes_validate.validate(resource, version, strict=True)
