from scripts.reference import PAGE, page


def test_the_page_of_commands_is_made_from_the_commands():
    assert PAGE.read_text(encoding="utf-8") == page(), "run scripts/reference.py"
