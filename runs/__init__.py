"""The runtime: durable runs of long-lived agents, their effects, facts, budgets and approvals."""
