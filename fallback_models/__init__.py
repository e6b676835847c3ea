"""What serves below the primary: cached answers and canned text."""
