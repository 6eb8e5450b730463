"""The number game: three cards, one light, and an agent that sees only the screen."""
