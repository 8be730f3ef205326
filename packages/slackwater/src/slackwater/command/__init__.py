"""What every command begins and ends with: settings, logging, signals, output, errors as lines."""
