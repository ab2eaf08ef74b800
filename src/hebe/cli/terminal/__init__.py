"""What all commands share: options, output, tokens, child processes."""
