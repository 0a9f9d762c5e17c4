"""One file = one table or figure; `demo` is the shortest way to see a depth posterior."""
