"""Becomes a server: drops privileges, asks to die with its parent, then executes the command.

Run as a script (``python -I -S _launcher.py JSON``) and kept free of other imports, so that it costs
some 20 ms. The process keeps its id: the parent of the launcher is the parent of the server.
"""

import ctypes
import json
import os
import sys

PR_SET_PDEATHSIG = 1


def main(order: str) -> None:
    """Follow the order; does not return."""
    wanted = json.loads(order)
    os.chdir(wanted["cwd"])
    os.umask(0o022)
    if wanted["account"] is not None:  # for good, without supplementary groups
        uid, gid = wanted["account"]
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if wanted["parent"] is not None:  # the kernel forgets it when the account changes
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, wanted["death_signal"], 0, 0, 0)
        if os.getppid() != wanted["parent"]:
            sys.exit("the parent ended before the server started")
    os.execv(wanted["argv"][0], wanted["argv"])  # noqa: S606 - this is what a launcher is for


if __name__ == "__main__":
    main(sys.argv[1])
