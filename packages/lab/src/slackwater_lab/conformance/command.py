"""``python -m slackwater_lab conformance``: runs a reader over the cases, or records the cases again."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.dev import KafkaBroker
from slackwater.dev.java import find_java, resolve_jars
from slackwater_lab.conformance.case import CASES, cases_about, load_cases
from slackwater_lab.conformance.record import record_all
from slackwater_lab.conformance.runner import run_cases
from slackwater_lab.workloads.workload import REPOSITORY

SUMMARY = "whether a reader of commit topics, in any language, follows the specification"
DESCRIPTION = """\
Writes recorded topics into a broker, with every record and every marker at the offset that was recorded,
starts a reader over each of them, and compares what it prints with the expected transactions. The exit code
is 0 if the reader meets all requirements of docs/specification.md.

READER is a program with its arguments. It is started with the brokers, a commit topic (or a cut log) and, in
some cases, the offset at which it is to begin. For each transaction it prints a line of JSON with "id",
"xid", "skipped", and "documents", which are lists of topic, partition, offset, key and value. At the present
end of the topic it exits with code 0, and where it must refuse with another one and an error message.
"""
EXAMPLES = """\
examples:
  python -m slackwater_lab conformance python docs/examples/whole_transactions.py
  python -m slackwater_lab conformance --only aborted,late-marker java -cp "$CLASSPATH" WholeTransactions.java
  python -m slackwater_lab conformance --record
"""


READER = REPOSITORY / "docs" / "examples" / "java" / "WholeTransactions.java"
_JARS = ("kafka-clients", "slf4j-api", "lz4-java")


def java_reader(folder: Path) -> tuple[str, ...]:
    """Compiles the reader in Java with the jars of the development stack; returns its command."""
    jars = resolve_jars()
    found = [str(jars.folder / each.name) for each in jars.jars if each.name.startswith(_JARS)]
    path = os.pathsep.join([*found, str(folder)])
    java = find_java().path
    compile_it = [
        str(java.with_name("javac")),
        "-Xlint:all",
        "-Werror",
        "-cp",
        path,
        "-d",
        str(folder),
        str(READER),
    ]
    subprocess.run(compile_it, check=True)
    return str(java), "-XX:TieredStopAtLevel=1", "-cp", path, READER.stem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("--bootstrap", metavar="BROKERS", help="brokers to use (default: one that is started for this)")
    add("--only", metavar="CASES", default="", help=f"comma separated; the cases are in {CASES.name}/")
    add("--cuts", action="store_true", help="the cases about the cut log, not those about commit topics")
    add("--record", action="store_true", help="record the cases again, with the present product and broker")
    add("reader", nargs=argparse.REMAINDER, metavar="READER", help="a program, and its arguments")


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if options.record:
        names = record_all()
        sys.stdout.write(f"{len(names)} cases recorded: {', '.join(names)}\n")
        return 0
    if not options.reader:
        sys.stderr.write("which reader? Name a program; --help says how it is started\n")
        return 2
    try:
        names = [*filter(None, options.only.split(","))]
        cases = load_cases(names) if names else cases_about(cuts=options.cuts)
    except FileNotFoundError as error:
        known = ", ".join(load_cases())
        sys.stderr.write(f"--only: no case {Path(error.filename).stem}; there are {known}\n")
        return 2
    failed = 0
    with _brokers(options.bootstrap) as bootstrap:
        for case, problem in run_cases(cases.values(), options.reader, bootstrap):
            failed += bool(problem)
            requirements = ", ".join(case.head.requirements)
            sys.stdout.write(f"{'failed' if problem else 'passed'} {case.name} ({requirements})\n")
            if problem:
                sys.stdout.write(f"    {case.head.title}:\n    {problem}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(cases)} cases, {failed} failed\n")
    return 1 if failed else 0


@contextmanager
def _brokers(given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="slackwater-conformance-") as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            yield broker.bootstrap
        finally:
            broker.stop()
