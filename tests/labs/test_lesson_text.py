"""One lesson file gives the starter and the solution."""

from stepladder.labs import claim, parts_left, solution, starter

LESSON = '''"""Adding.

Claim: two and two
are four.
"""


def add(a, b):
    # >>> Add both;
    # >>> mind the order.
    total = a + b
    # <<< total = 0
    return total


def pick(a):
    if a:
        # >>> Give it back.
        return a
        # <<< if True:
        # <<<     return ...
'''


def test_a_starter_has_what_is_to_do_and_what_stands_there_first():
    text = starter(LESSON)
    assert "    # TODO: Add both;\n    #       mind the order.\n    total = 0\n" in text
    assert "        # TODO: Give it back.\n        if True:\n            return ...\n" in text
    assert "a + b" not in text and "<<<" not in text
    compile(text, "starter", "exec")


def test_a_solution_has_our_lines_and_the_words_as_comments():
    text = solution(LESSON)
    assert "    # Add both;\n    # mind the order.\n    total = a + b\n    return total\n" in text
    assert "TODO" not in text and "<<<" not in text and "total = 0" not in text
    compile(text, "solution", "exec")


def test_parts_that_are_left_are_named_with_their_lines():
    text = starter(LESSON)
    assert parts_left(text) == [(9, "Add both; mind the order."), (17, "Give it back.")]
    assert parts_left(solution(LESSON)) == []


def test_the_claim_is_one_line():
    assert claim(LESSON) == "two and two are four."
    assert claim('"""Nothing said."""') == ""
