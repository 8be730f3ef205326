"""``python -m infra.images.local``: images named slackwater-local/NAME, for a daemon without a registry.

Debian comes from ``debootstrap`` (as root), or is an image that the daemon has (``--debian``). Kafka and
Debezium are the jars of the development stack.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from slackwater.dev.java import JarSet, resolve_jars

FOLDER = Path(__file__).parent
PREFIX = "slackwater-local"
BASES = ("python", "java")
SERVERS = ("postgres", "redis", "kafka", "connect")
RELEASE = "bookworm"
_OF_THE_CONNECTOR = ("debezium-", "postgresql-")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def build_images(targets: Sequence[str], *, debian: str | None, certificates: Path | None) -> list[str]:
    """Builds images and returns their names; without an image of Debian, one is made with ``debootstrap``.

    Downloads within builds trust the given file of certificates, besides Debian's own.

    Raises:
        subprocess.CalledProcessError: a download or a build failed; standard error says why.
    """
    base = debian or import_debian()
    with _context(certificates) as context:
        return [_build(target, base, context) for target in targets]


def import_debian() -> str:
    """Makes an image of Debian with ``debootstrap``, unless the daemon has it; returns its name."""
    name = f"{PREFIX}/debian:{RELEASE}"
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0:
        return name
    with tempfile.TemporaryDirectory(prefix="slackwater-debian-") as folder:
        root = Path(folder) / "root"
        _run("debootstrap", "--variant=minbase", RELEASE, str(root))
        archive = Path(folder) / "root.tar"
        _run("tar", "-C", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(archive), ".")
        _run("docker", "import", str(archive), name)
    return name


@contextmanager
def _context(certificates: Path | None) -> Iterator[Path]:
    """Makes a folder with all that the builds copy."""
    with tempfile.TemporaryDirectory(prefix="slackwater-images-") as folder:
        context = Path(folder)
        for file in (FOLDER / "Dockerfile", *FOLDER.glob("*.sh")):
            shutil.copy(file, context)
        _copy_jars(resolve_jars(progress=lambda line: click.echo(line, err=True)), context)
        (context / "certificates").mkdir()
        if certificates is not None:
            shutil.copy(certificates, context / "certificates" / "local.crt")
        yield context


def _copy_jars(jars: JarSet, context: Path) -> None:
    """Puts the connector's jars apart, since Connect loads a connector from a folder of its own."""
    for part in ("libs", "debezium"):
        (context / part).mkdir()
    for jar in jars.jars:
        part = "debezium" if jar.name.startswith(_OF_THE_CONNECTOR) else "libs"
        shutil.copy(jars.folder / jar.name, context / part)


def _build(target: str, base: str, context: Path) -> str:
    name = f"{PREFIX}/{target}"
    arguments = ["--build-arg", f"DEBIAN_IMAGE={base}", "--target", target, "--tag", name, str(context)]
    _run("docker", "build", "--network", "host", *proxy_arguments(), *arguments)
    return name


def proxy_arguments() -> list[str]:
    """Lets a build use the proxies that this process uses."""
    given = [f"{name}={os.environ[name]}" for name in _PROXIES if os.environ.get(name)]
    return [word for value in given for word in ("--build-arg", value)]


def _run(*argv: str) -> None:
    # The images' names are all that goes to standard output.
    subprocess.run(argv, check=True, stdout=sys.stderr, env={**os.environ, "DOCKER_BUILDKIT": "0"})


@click.command(help=__doc__)
@click.argument("targets", nargs=-1, type=click.Choice([*BASES, *SERVERS]))
@click.option("--debian", metavar="IMAGE", help="an image of Debian; default: made by debootstrap")
@click.option("--certificates", type=click.Path(path_type=Path), envvar="SSL_CERT_FILE", metavar="FILE")
def main(targets: tuple[str, ...], debian: str | None, certificates: Path | None) -> None:
    """Builds the images that are named; else all."""
    for name in build_images(targets or (*BASES, *SERVERS), debian=debian, certificates=certificates):
        click.echo(name)


if __name__ == "__main__":
    main()
