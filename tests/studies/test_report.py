from epifalcon.studies.report import Page, Picture, Section, Table, Words


def test_text_cannot_become_markup(tmp_path):
    evil = "<script>alert('x')</script>"
    (tmp_path / "p.png").write_bytes(b"png")
    page = Page(
        title=evil,
        lead=evil,
        headline=[(evil, evil)],
        pictures=[Picture(tmp_path / "p.png", evil + '"')],
        tables=[Table(evil, [evil], [[evil]])],
        settings_toml=evil,
        made_by=evil,
        sections=[
            Section(evil, [Words([evil, f"`{evil}`"]), Words([evil], "found")]),
            Section(evil, [Picture(tmp_path / "p.png", evil, evil + '"', wide=True)]),
        ],
        closing=evil,
    ).to_html()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert 'alt="&lt;script' in page


def test_every_cell_and_picture_is_there(tmp_path):
    (tmp_path / "p.png").write_bytes(b"png")
    page = Page(
        title="t",
        lead="l",
        headline=[("42", "people")],
        pictures=[Picture(tmp_path / "p.png", "caption")],
        tables=[Table("T", ["a", "b"], [["1", "2"], ["3", "4"]])],
        settings_toml="x = 1",
        made_by="command",
    ).to_html()
    assert [cell in page for cell in ("<td>1</td>", "<td>4</td>")] == [True, True]
    assert "data:image/png;base64,cG5n" in page
    assert "<b>42</b>" in page


def test_the_first_table_stands_above_the_pictures_and_words_stand_left(tmp_path):
    (tmp_path / "p.png").write_bytes(b"png")
    page = Page(
        title="t",
        lead="l",
        headline=[],
        pictures=[Picture(tmp_path / "p.png", "caption")],
        tables=[
            Table("answer", ["a", "why", "b"], [["x", "noise", "no bound"]] * 2),
            Table("more", ["a", "b"], [["x", "no bound"], ["y", "1"]]),
        ],
        settings_toml="",
        made_by="",
    ).to_html()
    order = [page.index(text) for text in ("answer", "<figure>", "more")]
    assert order == sorted(order)
    assert '<td class="words">noise</td>' in page
    assert "<td>no bound</td><" not in page.split("<h2>more")[0]
    assert "<td>no bound</td>" in page.split("<h2>more")[1]


def test_sections_stand_in_order_with_a_list_of_contents(tmp_path):
    (tmp_path / "p.png").write_bytes(b"png")
    page = Page(
        title="t",
        lead="l",
        headline=[],
        pictures=[],
        tables=[],
        settings_toml="",
        made_by="",
        sections=[
            Section("First", [Words(["Call `epifalcon run`."]), Table("T", ["a"], [])]),
            Section("Second", [Picture(tmp_path / "p.png", "caption", "in words")]),
        ],
        closing="the end",
    ).to_html()
    assert '<a href="#part-2">Second</a>' in page
    assert '<section aria-labelledby="part-2"><h2 id="part-2">Second</h2>' in page
    assert "<code>epifalcon run</code>" in page
    assert "<h3>T</h3>" in page
    assert '<img alt="in words"' in page
    assert "<footer><p>the end</p></footer>" in page


def test_a_column_with_sentences_stands_left_and_one_with_intervals_right():
    def looks(cells):
        rows = [["x", cell] for cell in cells]
        page = Page("t", "l", [], [], [Table("T", ["a", "b"], rows)], "", "").to_html()
        body = page.split("<tbody>")[1]
        return body.count('<td class="words">') - len(rows), body.count("words long")

    assert looks(["+0.1 [-0.2, +0.4]", "", "no bound"]) == (0, 0)
    assert looks(["12", "that a row was sent at all"]) == (0, 2)
    assert looks(["yes", "no"]) == (2, 0)
