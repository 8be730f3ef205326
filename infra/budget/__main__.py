"""``python -m infra.budget`` writes the table of the layout page, and says what is above its ceiling."""

import sys

import click

from infra.budget import LAYOUT, excess, written


def main() -> None:
    """Ends with 1 if something is above its ceiling."""
    LAYOUT.write_text(written(LAYOUT.read_text()))
    click.echo(f"{LAYOUT.name} has the present numbers")
    found = excess()
    click.echo("\n".join(found) or "everything is below its ceiling")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
