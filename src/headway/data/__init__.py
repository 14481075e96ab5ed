"""From files to batches: corpus readers, token stores on disk, and batching. This package does not use PyTorch."""
