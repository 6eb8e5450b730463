"""What the model is asked about a screenshot, for training and for playing alike, and the gold response."""

from __future__ import annotations

from recipes.tasks.rows import IMAGE_MARK

DATA_SOURCE = "number_game"
ABILITY = "vision"
QUESTION = (
    "This is a screen of the number game. One lamp of the traffic light is lit, and three cards show different digits. "
    "Green asks for the largest digit, red for the smallest, yellow for the one in between. "
    "Which card is right? The left card is 0, the middle card 1, the right card 2. "
    "Think briefly if you need to, and end with `Answer: ` and the number of the card."
)
PROMPT = IMAGE_MARK + QUESTION


def gold_response(answer: int) -> str:
    """A response that earns full marks."""
    return f"Answer: {answer}"
