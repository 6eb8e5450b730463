"""The trainers: verl and EasyR1, their commands and what they write."""
