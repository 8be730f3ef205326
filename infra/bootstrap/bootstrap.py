"""Makes .venv with the locked dependencies and the members of this repository.

Standard library only, and syntax that Python 3.7 parses too, so that it can say what is missing.
A second run with nothing changed takes a fraction of a second.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(ROOT, ".tools")
VENV = os.path.join(ROOT, ".venv")
LOCK = os.path.join(ROOT, "requirements.lock")
UV_LOCK = os.path.join(ROOT, "infra", "bootstrap", "uv.lock")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, ".slackwater-stamp")
MEMBERS = [
    "packages/slackwater",
    "packages/messaging",
    "packages/certify",
    "packages/lab",
    "sidecar",
    "benchmarks",
]
PYTHON_FLOOR = (3, 11)
JAVA_FLOOR = 17


def main() -> None:
    """Checks the prerequisites, then installs what changed since the last run."""
    use_new_enough_python()
    check_java()
    stamp = fingerprint()
    if read(STAMP) != stamp:
        install_packages()
        with open(STAMP, "w") as file:
            file.write(stamp)
    compile_folders([os.path.join(ROOT, member, "src") for member in MEMBERS])


def install_packages() -> None:
    """Makes .venv what the lock and the members say, with byte code."""
    uv = install_uv()
    say("installing locked dependencies into .venv")
    if not os.path.exists(PYTHON):
        run([uv, "venv", "--quiet", "--python", sys.executable, VENV])
    environment = dict(os.environ, VIRTUAL_ENV=VENV)
    run([uv, "pip", "sync", "--quiet", "--require-hashes", LOCK], environment)
    editable = [word for member in MEMBERS for word in ("--editable", os.path.join(ROOT, member))]
    run([uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *editable], environment)
    say("compiling packages to byte code")
    find = [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    compile_folders([subprocess.run(find, stdout=subprocess.PIPE, check=True).stdout.decode().strip()])


def compile_folders(folders: "list[str]") -> None:
    """Writes byte code that is missing or old, also where PYTHONDONTWRITEBYTECODE is set.

    Without it every process, and every worker of Spark, compiles what it imports, for seconds.
    """
    # Not the packages' own tests; and without an error for files that are written for other Pythons.
    command = [PYTHON, "-m", "compileall", "-qq", "-j", "0", "-x", "site-packages/.*/tests/", *folders]
    subprocess.run(command, check=False)


def use_new_enough_python() -> None:
    """Continues with a newer Python on PATH if this one is too old."""
    if sys.version_info >= PYTHON_FLOOR:
        return
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        found = shutil.which(name)
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606 - nothing to quote, no shell
    fail(
        f"Python 3.11 or newer is needed, found {sys.version.split()[0]}; "
        "install it or run: make PYTHON=/path/to/python3.11"
    )


def check_java() -> None:
    """Kafka, Connect and Spark run on Java; says so before anything is downloaded."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        fail(f"Java {JAVA_FLOOR} or newer is needed, none is on PATH or in JAVA_HOME; install a JDK or JRE")
    text = subprocess.run([java, "-version"], stderr=subprocess.PIPE, check=False).stderr.decode()
    version = re.search(r'version "(\d+)', text)
    if not version or int(version.group(1)) < JAVA_FLOOR:
        fail(f"Java {JAVA_FLOOR} or newer is needed, {java} says: {text.strip() or 'nothing'}")


def install_uv() -> str:
    """The path of the pinned uv, in an environment of its own."""
    uv = os.path.join(TOOLS, "bin", "uv")
    tools_stamp = os.path.join(TOOLS, ".slackwater-stamp")
    if read(tools_stamp) == read(UV_LOCK):
        return uv
    say("installing uv into .tools")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", TOOLS], check=False, capture_output=True)
    if made.returncode != 0:
        reason = made.stdout.decode().strip()
        fail(f"Python's venv module does not work here (Debian and Ubuntu: install python3-venv): {reason}")
    options = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]
    run([os.path.join(TOOLS, "bin", "python"), "-m", "pip", *options, UV_LOCK])
    shutil.copyfile(UV_LOCK, tools_stamp)
    return uv


def fingerprint() -> str:
    """Changes whenever something would have to be installed again."""
    digest = hashlib.sha256(sys.version.encode() + ROOT.encode())
    for path in [__file__, LOCK, *(os.path.join(ROOT, member, "pyproject.toml") for member in MEMBERS)]:
        digest.update(read(path).encode())
    return digest.hexdigest()


def read(path: str) -> str:
    """The text of a file, empty if there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def run(command: "list[str]", environment: "dict[str, str] | None" = None) -> None:
    """Runs a command, ends this program with its exit code if it fails."""
    code = subprocess.run(command, env=environment, check=False).returncode
    if code != 0:
        shown = " ".join(command[:4])
        fail(f"`{shown}` failed with exit code {code} (see above); is a package registry reachable?")


def say(text: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(f"slackwater: {text}\n")


def fail(text: str) -> "NoReturn":
    """One sentence, then exit code 1."""
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    main()
