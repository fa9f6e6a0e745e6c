DROP INDEX ledger_by_time;
