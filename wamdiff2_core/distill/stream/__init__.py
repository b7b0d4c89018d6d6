"""Training data as upstream writes it: JSON conversations about images of any size, packed into flat streams of tokens.

index (files) -> conversations (samples) -> encode (tokens) -> order (who is next) -> reader (packs) -> packing (batch).
"""
