"""Inputs that nobody would send on purpose, for every parser of what strangers and replicas send.

A target is a function from bytes to nothing, which raises when a promise is broken: a parser may refuse an input in its
own declared way; any other exception is a finding, and so is a result that depends on how the network cut the bytes.
"""
