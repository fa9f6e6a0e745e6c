"""A migration whose operations of one kind, side by side, are done with one look at the models.

Django makes the classes of a model and of all that are related to it anew after each operation. With fifty models that takes
several times as long as what the database does, and every new installation and every test's database waits for it.
"""

from collections.abc import Sequence
from itertools import groupby

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

_RULES = (migrations.AddConstraint, migrations.AddIndex, migrations.RemoveConstraint, migrations.RemoveIndex)


class TogetherMigration(migrations.Migration):
    """The database gets the statements of Django's own, in the same order.

    Each operation finds the models as they are before or after all its neighbours of a kind, so no two of those may touch the
    same field or model.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.operations = [_Together(list(alike)) for _, alike in groupby(cls.operations, _kind)]


def _kind(operation: Operation) -> type[Operation]:
    # An index or constraint is made and removed without a look at any other.
    return migrations.AddConstraint if isinstance(operation, _RULES) else type(operation)


class _Together(Operation):
    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.__dict__.pop("apps", None)  # the classes: Django makes all of them when they are looked at next
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for operation in self.operations:
            operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for operation in reversed(self.operations):
            operation.database_backwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return "; ".join(operation.describe() for operation in self.operations)
