"""`moldau bench`: how fast is it, beside the least that any program would have to do."""
