"""docs/licences.md, and a bill of materials: what the extras bring, and under which licence.

python -m tests.packaging.licences                     # rewrites docs/licences.md
python -m tests.packaging.licences --sbom FILE         # writes CycloneDX 1.5, for a release
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import onefold
from tests.packaging.extras import components

PAGE: Final = Path(__file__).parents[2] / "docs" / "licences.md"

_HEAD: Final = """\
# Licences

onefold is Apache-2.0, and its core brings nothing. What its extras bring, directly and by way of others, on Linux, as
the metadata of each package says it. `python -m tests.packaging.licences --sbom FILE` writes the same with versions,
those that the tests run with (`constraints.txt`), as a bill of materials (CycloneDX 1.5).

| package | licence | brought by |
|---|---|---|
"""


def write_page() -> str:
    rows = [f"| {each.name} | {each.licence} | {', '.join(each.extras)} |" for each in components()]
    return _HEAD + "\n".join(rows) + "\n"


def write_sbom() -> dict[str, Any]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": "onefold",
                "version": onefold.__version__,
                "purl": f"pkg:pypi/onefold@{onefold.__version__}",
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [
            {
                "type": "library",
                "name": each.name,
                "version": each.version,
                "purl": f"pkg:pypi/{each.name}@{each.version}",
                "licenses": [{"license": {"name": each.licence}}],
                "scope": "optional",
                "properties": [{"name": "onefold:extra", "value": extra} for extra in each.extras],
            }
            for each in components()
        ],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sbom", type=Path)
    given = parser.parse_args()
    if given.sbom is None:
        PAGE.write_text(write_page(), encoding="utf-8")
    else:
        given.sbom.write_text(json.dumps(write_sbom(), indent=2) + "\n", encoding="utf-8")
