"""Sagas on DBOS: embedded, in a SQLite file, or in PostgreSQL for several processes.

What DBOS does is its own: the journal, replay, timers, messages, fencing by owner. What is added here is what it leaves
to others:

    DBOS                                                          here
    ------------------------------------------------------------  ---------------------------------------------------
    its cancel leaves a saga's effects as they are                a flag and a message: the saga compensates
    code that does not fit the journal is an ordinary Exception   EngineFault: the saga stops, nothing is undone
    its default version strands sagas after any edit              one version for all; each saga has its own
    the same id with other input is accepted in silence           the input is compared: SagaMismatch
    its default format is pickle                                  portable JSON
    no process takes over the sagas of one that died              a lock per process: a peer that gets it resumes them
    a process takes up sagas that it has no code for              a queue per saga and version
    SQLite writes with a rollback journal                         WAL, synchronous=FULL
    its thread pool stays in the event loop when it is closed     the loop gets a new one
"""
