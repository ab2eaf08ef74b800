"""What the load looks like: arrivals, query sizes, key skew, recorded traces."""
