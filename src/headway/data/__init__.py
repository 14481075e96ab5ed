"""From files to batches: readers, the token store on disk, and the order and shape of batches. Does not use PyTorch."""
