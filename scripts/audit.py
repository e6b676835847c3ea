"""Asks OSV, the open database of advisories, about every locked package: `make audit`.

Exit status: 0 none is known, 1 some are, 2 the database can't be reached. `--if-reachable` makes 0 of the last.
"""

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

OSV = "https://api.osv.dev/v1/querybatch"
LOCKS = ("requirements/cpu.txt", "requirements/gpu.txt")
TIMEOUT_S = 20.0
AT_ONCE = 500


def locked(files: list[str]) -> list[tuple[str, str]]:
    """Name and version of each package in the locks."""
    text = "\n".join(Path(file).read_text(encoding="utf-8") for file in files)
    return sorted(set(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;+]+)", text, re.MULTILINE)))


def advisories(packages: list[tuple[str, str]], url: str) -> list[str]:
    """A line for each package of which advisories are known. Raises OSError when the database can't be reached."""
    found = []
    for start in range(0, len(packages), AT_ONCE):
        some = packages[start : start + AT_ONCE]
        queries = [{"package": {"name": n, "ecosystem": "PyPI"}, "version": v} for n, v in some]
        body = json.dumps({"queries": queries}).encode()
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            results = json.load(answer)["results"]
        for (name, version), result in zip(some, results, strict=True):
            if ids := [known["id"] for known in result.get("vulns", ())]:
                found.append(f"{name} {version}: {', '.join(ids)}")
    return found


def main(arguments: list[str], url: str = OSV, files: tuple[str, ...] = LOCKS) -> int:
    packages = locked(list(files))
    try:
        found = advisories(packages, url)
    except OSError as error:
        sys.stdout.write(f"audit: no advisory database can be reached ({error}); nothing was checked\n")
        return 0 if "--if-reachable" in arguments else 2
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"audit: {len(packages)} locked packages, {len(found)} with known advisories\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
