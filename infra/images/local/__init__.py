"""Builds base images and images of the servers from packages, where no image registry can be reached."""
