"""Where the protocol's messages are registered: a pool of its own.

Other packages register messages of the same names, Triton's client among them, and one pool holds a name once. Apart,
both can live in one process.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
