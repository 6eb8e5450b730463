"""What the tiny GSM8K model is made from: its tokenizer, the annotators' demonstrations, and the plan."""
