"""What an idempotent route promises: its policy, its principal, its fingerprint, its conditions and its quotas."""

from onefold._http.conditional import Conditional
from onefold._http.etags import content_tag
from onefold._http.route_policy import Policy, single_principal, trusted_header
from onefold._idempotency.fingerprint import canonical_json, named_strategy, raw_bytes, selected_fields
from onefold._policy.quota import Quota

__all__ = [
    "Conditional",
    "Policy",
    "Quota",
    "canonical_json",
    "content_tag",
    "named_strategy",
    "raw_bytes",
    "selected_fields",
    "single_principal",
    "trusted_header",
]
