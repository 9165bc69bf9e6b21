"""Key files, and which key a request carries."""

from __future__ import annotations

import hashlib
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.keys import LONGEST_NAME, Key, KeyFileError, Keyring, Rate, digest_of, is_name, new_key, read_keys

HEX = hashlib.sha256(b"secret").hexdigest()


def keys(text):
    return [line.key for line in read_keys(text, "file")]


def problems(text):
    with pytest.raises(KeyFileError) as caught:
        read_keys(text, "file")
    return caught.value.problems


# ---- key files -------------------------------------------------------------------------------------------


def test_one_key_a_line_is_enough():
    first, second = keys("# ours\n\n one\n  two  # inline\n")
    assert (first.digest, second.digest) == (digest_of("one"), digest_of("two"))
    assert first == Key(first.name, first.digest)
    assert first.name != second.name and is_name(first.name)


def test_a_key_has_a_name_and_limits():
    (key,) = keys("laptop sk-1 priority=background concurrency=2 rate=30/m # ada's")
    assert key == Key("laptop", digest_of("sk-1"), True, 2, Rate(30, 60))


def test_a_hash_stands_for_its_key():
    plain, hashed, bare = (keys(f"{line}\n")[0] for line in ("a secret", f"a SHA256:{HEX.upper()}", f"sha256:{HEX}"))
    assert plain == hashed == replace(bare, name="a")
    (line,) = read_keys(f"a sha256:{HEX}", "file")
    assert line.secret is None


def test_an_unnamed_keys_name_does_not_depend_on_its_place_and_tells_nothing_of_it():
    (alone,) = keys("sk-one")
    assert keys("x sk-two\nsk-one")[1] == alone
    assert "sk" not in alone.name


def test_a_key_may_hold_what_options_and_comments_begin_with():
    assert [key.digest for key in keys("a==\nn b#c=\nn2 Zm9v=")] == [digest_of(k) for k in ("a==", "b#c=", "Zm9v=")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ok sk-1\nlap/top sk-2", "file:2: the name is not one: write NAME KEY"),
        (f"{'n' * 33} k", "at most 32"),
        ("laptop rate=3/m", "file:1: rate= stands where the key belongs"),
        ("laptop k rate=3", "rate= cannot be read; there are priority=interactive|background"),
        ("laptop k rate=0/s", "rate= cannot be read"),
        ("laptop k concurrency=-1", "concurrency= cannot be read"),
        ("laptop k concurrency=1 concurrency=2", "concurrency= is there twice"),
        ("laptop k priority=urgent", "priority= cannot be read"),
        ("laptop k speed=1", "speed= is no option"),
        ("laptop the key", "what follows the key is no option"),
        ("laptop sha256:abc", "64 hexadecimal digits"),
        ("a k\n\nb k", "file:3: the same key as in line 1"),
        (f"a secret\nb sha256:{HEX}", "file:2: the same key as in line 1"),
        ("a k\na j", "file:2: a is the name of the key in line 1, too"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_the_remedy(text, words):
    (problem,) = problems(text)
    assert words in problem


def test_all_mistakes_are_told_at_once_and_no_key_is_shown():
    found = problems("sk-verysecret-sk-verysecret-sk-verysecret laptop\nok sk-fine\nn sk-verysecret sk-verysecret\n")
    assert len(found) == 2
    assert "verysecret" not in "".join(found)


names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=LONGEST_NAME).filter(is_name)
secrets = st.text(string.ascii_letters + string.digits + "._-+/", min_size=1, max_size=60)
options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from(["interactive", "background"]),
        "concurrency": st.integers(1, 10**9 - 1),
        "rate": st.tuples(st.integers(1, 10**9 - 1), st.sampled_from("smhd")).map(lambda r: f"{r[0]}/{r[1]}"),
    },
)


@given(
    st.lists(st.tuples(names, secrets, options, st.booleans()), unique_by=(lambda k: k[0], lambda k: k[1]), max_size=5),
    st.randoms(),
)
def test_what_is_written_is_read_whatever_the_order_of_lines(wanted, random):
    lines = []
    for name, secret, given_options, hashed in wanted:
        text = f"sha256:{digest_of(secret)}" if hashed else secret
        lines.append(" ".join([name, text, *(f"{key}={value}" for key, value in given_options.items())]))
    random.shuffle(lines)
    found = {key.name: key for key in keys("\n".join(lines))}
    assert {name: key.digest for name, key in found.items()} == {w[0]: digest_of(w[1]) for w in wanted}
    for name, _, given_options, _ in wanted:
        assert found[name].background == (given_options.get("priority") == "background")
        assert found[name].concurrency == given_options.get("concurrency", 0)
        assert (found[name].rate is None) == ("rate" not in given_options)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_line_numbers(text):
    try:
        lines = read_keys(text, "file")
    except KeyFileError as error:
        assert all(problem.startswith("file:") for problem in error.problems)
    else:
        assert all(is_name(line.key.name) for line in lines)


def test_new_keys_are_long_and_different_and_fit_a_line():
    first, second = new_key(), new_key()
    assert first != second and len(first) > 40
    assert keys(f"a {first}")[0].digest == digest_of(first)


# ---- keyrings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "name"),
    [
        ("Bearer one", None, "a"),
        ("bearer  two", None, "b"),
        (None, "one", "a"),
        ("Bearer wrong", "two", "b"),
        ("Bearer one", "two", "a"),
        ("Bearer one", "boss", "root"),
        ("Bearer", None, None),
        ("Basic one", None, None),
        ("Bearer onee", None, None),
        ("Bearer \udcff", None, None),
        (f"Bearer {digest_of('one')}", None, None),
        (f"Bearer sha256:{digest_of('one')}", None, None),
        (None, "", None),
        (None, None, None),
    ],
)
def test_a_request_carries_a_key_as_bearer_token_or_in_x_api_key(authorization, x_api_key, name):
    found = Keyring(keys("a one\nb two"), keys("root boss")).find(authorization, x_api_key)
    assert (found.name if found else None) == name
    assert found is None or found.admin == (name == "root")


def test_a_key_of_both_files_is_an_admins():
    ring = Keyring(keys("both k\nuser u"), keys("k"))
    assert ring.find("Bearer k", None).admin
    assert not ring.find("Bearer u", None).admin
    assert len(ring.keys) == 2


def test_two_keys_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two keys are called ada"):
        Keyring(keys("ada one"), keys("ada two"))


def test_an_admins_key_alone_asks_nobody_for_one():
    ring = Keyring(admin=keys("root boss"))
    assert ring.has_admins and not ring.asked_for
