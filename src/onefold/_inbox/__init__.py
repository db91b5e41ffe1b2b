"""The inbox: each message is handled once, in one transaction with its ledger row; what keeps failing is kept."""
