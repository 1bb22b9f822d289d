"""Where a written text ends, by a quotation mark and by a line."""

import pytest

from generation.backends.protocol import cut


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ('A dog runs." and more', ("A dog runs.", None)),
        (' A dog. "', ("A dog.", None)),
        ("A dog runs.", ("A dog runs.", "not_closed")),
        ('A dog\nruns."', ("A dog", "line_break")),
        (' "', ("", "empty")),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_quotation_mark_alone_closes_a_text(written, found, ended):
    assert cut(written, ended, "quotation_mark") == found


@pytest.mark.parametrize(
    ("written", "ended", "found"),
    [
        ('A dog runs.".\nGenerate one', False, ("A dog runs.", None)),  # what the authors' examples show
        ('A dog runs."', True, ("A dog runs.", None)),
        ('A dog runs."', False, ("A dog runs.", None)),
        ("A dog runs.\n\nIt", False, ("A dog runs.", None)),
        ("A dog runs.", True, ("A dog runs.", None)),
        ("A dog runs and", False, ("A dog runs and", "not_closed")),
        ('He said "no" to her.', True, ('He said "no" to her.', None)),
        ("\nA dog.", False, ("", "empty")),
        ('".', True, ("", "empty")),
    ],
)
def test_a_line_ends_a_text_and_its_closing_mark_goes(written, ended, found):
    assert cut(written, ended, "line") == found
