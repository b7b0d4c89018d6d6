"""The captured decoding engine: static buffers, paged keys and values, one graph per shape."""
