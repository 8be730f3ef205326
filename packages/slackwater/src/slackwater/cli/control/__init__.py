"""The control plane over HTTP: one picture of sources, pipelines and views, for programs and for people."""
