from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import CheckConstraint, Model, Q


class Rules(CheckConstraint):
    """What holds for every row of a table, by the name of each rule: one CHECK that calls one function.

    PostgreSQL parses a CHECK's stored expression anew for every statement that writes, which for a table with a dozen of
    them takes longer than the write; a function is compiled once for a connection. A rule whose condition is unknown
    holds, as in a CHECK. One that does not is named in the error, as the constraint that was violated.
    """

    def __init__(self, *, name: str, rules: Mapping[str, Q], **options: Any) -> None:
        self.rules = dict(sorted(rules.items()))  # in the order in which a migration writes them
        condition = Q(*self.rules.values())
        super().__init__(name=name, condition=condition, **options)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, kwargs = super().deconstruct()
        del kwargs["condition"]
        return path, args, {**kwargs, "rules": self.rules}

    def constraint_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        # One statement cannot make the function and the table.
        assert schema_editor is not None
        schema_editor.deferred_sql.append(self.create_sql(model, schema_editor))
        return ""

    def create_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        assert model is not None
        assert schema_editor is not None
        conditions = {
            name: CheckConstraint(name=name, condition=rule)._get_check_sql(model, schema_editor)  # type: ignore[attr-defined]
            for name, rule in self.rules.items()
        }
        named = {token for condition in conditions.values() for token in re.findall(r'"(\w+)"', condition)}
        columns = [field for field in model._meta.concrete_fields if field.column in named]
        parameters = ", ".join(f'"{field.column}" {field.db_type(schema_editor.connection)}' for field in columns)
        arguments = ", ".join(f'"{field.column}"' for field in columns)
        broken = " ".join(f"WHEN NOT ({condition}) THEN '{name}'" for name, condition in conditions.items())
        table = model._meta.db_table
        return f"""
CREATE FUNCTION "{self.name}"({parameters}) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    broken text;
BEGIN
    IF ({" AND ".join(f"({condition})" for condition in conditions.values())}) IS NOT FALSE THEN
        RETURN true;
    END IF;
    broken := CASE {broken} END;
    RAISE check_violation USING CONSTRAINT = broken, TABLE = '{table}',
        MESSAGE = format('new row for relation "{table}" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "{table}" ADD CONSTRAINT "{self.name}" CHECK ("{self.name}"({arguments}));
"""

    def remove_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        assert model is not None
        return f'ALTER TABLE "{model._meta.db_table}" DROP CONSTRAINT "{self.name}"; DROP FUNCTION "{self.name}";'
