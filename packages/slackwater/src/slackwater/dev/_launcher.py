"""Becomes a server: drops privileges, asks to die with its parent, then executes the command.

Run as a script (``python -I -S _launcher.py JSON``) and kept free of other imports, so that it costs
some 20 ms. The process keeps its id: the parent of the launcher is the parent of the server.
"""

import ctypes
import json
import os
import sys

PR_SET_PDEATHSIG = 1


def drop_privileges(uid: int, gid: int) -> None:
    """Become another account for good, without supplementary groups."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def die_with_parent(parent: int, signal_number: int) -> None:
    """Ask the kernel for a signal when the spawning thread ends; a no-op where there is no prctl.

    Must come after the change of account, which clears the request.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent ended before the server started")


def main(order: str) -> None:
    """Follow the order; does not return."""
    wanted = json.loads(order)
    os.chdir(wanted["cwd"])
    os.umask(0o022)
    if wanted["account"] is not None:
        drop_privileges(*wanted["account"])
    if wanted["parent"] is not None:
        die_with_parent(wanted["parent"], wanted["death_signal"])
    os.execv(wanted["argv"][0], wanted["argv"])  # noqa: S606 - this is what a launcher is for


if __name__ == "__main__":
    main(sys.argv[1])
