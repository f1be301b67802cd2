from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.fedpregnn_client import post_of, visits_of
from epifalcon.baselines.fedpregnn_helper import (
    Letters,
    Partners,
    TokenHelper,
    tokens_of,
)
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from tests.oracles.cities import cities, random_traces

KEY = bytes(range(32))
CLOCK = Clock(8.0, 2)


def posted(city, seed=0):
    visits = visits_of(city)
    return visits, post_of(visits, np.random.default_rng(seed))


def names(people):
    """Embeddings that tell who they are of, so that answers can be read."""
    return np.arange(people, dtype=np.float32)[:, None] * [1, -1]


def heard(helper, letter):
    """The boxes behind the embeddings in the answer to one letter."""
    answer = helper.answer(np.array([letter]))
    assert answer.start.tolist() == [0, len(answer.embedding)]
    assert (answer.embedding[:, 1] == -answer.embedding[:, 0]).all()
    return answer.embedding[:, 0].astype(int).tolist()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(cities(), st.integers(0, 12))
def test_answers_are_others_who_share_the_item(city, most):
    visits, post = posted(city)
    helper = TokenHelper(post.letters, most)
    helper.receive(names(city.people), np.random.default_rng(1))
    owner = np.repeat(np.arange(city.people), visits.count)
    for visit, (person, item) in enumerate(zip(owner, visits.item, strict=True)):
        others = {
            int(post.box[other])
            for other, place in zip(owner, visits.item, strict=True)
            if place == item and other != person
        }
        found = heard(helper, post.number[visit])
        assert len(found) == len(set(found)) == min(most, len(others))
        assert set(found) <= others


def test_an_answer_to_many_is_the_answers_to_each():
    visits, post = posted(random_traces(2, 12, 3, CLOCK))
    helper = TokenHelper(post.letters, 4)
    helper.receive(names(12), np.random.default_rng(1))
    asked = np.random.default_rng(0).permutation(len(visits.item))
    many = helper.answer(asked)
    for place, letter in enumerate(asked):
        mine = slice(many.start[place], many.start[place + 1])
        assert many.embedding[mine, 0].astype(int).tolist() == heard(helper, letter)


def test_every_partner_is_as_probable():
    letters = Letters(np.arange(6), np.ones((6, 2), np.uint64))
    helper, rng = TokenHelper(letters, 2), np.random.default_rng(4)
    met = np.zeros((6, 6))
    for _ in range(1500):
        helper.receive(names(6), rng)
        for letter in range(6):
            met[letter, heard(helper, letter)] += 1
    assert (met.diagonal() == 0).all()
    apart = met[~np.eye(6, dtype=bool)]
    # 2 of 5: 600 expected, standard deviation 19.
    assert abs(apart - 600).max() < 4 * 19


def test_the_helper_is_told_tokens_and_never_items_or_people():
    city = random_traces(1, 12, 9, CLOCK)
    visits, post = posted(city)
    assert {one.name for one in fields(Letters)} == {"box", "token"}
    assert {one.name for one in fields(Partners)} == {"start", "embedding"}
    seen = post.letters.token.tobytes()
    for item in range(visits.items):
        for length in (4, 8):
            assert item == 0 or item.to_bytes(length, "little") not in seen
    owner = np.repeat(np.arange(city.people), visits.count)
    # Neither who sends nor in which order says who it is.
    assert (post.letters.box[post.number] == post.box[owner]).all()
    assert (post.box != np.arange(city.people)).any()
    assert (np.diff(post.number) < 0).any()


def test_tokens_match_under_one_key_and_under_no_other():
    token = tokens_of(500, KEY)
    assert len(np.unique(token, axis=0)) == 500
    assert (token == tokens_of(600, KEY)[:500]).all()
    assert not np.isin(token, tokens_of(500, KEY[::-1])).any()
    # Half of the bits differ, whatever the items.
    bits = np.unpackbits(token.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01


def test_people_who_share_nothing_and_letters_of_nobody():
    alone = TokenHelper(Letters(np.arange(3), tokens_of(3, KEY)), 5)
    alone.receive(names(3), np.random.default_rng(0))
    assert alone.answer(np.arange(3)).start.tolist() == [0, 0, 0, 0]
    empty = TokenHelper(Letters(np.arange(0), tokens_of(0, KEY)), 5)
    empty.receive(names(0), np.random.default_rng(0))
    assert empty.answer(np.arange(0)).embedding.shape == (0, 2)


def test_new_embeddings_take_the_place_of_the_old_ones():
    helper = TokenHelper(Letters(np.arange(2), np.ones((2, 2), np.uint64)), 5)
    for number in (3.0, 7.0):
        helper.receive(np.full((2, 1), number, np.float32), np.random.default_rng(0))
        assert helper.answer(np.arange(2)).embedding.tolist() == [[number], [number]]


def test_what_the_helper_refuses():
    letters = Letters(np.arange(2), np.ones((2, 2), np.uint64))
    with pytest.raises(DataError, match="call receive first"):
        TokenHelper(letters, 1).answer(np.arange(2))
    with pytest.raises(DataError, match="for 2 letter boxes"):
        TokenHelper(letters, 1).receive(names(1), np.random.default_rng(0))
    with pytest.raises(DataError, match="for 2 letters"):
        TokenHelper(Letters(np.arange(2), np.ones((3, 2), np.uint64)), 1)
    with pytest.raises(DataError, match="a key of 3 bytes"):
        tokens_of(3, b"abc")
