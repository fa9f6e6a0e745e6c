"""`manage.py checkledger`: whether every budget is the sum of its ledger."""

from typing import Any

from django.core.management.base import CommandError

from runs import budgets
from runs.management.usage import OneLineUsage


class Command(OneLineUsage):
    help = "Check that what each budget has spent and reserved is the sum of its ledger."

    def handle(self, *args: Any, **options: Any) -> None:
        wrong = budgets.mismatches()
        for run, column, row, ledger in wrong:
            self.stderr.write(f"run {run}: {column} is {row}, its ledger says {ledger}")
        if wrong:
            raise CommandError(f"{len(wrong)} sums are wrong.")
        self.stdout.write("Every budget is the sum of its ledger.")
