"""The house rules as code: each rule reads one source file, or all of them, and names what breaks it."""
