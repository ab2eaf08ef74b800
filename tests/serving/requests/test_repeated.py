from hebe.serving.requests.memo import _MOST_SEEN, Repeated


def test_only_what_comes_again_is_worth_keeping():
    repeated: Repeated[int] = Repeated(most=2, most_bytes=3)
    assert [repeated.comes_again(text) for text in (b"a", b"b", b"a")] == [False, False, True]
    assert repeated.find(b"a") is None
    repeated.keep(b"a", 1)
    assert repeated.find(b"a") == 1
    assert not repeated.comes_again(b"a")  # it is kept already
    repeated.forget(b"a")
    repeated.forget(b"b")
    assert repeated.find(b"a") is None
    assert repeated.comes_again(b"a")
    repeated.keep(b"a", 1)
    assert not any(repeated.comes_again(b"long") for _ in range(3))


def test_the_oldest_goes_where_there_is_no_more_room():
    repeated: Repeated[int | None] = Repeated(most=2, most_bytes=3)
    for value, text in enumerate((b"a", b"b", b"c")):
        repeated.keep(text, value)
    assert [repeated.find(text) for text in (b"a", b"b", b"c")] == [None, 1, 2]
    assert len(repeated) == 2


def test_what_came_once_is_forgotten_in_the_end():
    repeated: Repeated[int] = Repeated(most=2, most_bytes=8)
    assert not any(repeated.comes_again(b"%d" % number) for number in range(3 * _MOST_SEEN))
    assert len(repeated._seen) <= _MOST_SEEN
    assert not repeated.comes_again(b"0")
