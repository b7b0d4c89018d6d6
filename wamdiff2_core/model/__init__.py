"""The backbone: checkpoint folders, attention masks, token positions, image encoding."""
