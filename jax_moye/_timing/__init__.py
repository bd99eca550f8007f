"""The engine below `bench`, `tune` and `report`: contenders that alternate in rounds, operands, what is correct.

Knows programs that can be called and their times. Does not know what they compute, nor which of them is ours.
"""
