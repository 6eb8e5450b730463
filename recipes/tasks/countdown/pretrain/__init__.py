"""What the tiny Countdown model is made from: its tokenizer, the annotators' demonstrations, and the plan."""
