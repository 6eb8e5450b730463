"""How the tiny models are made: tokenizer, architecture, training on demonstrations, and what comes out."""
