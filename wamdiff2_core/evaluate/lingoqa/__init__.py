"""LingoQA: free answers to questions about a drive, official files in and out, judged by its own classifier."""
