"""What the load looks like: arrivals, query sizes, key skew, recorded traces.

Everything random takes a seeded `numpy.random.Generator`; nothing here keeps global state.
"""
