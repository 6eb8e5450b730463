"""GSM8K: grade school word problems whose answer is one number, and generated ones in the same format."""
