"""MIG: how GPUs may be cut into slices, which cut serves a set of models best, and which slices a node has.

Nothing in here changes a GPU. It plans, prints, checks and discovers.
"""
