"""Storms in virtual time: what retries do to a server in trouble, before they do it to yours.

agenda, clients, servers, ledger   the simulation: real policies, simulated time
scenarios, experiments             what happens, to whom, and what it comes to
entrants, judgement                the policies compared, and what makes one metastable
tables, drawing, pages             showing it
"""
