"""One bucket of a stage: applies the events of a batch, hands on what follows from them."""
