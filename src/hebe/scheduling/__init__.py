"""Online decisions as pure state machines: events in, actions out, `now` passed in."""
