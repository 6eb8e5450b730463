"""The tiny Qwen2.5-VL that ships in `tiny/`: its tokenizer, its shape, its demonstrations, its training."""
