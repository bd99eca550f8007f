"""The engine below `bench`, `tune` and `report`: operands, programs, rounds that alternate, what a right result is.

Knows workloads, programs that can be called and their times. Does not know who calls it, how a kernel is selected or
what a user's program is.
"""
