"""Audits of the implemented mechanisms against the claims of the ledger."""
