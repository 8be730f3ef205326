"""The service that works out the frontier and publishes cuts and markers."""
