"""How the tiny Countdown model was made: tokenizer, architecture, demonstrations, training."""
