from hypothesis import given
from hypothesis import strategies as st

from hebe.query import KeyCounts
from hebe.serving.hosting.answer_quality import MAX_DEFAULTED, WINDOW_S, AnswerQuality


def answered(quality, count, defaulted, now_s, *, cut=0):
    for _ in range(count):
        quality.add(KeyCounts(100, defaulted, cut=cut), now_s)


def test_mostly_default_vectors_until_answers_are_real_again_or_there_are_none():
    quality = AnswerQuality()
    assert quality.defaulted_share(0.0) is None
    answered(quality, 19, 90, 100.5, cut=80)
    assert quality.poor_since_s(100.5) is None, "so few say little"
    answered(quality, 1, 90, 100.7, cut=80)
    assert (quality.poor_since_s(101.0), quality.defaulted_share(101.0)) == (100.7, 0.9)
    assert quality.cut_share(101.0) == 80 / 90
    answered(quality, 20, 0, 102.0)
    assert (quality.poor_since_s(102.0), quality.defaulted_share(102.0)) == (None, 0.45)
    answered(quality, 20, 90, 103.0)
    assert quality.poor_since_s(103.5) == 103.0
    assert quality.poor_since_s(103.0 + WINDOW_S) is None, "nobody asks a server that is not ready"


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 3)), max_size=80))
def test_answers_are_poor_only_while_most_recent_keys_are_defaulted(events):
    quality, now_s, answers = AnswerQuality(), 0.0, []
    for defaulted, later_s in events:
        now_s += later_s
        quality.add(KeyCounts(100, defaulted), now_s)
        answers.append((int(now_s), defaulted))
        recent = [count for second, count in answers if second > now_s - WINDOW_S]
        poor = len(recent) >= 20 and sum(recent) > MAX_DEFAULTED * 100 * len(recent)
        assert (quality.poor_since_s(now_s) is not None) == poor
