"""The orders view in Flink SQL: fills in ``orders.sql`` and runs the SQL client with a cluster in its JVM."""

import argparse
import importlib.util
import os
import string
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEAP = "3g"
CONFIGURATION = """\
execution.target: local
execution.attached: true
taskmanager.numberOfTaskSlots: 2
taskmanager.memory.managed.size: 256mb
taskmanager.memory.network.min: 64mb
taskmanager.memory.network.max: 64mb
state.backend.type: hashmap
"""
LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
logger.tasks.name = org.apache.flink.runtime.executiongraph.ExecutionGraph
logger.tasks.level = INFO
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c - %m%n
"""
MODULE_ACCESS = ["--add-exports=java.base/sun.net.util=ALL-UNNAMED"] + [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.reflect",
        "java.io",
        "java.net",
        "java.nio",
        "java.text",
        "java.time",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "java.util.concurrent.locks",
        "sun.nio.ch",
    )
]


def main() -> None:
    """Runs the JVM until the process group is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--input-prefix", "--output", "--folder", "--jars"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    statements = string.Template((HERE / "orders.sql").read_text().split("\n", 1)[1]).substitute(
        bootstrap=arguments.bootstrap, prefix=arguments.input_prefix, output=arguments.output
    )
    (folder / "orders.sql").write_text(statements)
    (folder / "config.yaml").write_text(CONFIGURATION)
    (folder / "log4j.properties").write_text(LOGGING)
    home = _flink_home()
    jars = [jar for part in ("lib", "opt") for jar in sorted((home / part).glob("*.jar"))]
    jars += sorted(Path(arguments.jars).glob("*.jar"))
    command = ["java", f"-Xmx{HEAP}", "-XX:+UseParallelGC", *MODULE_ACCESS]
    command += [f"-Dlog4j.configurationFile={folder / 'log4j.properties'}"]
    command += ["-cp", os.pathsep.join(map(str, jars)), "org.apache.flink.table.client.SqlClient"]
    command += ["embedded", "--file", str(folder / "orders.sql")]
    environment = {**os.environ, "FLINK_CONF_DIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as java:
        is_reading = False
        for line in java.stdout or ():
            sys.stdout.write(line)
            if not is_reading and "Source: orders" in line and "to RUNNING" in line:
                is_reading = True
                sys.stdout.write("reading\n")
            sys.stdout.flush()
    sys.exit(java.returncode)


def _flink_home() -> Path:
    spec = importlib.util.find_spec("pyflink")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("apache-flink-libraries is not installed in this environment")
    return Path(next(iter(spec.submodule_search_locations)))


if __name__ == "__main__":
    main()
