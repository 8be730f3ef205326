"""What every command begins and ends with: settings, logging, signals, output, errors as lines."""

__version__ = "0.1.0"

__all__ = ["__version__"]
