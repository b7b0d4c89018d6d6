"""Other people's driving data, and our world's, as upstream's conversation files."""
