"""Takes every web address out of package-lock.json: npm installs by name, version and integrity hash."""

from __future__ import annotations

import json
from pathlib import Path

LOCK = Path("package-lock.json")
FIELDS_WITH_ADDRESSES = ("deprecated", "funding", "license", "resolved")

lock = json.loads(LOCK.read_text())
for package in lock["packages"].values():
    for field in FIELDS_WITH_ADDRESSES:
        package.pop(field, None)
LOCK.write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n")
