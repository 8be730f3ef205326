"""Which keys a batch touches, and how their results differ before and after."""
