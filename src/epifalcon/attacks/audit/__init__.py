"""Does the noise hold what the ledger says? Asked of the code as it runs."""
