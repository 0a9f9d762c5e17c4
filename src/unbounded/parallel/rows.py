"""Which rows of a batch are a process's own."""


def own_rows(rows: int, rank: int, size: int) -> tuple[slice, float]:
    """The part of a batch that one of `size` processes takes, and its share of the rows.

    Parts follow each other and are as equal as can be. Where there are fewer rows than processes,
    some take the first row with a share of 0: they have to take part in the step all the same.
    """
    start, stop = rows * rank // size, rows * (rank + 1) // size
    if start == stop:
        return slice(0, 1), 0.0
    return slice(start, stop), (stop - start) / rows
