"""What a tier's answers are worth, measured: a prompt set, who is asked, and how the answers are judged."""
