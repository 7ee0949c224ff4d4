"""The house rules as code: each rule checks one file, or all files, and yields its findings."""
