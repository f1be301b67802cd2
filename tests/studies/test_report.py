from epifalcon.studies.report import Page, Picture, Table


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
    assert "<td>no bound</td><" not in page.split("more")[0]
    assert "<td>no bound</td>" in page.split("more")[1]
