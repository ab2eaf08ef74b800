"""An update log in Kafka."""
