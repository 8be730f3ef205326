"""Runs a service of docs/examples/payments in a process that kills itself at a step, as the kernel would.

    python dying_service.py SCRIPT STEP COUNT MECHANISM ARGUMENTS...

STEP is one of a receiver's or of a relay's, COUNT which of its occurrences; 0: it does not die. MECHANISM is
``with`` or ``without`` the inbox: without, what comes again is processed again.
"""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from slackwater_lab.messaging.receiving.member import Twin, make_inbox
from slackwater_lab.probes import SignalAt

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "payments"


def main(name: str, step: str, count: str, mechanism: str, *arguments: str) -> None:
    sys.path.insert(0, str(EXAMPLE))
    script, loop = import_module(name), "CaptureRelay" if name == "relay" else "Receiver"
    setattr(script, loop, partial(getattr(script, loop), probe=SignalAt(step, int(count))))
    if mechanism == "without":
        vars(script)["INBOX"] = make_inbox(Twin.OFFSETS, script.INBOX.table)
    script.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
