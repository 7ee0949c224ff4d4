"""`moldau bench spark`: broker and Spark together, beside what Spark would do without a broker."""
