"""One lesson file gives the starter and the solution."""

from stepladder.labs import claim, parts_left, solution, starter
from stepladder.labs.lesson_text import Part, given_names, parts, question

LESSON = '''"""Adding.

Claim: two and two
are four.

Predict: What are two
and three? [sum; of = two, three; times = 1]
"""

START = 0


def add(a, b):
    # >>> Add both;
    # >>> mind the order.
    # ??? What comes after one?
    # ??? Count on, as far
    # ???   as b says.
    total = a + b
    # <<< total = 0
    return total


class Picker:
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
    assert "a + b" not in text and "<<<" not in text and "Count on" not in text
    compile(text, "starter", "exec")


def test_a_solution_has_our_lines_and_the_words_as_comments():
    text = solution(LESSON)
    assert "    # Add both;\n    # mind the order.\n    total = a + b\n    return total\n" in text
    assert "TODO" not in text and "<<<" not in text and "total = 0" not in text
    assert "???" not in text and "Count on" not in text
    compile(text, "solution", "exec")


def test_parts_that_are_left_are_named_with_their_lines():
    text = starter(LESSON)
    assert parts_left(text) == [(14, "Add both; mind the order."), (23, "Give it back.")]
    assert parts_left(solution(LESSON)) == []


def test_the_claim_is_one_line():
    assert claim(LESSON) == "two and two are four."
    assert claim('"""Nothing said."""') == ""


def test_parts_have_their_place_their_goal_and_hints_in_steps():
    assert parts(LESSON) == [
        Part(
            "add",
            "Add both; mind the order.",
            ("What comes after one?", "Count on, as far as b says."),
        ),
        Part("Picker.pick", "Give it back.", ()),
    ]
    assert given_names(LESSON) == ["START", "add", "Picker"]
    constant = "# >>> How many.\nMANY: int = 3\n# <<< MANY = 0\n"
    assert [part.name for part in parts(constant)] == ["MANY"]


def test_a_question_names_the_number_that_answers_it():
    asked = question(LESSON)
    assert asked.words == "What are two and three?"
    rows = [
        {"of": "two, three", "times": 1, "sum": 5},
        {"of": "two, three", "times": 1, "sum": True},
        {"of": "two, three", "times": 2, "sum": 10},
        {"of": "four", "times": 1, "sum": 9},
    ]
    assert asked.answer(rows) == 5.0
    assert asked.answer([{"sum": 5}]) is None


def test_a_lesson_whose_faults_are_to_be_found_names_none_of_them():
    named = LESSON.replace('1]\n"""', '1]\n\nOften wrong:\n- one\n- two\n"""')
    assert "Often wrong:\n- one" in starter(named)
    to_find = named.replace("# >>> Add both;", "# >>>").replace("    # >>> mind the order.\n", "")
    assert "Often" not in starter(to_find) and "- two" not in starter(to_find)
    assert "Often wrong" in solution(to_find)
    assert 'times = 1]\n"""\n\nSTART' in starter(to_find)
