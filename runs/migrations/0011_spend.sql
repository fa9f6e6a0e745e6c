-- The ledger grows at its end only, so a day of it lies together: which pages those are takes next to nothing to keep.
CREATE INDEX ledger_by_time ON runs_ledgerentry USING brin (at) WITH (pages_per_range = 32, autosummarize = on);
