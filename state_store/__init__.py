"""What must outlive a replica or a gateway: records, the store's protocol, and its backends."""
