"""Verdicts on made-up numbers whose verdict is plain."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import permutation_test

from bayesattn_core import claims

NOISE = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])


def arms(**means):
    return {arm.replace("_", "-"): mean + (1 + 0.1 * k) * NOISE for k, (arm, mean) in enumerate(means.items())}


def test_interval():
    low, high = claims.interval(torch.arange(10.0))
    assert low < 4.5 < high
    assert high - low == pytest.approx(2 * 1.96 * torch.arange(10.0).std(correction=0).item() / 10**0.5, rel=0.1)
    assert claims.interval(torch.full((5,), 2.0)) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least 5 seeds, got 4"):
        claims.interval(torch.ones(4))
    with pytest.raises(ValueError, match="differences must have 1 dimensions and no more"):
        claims.interval(torch.ones(6, 5))


def test_c4():
    slow = {"o_x10": 800, "qk_x10": 900, "sum_matched": 600, "total_matched": 550, "tuned_sgd": 500}
    assert claims.c4(arms(sgd=1000, em=450, **slow)).verdict == "holds"
    assert claims.c4(arms(sgd=1000, em=450, **slow | {"tuned_sgd": 20})).verdict == "does not hold here"
    tied = claims.c4(arms(sgd=1000, em=450, **slow | {"o_x10": 450}))
    assert tied.verdict == "does not hold here"
    assert "not clearly slower: o-x10 (" in tied.because
    assert claims.c4(arms(sgd=450, em=450, **slow)).verdict == "does not hold here"


def test_c5():
    still = dict.fromkeys(("sgd", "em", "tuned-sgd"), 0.0)

    def kl(**means):
        return {arm: value / 100 for arm, value in arms(**means).items()}

    assert claims.c5(kl(sgd=90, em=50, tuned_sgd=80), still).verdict == "holds"
    assert claims.c5(kl(sgd=90, em=50, tuned_sgd=50), still).verdict == "does not hold here"
    assert claims.c5(kl(sgd=50, em=50, tuned_sgd=90), still).verdict == "does not hold here"
    assert claims.c5(kl(sgd=90, em=50, tuned_sgd=80), still | {"sgd": 0.01}).verdict == "holds in part"
    assert claims.c5(kl(sgd=50, em=50, tuned_sgd=40), still).verdict == "does not hold here"


def test_the_sign_flip_test_is_scipys():
    differences = torch.tensor([1.0, 2, -0.5, 3, 0.1, 2, 1.5], dtype=torch.float64)
    judge = permutation_test(
        (differences.numpy(),), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert claims.sign_flip_p(differences) == pytest.approx(judge.pvalue)
    assert claims.sign_flip_p(torch.ones(5)) == 2 / 2**5
    with pytest.raises(ValueError, match="at most 20 seeds, got 21"):
        claims.sign_flip_p(torch.ones(21))


def test_the_freeze_step_follows_half_of_the_fall():
    fall = torch.linspace(2, 1, 101)
    assert claims.freeze_step(fall, [0, 20, 60, 90]) == 60
    assert claims.freeze_step(fall, [0, 20]) == 20


def test_c6():
    early, late, low, high = 100 + NOISE, 500 + NOISE, 1.8 + NOISE / 1000, 1.9 + NOISE / 1000
    assert claims.c6(early, late, low, high).verdict == "holds"
    assert claims.c6(late, early, low, high).verdict == "holds in part"
    assert claims.c6(early, late, high, low).verdict == "holds in part"
    assert claims.c6(late, early, high, low).verdict == "does not hold here"


def test_c11():
    assert claims.c11(arms(sgd=1, em=90), arms(sgd=10, em=50)).verdict == "holds"
    assert claims.c11(arms(sgd=90, em=1), arms(sgd=10, em=50)).verdict == "holds in part"
    verdict = claims.c11(arms(sgd=90, em=90), arms(sgd=50, em=50))
    assert verdict.verdict == "does not hold here"
    assert verdict.verdict in claims.VERDICTS


def test_c12():
    two, one = 2 + NOISE / 1000, 1 + NOISE / 1000
    assert claims.c12(two, one, 0.0).verdict == "holds"
    assert claims.c12(two, two, 0.0).verdict == "does not hold here"
    assert claims.c12(two - 0.2, one, 0.0).verdict == "does not hold here"
    assert claims.c12(two, one, 1e-9).verdict == "does not hold here"


def test_c3():
    half = 0.5 + NOISE / 100
    assert claims.c3(half + 0.3, half).verdict == "holds"
    assert claims.c3(half + 0.2, half + 0.2).verdict == "holds in part"
    assert claims.c3(half + 0.05, half).verdict == "does not hold here"


def test_bounds_are_where_they_are_said_to_be():
    half = 0.5 + NOISE / 1000
    assert claims.c3(half + 0.11, half).verdict == "holds"
    assert claims.c3(half + 0.09, half).verdict == "does not hold here"
    two, one = 2 + NOISE / 10_000, 1 + NOISE / 10_000
    assert claims.c12(two, one + 0.045, 0.9e-12).verdict == "holds"
    assert claims.c12(two, one + 0.055, 0.0).verdict == "does not hold here"
    assert claims.c12(two, one, 1.1e-12).verdict == "does not hold here"
    far = {"sgd": 0.9 + NOISE / 100, "em": 0.5 + NOISE / 100, "tuned-sgd": 0.9 + NOISE / 100}
    assert claims.c5(far, {"sgd": 0.0, "em": 0.0, "tuned-sgd": 2e-3}).verdict == "holds in part"
    slow = {"o_x10": 800, "qk_x10": 900, "sum_matched": 600, "total_matched": 550, "tuned_sgd": 500}
    for rival in slow:
        assert claims.c4(arms(sgd=1000, em=450, **slow | {rival: 20})).verdict == "does not hold here"
    rises_again = torch.cat([torch.linspace(2, 1, 51), torch.linspace(1, 1.8, 50)])
    assert claims.freeze_step(rises_again, [0, 20, 25, 60]) == 25
    with pytest.raises(ValueError, match="freeze_steps must be rising steps"):
        claims.freeze_step(rises_again, [60, 20])


WINDOWS = {1: 0.20 + NOISE / 1000, 2: 0.09 + NOISE / 1000, 4: 0.03 + NOISE / 1000, 8: 0.01 + NOISE / 1000}
TUNED = {"fixed": WINDOWS, "header": WINDOWS}


def at(value):
    return value + NOISE / 10_000


def test_a_network_equals_the_longest_window_it_is_clearly_better_than():
    assert [claims.window_equal(at(kl), WINDOWS) for kl in (0.3, 0.15, 0.05, 0.02, 0.002)] == [0, 1, 2, 4, 8]
    assert claims.window_equal(WINDOWS[2], WINDOWS) == 1


def test_c13():
    def judged(bijection=0.05, fixed=0.05, header=0.05):
        both = {"transformer": at(0.001), "mamba": at(0.05)}
        transport = {"fixed": both, "header": both | {"mamba": at(header), "transformer": at(fixed)}}
        return claims.c13({"transformer": at(0.01), "mamba": at(bijection)}, at(1.0), transport, TUNED)

    assert judged().verdict == "holds"
    assert judged(bijection=0.11).verdict == "holds in part"
    assert judged(header=0.1).verdict == "holds in part"
    assert "mamba: bijection 0.0500 bits, clearly better than a window of 2 (fixed, 0.050), 1 (header, 0.100)" in judged(header=0.1).because  # fmt: skip
    bad = dict.fromkeys(("transformer", "mamba"), at(0.1))
    nowhere = claims.c13({"transformer": at(0.01), "mamba": at(0.01)}, at(1.0), {"fixed": bad}, TUNED)
    assert nowhere.verdict == "does not hold here"


def test_c14():
    def judged(bijection, fixed, header):
        return claims.c14(at(bijection), at(1.0), {"fixed": at(fixed), "header": at(header)}, TUNED).verdict

    assert judged(0.01, 0.1, 0.1) == judged(0.01, 0.05, 0.04) == "holds"
    assert judged(0.5, 0.1, 0.1) == "holds in part"
    assert judged(0.01, 0.1, 0.02) == judged(0.01, 0.02, 0.1) == "does not hold here"


def test_c15():
    def judged(lstm, mamba, transformer=(1.0, 1.0)):
        shown = {"lstm": lstm, "mamba": mamba, "transformer": transformer}
        return claims.c15(
            {name: {4: torch.full((3,), a), 32: torch.full((3,), b)} for name, (a, b) in shown.items()}
        ).verdict

    assert judged((0.1, 0.1), (0.99, 0.5)) == "holds"
    assert judged((0.99, 0.3), (0.99, 0.5)) == "holds in part"
    assert judged((0.1, 0.1), (0.99, 0.5), (1.0, 0.9)) == "holds in part"
    assert judged((0.99, 0.99), (0.99, 0.96)) == "does not hold here"
    assert judged((0.1, 0.1), (0.2, 0.1)) == "holds in part"


def test_c16():
    assert claims.c16({"a": at(1.0), "b": at(0.995)}, {"a": at(1.0), "b": at(1.0)}).verdict == "holds"
    assert claims.c16({"a": at(1.0), "b": at(0.98)}, {"a": at(1.0), "b": at(1.0)}).verdict == "does not hold here"


def test_c17():
    flat, trivial = torch.full((20, 5), 0.01), torch.full((20, 5), 0.1)
    late = torch.cat([flat[:15], trivial[:5]])
    jump = torch.cat([flat[:10], trivial[:10]])
    assert claims.c17({"a": flat, "b": flat * 2}, trivial, 10).verdict == "holds"
    assert claims.c17({"a": flat, "b": late}, trivial, 10).verdict == "holds in part"
    verdict = claims.c17({"a": late, "b": jump}, trivial, 10)
    assert verdict.verdict == "does not hold here"
    assert verdict.because.endswith("a 55 %; b 100 %; no better than that predictor right after the horizon: b")


def test_no_verdict_rests_on_what_is_not_a_number():
    nan, still = torch.full((5,), torch.nan), dict.fromkeys(("sgd", "em", "tuned-sgd"), 0.0)
    with pytest.raises(ValueError, match="the gain on recall must be finite"):
        claims.c16({"recall": nan}, {"recall": nan})
    with pytest.raises(ValueError, match="still_falling"):
        claims.c5(dict.fromkeys(still, NOISE), still | {"em": math.nan})
    with pytest.raises(ValueError, match="the divergence of a must be finite"):
        claims.c17({"a": torch.full((20, 5), torch.nan)}, torch.ones(20, 5), 10)
    with pytest.raises(ValueError, match="horizon must be at most 15"):
        claims.c17({"a": torch.ones(20, 5)}, torch.ones(20, 5), 20)


def test_c18():
    mixing = {"softmax": torch.full((3,), 0.99), "linear": torch.full((3,), 0.7), "fixed": torch.full((3,), 0.2)}
    ratio = {"transformer": 3.0, "mamba": 1.0, "lstm": 1e-12}
    fails, binds = ({"lstm": {4: torch.full((3,), a)}} for a in (0.3, 0.97))
    assert claims.c18(mixing, ratio, fails).verdict == "holds"
    assert claims.c18(mixing, ratio, binds).verdict == "holds in part"
    assert "lstm (which binds at N = 4)" in claims.c18(mixing, ratio, binds).because
    assert claims.c18(mixing | {"fixed": torch.full((3,), 0.96)}, ratio, fails).verdict == "does not hold here"
    assert claims.c18(mixing | {"softmax": torch.full((3,), 0.9)}, ratio, fails).verdict == "does not hold here"


def test_c7():
    classes = [4, 8, 16]

    def judged(learned, shuffled):
        return claims.c7(*(torch.stack([at(x) for x in ranks]) for ranks in (learned, shuffled)), classes).verdict

    assert judged((3, 3, 4), (3, 6, 12)) == "holds"
    assert judged((3, 4, 4), (3, 6, 12)) == "holds in part"  # 4 > 7 / 2
    assert judged((3, 3, 4), (3, 3, 12)) == "holds in part"
    assert judged((3, 4, 4), (3, 3, 12)) == "does not hold here"  # clearly below once, and clearly above once
    assert judged((3, 7, 15), (3, 7, 15)) == "does not hold here"
    with pytest.raises(ValueError, match="one of them 8 or more, got \\[2, 4, 6\\]"):
        claims.c7(torch.ones(3, 5), torch.ones(3, 5), [2, 4, 6])
    with pytest.raises(ValueError, match="classes must be the 3 of the ranks"):
        claims.c7(torch.ones(3, 5), torch.ones(3, 5), [8, 16])
    with pytest.raises(ValueError, match="none below 2"):
        claims.c7(torch.ones(2, 5), torch.ones(2, 5), [1, 16])


def test_c8():
    def judged(aligned, random, **controls):
        return claims.c8(at(aligned), at(random), {name: at(value) for name, value in controls.items()})

    assert judged(0.9, 0.1, strongest=0.3, shuffled=0.4).verdict == "holds"
    verdict = judged(0.4, 0.1, strongest=0.3, shuffled=0.4)
    assert verdict.verdict == "holds in part"
    assert verdict.because.endswith("not clearly more than: shuffled")
    assert judged(0.1, 0.1, strongest=0.05).verdict == "does not hold here"


def test_c9_and_c10():
    assert claims.c9(at(0.95), at(0.3), at(0.2)).verdict == "holds"
    assert claims.c9(at(0.5), at(0.3), at(0.2)).verdict == "holds in part"  # it tells of entropy, and is not entropy
    assert claims.c9(at(0.95), at(0.95), at(0.2)).verdict == "does not hold here"
    assert claims.c9(at(0.95), at(0.2), at(0.95)).verdict == "does not hold here"
    assert claims.c10(at(0.1), at(0.3), at(0.2)).verdict == "holds"
    assert claims.c10(at(0.25), at(0.3), at(0.2)).verdict == "holds in part"
    assert claims.c10(at(0.4), at(0.3), at(0.2)).verdict == "does not hold here"


def test_c1_and_c2_have_the_limits_of_the_ledger():
    assert claims.c1(1e-7, 1e-12).verdict == "holds"
    assert claims.c1(1.1e-7, 1e-15).verdict == claims.c1(1e-9, 1.1e-12).verdict == "does not hold here"
    assert claims.c2({"scores": 2.0, "values": 1.9}).verdict == "holds"
    assert claims.c2({"scores": 2.0, "values": 1.0}).verdict == "does not hold here"
    with pytest.raises(ValueError, match="differences must be finite"):
        claims.c1(math.nan, 0.0)
    with pytest.raises(ValueError, match="slopes must not be empty"):
        claims.c2({})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: claims.c8(at(0.9), at(0.1), {}), "controls must not be empty"),
        (lambda: claims.c13({}, at(1.0), {}, {}), "transport must not be empty"),
        (lambda: claims.c14(at(0.1), at(1.0), {}, {}), "transport must not be empty"),
        (lambda: claims.c16({}, {}), "kl must not be empty"),
        (lambda: claims.c17({}, torch.ones(9, 5), 4), "kl must not be empty"),
        (lambda: claims.c4({}), "arm must be one of"),
        (lambda: claims.sign_flip_p(torch.ones(5, 3)), "differences must have 1 dimensions and no more"),
        (lambda: claims.freeze_step(torch.ones(5, 3), [1]), "losses must have 1 dimensions and no more"),
        (lambda: claims.c11({"em": torch.ones(5), "sgd": torch.ones(1)}, {"em": torch.ones(5), "sgd": torch.ones(5)}), "must have the same seeds"),
    ],
)  # fmt: skip
def test_from_nothing_no_verdict_follows(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_seeds_that_do_not_pair_are_named():
    with pytest.raises(ValueError, match="trained, untrained, shuffled must have the same seeds, got shapes"):
        claims.c9(torch.ones(5), torch.ones(6), torch.ones(5))
    with pytest.raises(ValueError, match=r"controls\['random'\] must have the same seeds"):
        claims.c8(torch.ones(5), torch.ones(5), {"random": torch.ones(6)})
