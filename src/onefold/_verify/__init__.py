"""The prober: tests an HTTP API, in any language, against the contract of idempotent requests, from the outside.

http_port, httpx_port, commands    what is sent and asked, and the edge that does it
profiles, payloads, openapi        what the API promises, and what it is sent
probing, answers                   what a check works with
checks, catalogue                  the checks, and the table of them
running, findings                  running them; what was found
reports, credentials               showing it; without credentials
"""
