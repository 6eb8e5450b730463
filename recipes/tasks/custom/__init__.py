"""The example of the custom-task kit that learns: multiple choice and code, with its tiny model."""
