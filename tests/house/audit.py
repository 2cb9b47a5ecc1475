"""Which locked packages have known holes, as pip-audit finds them; `make audit`.

It asks its database over the network. Where that knows none of the packages, or is not in reach, nothing was
audited: that is said, and is no failure.
"""

import json
import subprocess
import sys

NO_DATABASE = "No database of known holes is in reach: nothing was audited.\n"


def main(locks: list[str]) -> int:
    """Print what is known; return 1 where a package has a hole."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    asked = [word for lock in locks for word in ("-r", lock)]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    said, code = told(done.stdout)
    sys.stdout.write(said)
    return code


def told(found: str) -> tuple[str, int]:
    """Return what pip-audit's JSON says, and 1 where a package has a hole."""
    try:
        packages = json.loads(found)["dependencies"]
    except ValueError:
        return NO_DATABASE, 0
    known = [one for one in packages if "skip_reason" not in one]
    if not known:
        return NO_DATABASE, 0
    holes = [
        f"{one['name']} {one['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or '-'}\n"
        for one in known
        for hole in one["vulns"]
    ]
    return "".join(
        [*holes, f"{len(known)} of {len(packages)} packages audited, {len(holes)} holes.\n"]
    ), bool(holes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
