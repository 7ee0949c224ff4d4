"""The wire protocol: schema tables, the codec compiled from them, framing. No I/O."""
