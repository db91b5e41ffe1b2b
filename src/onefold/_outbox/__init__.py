"""The transactional outbox: events written with the business rows, and the relay that publishes them."""
