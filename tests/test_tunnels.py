"""The wind tunnels: exact posteriors against enumeration, draws against posteriors, trivial predictors, scores."""

import itertools
import math

import pytest
import torch

from bayesattn_core import tasks, tunnels
from bayesattn_core.tunnels import Batch, Bijection, FixedHMM, HeaderHMM, LookupTunnel, Recall, StickyTunnel

STICKY = (0.7, 0.95)
TUNNELS = {
    "bijection": Bijection(V=5, L=4),
    "bijection with replacement": Bijection(V=5, L=7, replacement=True),
    "recall": Recall(N=3, keys=6, values=4, queries=5),
    "header": HeaderHMM(S=3, O=4, K=6),
    "sticky header": HeaderHMM(S=4, O=3, K=6, sticky=STICKY),
    "fixed": FixedHMM(S=3, O=4, K=6),
    "sticky fixed": FixedHMM(S=4, O=4, K=6, sticky=STICKY, seed=2),
    "sticky chain": StickyTunnel(C=5, d_x=2, T=6, self_prob=0.6),
    "lookup": LookupTunnel(shown=6, K=3, C=4),
}
every_tunnel = pytest.mark.parametrize("tunnel", TUNNELS.values(), ids=TUNNELS.keys())
HMMS = ["header", "sticky header", "fixed", "sticky fixed"]


def draw(tunnel, sequences, seed=0, **options):
    return tunnel.draw(torch.Generator().manual_seed(seed), sequences, **options)


@every_tunnel
def test_one_interface(tunnel):
    batch = draw(tunnel, 50)
    B, T, C = 50, tunnel.T, tunnel.C
    if tunnel.vocabulary is None:
        assert batch.inputs.shape == (B, T, tunnel.d_x)
    else:
        assert tunnel.d_x is None
        assert batch.inputs.shape == (B, T)
        assert batch.inputs.dtype == torch.int64
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < tunnel.vocabulary
    assert (batch.supervised.shape, batch.supervised.dtype) == ((B, T), torch.bool)
    assert (batch.targets.shape, batch.targets.dtype) == ((B, T), torch.int64)
    assert not batch.targets[~batch.supervised].any()
    assert 0 <= batch.targets.min() <= batch.targets.max() < C
    predictors = tunnel.predictors(batch)
    assert list(predictors)[:3] == ["uniform", "constant", "memoryless"]
    for p in [batch.posterior, *predictors.values()]:
        assert (p.shape, p.dtype) == ((B, T, C), torch.float64)
        assert p.min() >= 0
        assert (p.sum(-1) - 1).abs().max() < 1e-12
        assert (p[~batch.supervised] == 1 / C).all()
    assert (batch.posterior.gather(-1, batch.targets[..., None]) > 0).all()


@every_tunnel
def test_draws_come_from_the_generator_alone(tunnel):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    batch, again, other = draw(tunnel, 8, seed=3), draw(tunnel, 8, seed=3), draw(tunnel, 8, seed=4)
    tunnel.predictors(batch)
    assert torch.equal(before, torch.get_rng_state())
    for part, same in zip(batch[:4], again[:4], strict=True):
        assert torch.equal(part, same)
    assert not torch.equal(batch.inputs, other.inputs)
    single = draw(tunnel, 8, seed=3, dtype=torch.float32)
    assert single.posterior.dtype == torch.float32
    assert torch.equal(single.posterior, batch.posterior.float())
    assert torch.equal(single.inputs, batch.inputs.to(single.inputs.dtype))
    for name, p in tunnel.predictors(single).items():
        assert torch.allclose(p.double(), tunnel.predictors(batch)[name], atol=1e-5), name


def assert_calibrated(p, targets, supervised):
    """The residual of `targets` against p has mean 0 for each class at each position, within 4.5 standard errors."""
    residual = (torch.nn.functional.one_hot(targets, p.shape[-1]) - p)[:, supervised.any(0)]
    error = residual.std(0) / math.sqrt(len(p))
    assert (residual.mean(0).abs() <= 4.5 * error + 1e-12).all()


@every_tunnel
def test_labels_follow_the_posterior_and_the_memoryless_answer(tunnel):
    batch = draw(tunnel, 8000, seed=5)
    predictors = tunnel.predictors(batch)
    assert_calibrated(batch.posterior, batch.targets, batch.supervised)
    assert_calibrated(predictors["memoryless"], batch.targets, batch.supervised)
    for p in (batch.posterior, predictors["constant"], predictors["memoryless"]):  # mean p(target) = mean Σ p²
        gap = (p.gather(-1, batch.targets[..., None])[..., 0] - (p**2).sum(-1)) * batch.supervised
        gap = gap.sum(-1)
        assert gap.mean().abs() <= 4 * gap.std() / math.sqrt(8000) + 1e-12
    if tunnel.vocabulary is not None:  # given each single token, at each position where it is asked
        for token in range(tunnel.vocabulary):
            for t in batch.supervised[0].nonzero()[:, 0].tolist():
                shown = batch.inputs[:, t] == token
                if shown.sum() > 300:
                    assert_calibrated(predictors["memoryless"][shown, t : t + 1], batch.targets[shown, t : t + 1],
                                      batch.supervised[shown, t : t + 1])  # fmt: skip


@every_tunnel
def test_memoryless_is_between_exact_and_uniform(tunnel):
    batch = draw(tunnel, 4000)
    predictors = tunnel.predictors(batch)
    scores = {name: tunnels.kl(batch.posterior, p.log(), batch.supervised).mean for name, p in predictors.items()}
    assert 0 < scores["memoryless"] <= scores["constant"] + 1e-12 <= scores["uniform"] + 2e-12
    exact = tunnels.kl(batch.posterior, batch.posterior.log(), batch.supervised)
    assert exact.mean == 0
    if isinstance(tunnel, FixedHMM):
        assert scores["memoryless"] < scores["constant"] < scores["uniform"]


# Bijection and recall


@pytest.mark.parametrize("tunnel", [Bijection(4, 3), Bijection(4, 4), Bijection(4, 6, replacement=True)])
def test_bijection_against_enumeration(tunnel):
    batch = draw(tunnel, 60)
    pairs = batch.inputs.reshape(60, tunnel.L, 2)
    for b, t in itertools.product(range(60), range(tunnel.L)):
        keys, values = pairs[b, :, 0].tolist(), (pairs[b, :, 1] - 4).tolist()
        counts = torch.zeros(4, dtype=torch.float64)
        for bijection in itertools.permutations(range(4)):
            if all(bijection[keys[s]] == values[s] for s in range(t)):
                counts[bijection[keys[t]]] += 1
        assert torch.allclose(batch.posterior[b, 2 * t], counts / counts.sum(), atol=1e-15)
        assert batch.targets[b, 2 * t] == values[t]


def test_bijection_supervises_keys_and_never_values():
    for tunnel in (Bijection(6, 6), Bijection(6, 9, replacement=True)):
        batch = draw(tunnel, 200)
        assert torch.equal(batch.supervised, (batch.inputs < 6))  # a key's token, and no value's
        asked = batch.inputs[:, 1:][batch.supervised[:, :-1]]
        assert torch.equal(asked - 6, batch.targets[batch.supervised])  # the next token is the answer
    distinct = draw(Bijection(6, 6), 200).inputs[:, ::2].sort(-1).values
    assert torch.equal(distinct, torch.arange(6).expand(200, 6))
    entropies = tasks.entropy(draw(Bijection(20, 19), 2).posterior[:, ::2]) / math.log(2)
    assert torch.allclose(entropies, torch.log2(20.0 - torch.arange(19).double()), atol=1e-12)


def test_the_uniform_predictor_on_the_paper_sized_bijection():
    tunnel = Bijection(V=20, L=19)
    batch = draw(tunnel, 10)
    uniform = tunnel.predictors(batch)["uniform"].log()
    assert tunnels.entropy_error(batch.posterior, uniform, batch.supervised).mean == pytest.approx(1.107, abs=0.01)


def test_counting_is_the_exact_answer_without_the_keys():
    tunnel = TUNNELS["recall"]
    batch = draw(tunnel, 20_000)
    counting = tunnel.predictors(batch)["counting"]
    assert_calibrated(counting, batch.targets, batch.supervised)
    tokens = batch.inputs[7, : 2 * tunnel.N].tolist()
    shown = [token - tunnel.keys for token in tokens[1::2]]
    assert counting[7, -1].tolist() == [shown.count(v) / tunnel.N for v in range(tunnel.values)]


def test_recall_against_a_dictionary():
    tunnel = TUNNELS["recall"]
    batch = draw(tunnel, 100)
    for b in range(100):
        row = batch.inputs[b].tolist()
        bound = {row[2 * n]: row[2 * n + 1] - tunnel.keys for n in range(tunnel.N)}
        assert len(bound) == tunnel.N
        answers = [bound[query] for query in row[2 * tunnel.N :]]
        assert batch.targets[b, 2 * tunnel.N :].tolist() == answers
        assert batch.posterior[b, 2 * tunnel.N :].argmax(-1).tolist() == answers
    assert torch.equal(batch.supervised[0], torch.arange(tunnel.T) >= 2 * tunnel.N)
    assert (batch.posterior[batch.supervised].max(-1).values == 1).all()


# Hidden Markov models


def enumerate_paths(prior, transition, emission, observations):
    """p(last state | observations) by summing over every hidden path."""
    S = len(prior)
    total = [0.0] * S
    for path in itertools.product(range(S), repeat=len(observations)):
        weight = prior[path[0]] * emission[path[0]][observations[0]]
        for t in range(1, len(path)):
            weight *= transition[path[t - 1]][path[t]] * emission[path[t]][observations[t]]
        total[path[-1]] += weight
    return torch.tensor(total, dtype=torch.float64) / sum(total)


@pytest.mark.parametrize("name", HMMS)
def test_filter_and_windows_against_all_hidden_paths(name):
    tunnel = TUNNELS[name]
    batch = draw(tunnel, 3)
    start, predictors = tunnel.T - tunnel.K, tunnel.predictors(batch)
    assert list(predictors)[3:] == ["window-1", "window-2", "window-4", "window-8"]
    for b in range(3):
        transition, emission = batch.extra["transition"][b], batch.extra["emission"][b]
        pi = torch.linalg.matrix_power(transition, 2000)[0].tolist()
        observations = batch.inputs[b, start:].tolist()
        for t in range(tunnel.K):
            exact = enumerate_paths(
                [1 / tunnel.S] * tunnel.S, transition.tolist(), emission.tolist(), observations[: t + 1]
            )
            assert torch.allclose(batch.posterior[b, start + t], exact, atol=1e-12)
            for n in tunnels.WINDOWS:
                last = observations[max(0, t + 1 - n) : t + 1]
                window = enumerate_paths(pi, transition.tolist(), emission.tolist(), last)
                assert torch.allclose(predictors[f"window-{n}"][b, start + t], window, atol=1e-9)


@pytest.mark.parametrize("name", ["header", "sticky header"])
def test_filter_against_hmmlearn(name):
    hmm = pytest.importorskip("hmmlearn.hmm")
    tunnel = TUNNELS[name]
    batch = draw(tunnel, 20)
    for b in range(20):
        model = hmm.CategoricalHMM(n_components=tunnel.S, n_features=tunnel.O)
        model.startprob_ = torch.full((tunnel.S,), 1 / tunnel.S, dtype=torch.float64).numpy()
        model.transmat_ = batch.extra["transition"][b].numpy()
        model.emissionprob_ = batch.extra["emission"][b].numpy()
        observations = batch.inputs[b, tunnel.header :, None].numpy()
        for t in range(1, tunnel.K + 1):
            last = torch.from_numpy(model.predict_proba(observations[:t])[-1])
            assert torch.allclose(batch.posterior[b, tunnel.header + t - 1], last, atol=1e-10)


@pytest.mark.parametrize("name", ["header", "sticky header"])
def test_the_header_states_the_matrices_exactly(name):
    tunnel = TUNNELS[name]
    S, O, K, Q = tunnel.S, tunnel.O, tunnel.K, tunnel.quantum  # noqa: E741
    batch = draw(tunnel, 500)
    rows = batch.inputs.tolist()
    marks = [O + Q, O + Q + 1, O + Q + 2]
    for b in range(5):  # read token by token, as the docstring describes the layout
        assert [rows[b][0], rows[b][1 + S * S], rows[b][2 + S * S + S * O]] == marks
        entries = [(token - (O - 1)) / Q for token in rows[b][: tunnel.header] if token not in marks]
        assert (
            entries == batch.extra["transition"][b].flatten().tolist() + batch.extra["emission"][b].flatten().tolist()
        )
    transition, emission = tunnel.decode_header(batch.inputs)
    for matrix, used in ((transition, batch.extra["transition"]), (emission, batch.extra["emission"])):
        assert (matrix.sum(-1) == Q).all()
        assert matrix.min() >= 1
        assert torch.equal(matrix.double() / Q, used)
    assert emission.min() >= 5  # the floor, 0.05
    filtered = tunnels.hmm_filter(transition.double() / Q, emission.double() / Q, batch.inputs[:, -K:])
    assert torch.equal(filtered, batch.posterior[:, -K:])
    if tunnel.sticky:
        stay = transition.diagonal(dim1=1, dim2=2)
        assert (stay.min(), stay.max()) == (70, 95)
        assert stay.double().mean().item() == pytest.approx(82.5, abs=0.7)
    else:
        assert transition.min() >= 5
    assert torch.equal(batch.supervised, (torch.arange(tunnel.T) >= tunnel.header).expand(500, -1))
    assert HeaderHMM().header == 53


def test_improbable_observations_do_not_underflow():
    transition = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]], dtype=torch.float64)
    emission = torch.tensor([[[1 - 3e-30, 2e-30, 1e-30], [1 - 3e-30, 1e-30, 2e-30]]], dtype=torch.float64)
    observations = torch.tensor([[1, 1, 2] * 20])
    # the same emissions but for a factor that all states share
    likelier = torch.tensor([[[0.0, 2, 1], [0.0, 1, 2]]], dtype=torch.float64) / 3
    exact = tunnels.hmm_filter(transition, likelier, observations)
    single = tunnels.hmm_filter(transition.float(), emission.float(), observations)
    assert (single.double() - exact).abs().max() < 1e-6


def test_quantise_is_exact_and_takes_ties_in_order():
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(1000, 7, generator=generator, dtype=torch.float64) ** 3
    total = torch.randint(14, 200, (1000,), generator=generator)
    shared = tunnels.quantise(rows, total, 2)
    assert torch.equal(shared.sum(-1), total)
    assert shared.min() >= 2
    ideal = 2 + (rows / rows.sum(-1, keepdim=True) * total[:, None] - 2).clamp_min(0)
    ideal = 2 + (ideal - 2) / (ideal - 2).sum(-1, keepdim=True) * (total[:, None] - 14)
    assert (shared - ideal).abs().max() < 1
    assert tunnels.quantise(torch.ones(6), 10).tolist() == [2, 2, 2, 2, 1, 1]
    many = tunnels.quantise(torch.ones(40, 100), 150)  # long rows, where an unstable sort would show
    assert torch.equal(many, 1 + (torch.arange(100) < 50).long().expand(40, -1))
    assert tunnels.quantise(torch.tensor([1.0, 0.0]), 2).tolist() == [1, 1]
    assert tunnels.quantise(torch.ones(1), torch.tensor(1)).tolist() == [1]


def test_fixed_parameters_are_fixed_and_states_follow_them():
    tunnel = FixedHMM(S=3, O=4, K=30, seed=7)
    transition, emission = (matrix / 100 for matrix in tunnel.matrices)
    first, second = draw(tunnel, 2000, seed=1), draw(tunnel, 3, seed=2)
    assert torch.equal(first.extra["transition"][0], second.extra["transition"][0])
    assert not torch.equal(transition, FixedHMM(S=3, O=4, K=30, seed=8).matrices[0] / 100)
    states, seen = first.targets, first.inputs
    for s in range(3):
        at = states[:, :-1] == s
        moved = torch.bincount(states[:, 1:][at], minlength=3) / at.sum()
        assert torch.allclose(moved, transition[s], atol=4.5 * 0.5 / math.sqrt(at.sum()))
        shown = torch.bincount(seen[states == s], minlength=4) / (states == s).sum()
        assert torch.allclose(shown, emission[s], atol=4.5 * 0.5 / math.sqrt((states == s).sum()))
    assert torch.allclose(torch.bincount(states[:, 0]) / 2000, torch.tensor(1 / 3), atol=0.05)


def test_trivial_entropy_errors_of_the_paper_sized_hmm():
    tunnel = HeaderHMM(S=5, O=5, K=20)
    batch = draw(tunnel, 5000)
    uniform = tunnel.predictors(batch)["uniform"].log()
    assert tunnels.entropy_error(batch.posterior, uniform, batch.supervised).mean == pytest.approx(0.4145, abs=0.005)
    assert tunnels.best_constant_entropy(batch.posterior, batch.supervised)[1] == pytest.approx(0.186, abs=0.01)


def window_scores(tunnel, batch, first=0):
    predictors = tunnel.predictors(batch)
    supervised = batch.supervised.clone()
    supervised[:, : tunnel.T - tunnel.K + first] = False
    return [tunnels.kl(batch.posterior, predictors[f"window-{n}"].log(), supervised).mean for n in tunnels.WINDOWS]


@pytest.mark.parametrize("kind", [HeaderHMM, FixedHMM])
@pytest.mark.parametrize("S", [3, 5])
@pytest.mark.parametrize("sticky", [None, STICKY], ids=["plain", "sticky"])
def test_longer_windows_are_better_and_short_ones_far_off_in_the_sticky_regime(kind, S, sticky):
    tunnel = kind(S, S, 20, sticky)
    batch = draw(tunnel, 2000)
    anywhere, filled = window_scores(tunnel, batch), window_scores(tunnel, batch, first=8)
    assert anywhere[0] > anywhere[1] > anywhere[2] > anywhere[3] > 0
    assert filled[0] > filled[1] > filled[2] > filled[3] > 0
    if sticky:  # also without the start, where a window does not know that the chain began uniformly
        assert min(anywhere[1], filled[1]) >= 0.07
        assert min(anywhere[2], filled[2]) >= 0.015
    else:
        assert anywhere[1] < 0.07


def test_short_windows_are_far_off_for_every_fixed_sticky_chain_of_five_states():
    for seed in range(8):
        tunnel = FixedHMM(5, 5, 20, STICKY, seed)
        scores = window_scores(tunnel, draw(tunnel, 2000))
        assert scores[1] >= 0.07
        assert scores[2] >= 0.015


# The tasks of "EM against SGD", and the scores


def test_the_sticky_tunnel_is_the_sticky_chain():
    tunnel = TUNNELS["sticky chain"]
    batch = draw(tunnel, 4)
    means = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(4, -1, -1)
    transition = tasks.ring_transition(5, 0.6)
    chain = tasks.sticky_chain(torch.Generator().manual_seed(0), transition, means, 6)
    assert torch.equal(batch.inputs, chain.inputs)
    assert torch.equal(batch.targets, chain.targets)
    assert torch.equal(batch.posterior, tasks.filter_predictive(chain))
    assert torch.allclose(tunnel.predictors(batch)["memoryless"], tasks.positionwise_predictive(chain), atol=1e-15)
    louder = StickyTunnel(T=4, noise=3.0, authors=True)
    assert louder.transition[0, 0].item() == pytest.approx(0.3498, abs=1e-4)
    noisy = draw(louder, 2)
    chain = tasks.Chain(None, noisy.inputs, None, louder.transition, louder.means)
    assert torch.allclose(noisy.posterior, tasks.filter_predictive(chain, 3.0), atol=1e-12)
    assert torch.allclose(louder.predictors(noisy)["memoryless"], tasks.positionwise_predictive(chain, 3.0), atol=1e-12)


def test_the_lookup_tunnel_is_the_lookup_task():
    tunnel = TUNNELS["lookup"]
    batch, task = draw(tunnel, 4), tasks.lookup(torch.Generator().manual_seed(0), 4, 6, K=3, C=4)
    assert torch.equal(batch.inputs, task.inputs.double())
    assert torch.equal(batch.targets[:, 1:], task.targets[:, 1:])
    assert torch.equal(batch.posterior, tasks.lookup_predictive(task, 4).double())
    assert not batch.supervised[:, 0].any()
    assert batch.supervised[:, 1:].all()


def test_scores_by_hand():
    exact = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]], [[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]])
    model = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]])
    supervised = torch.tensor([[False, True, False], [True, True, False]])
    score = tunnels.kl(exact, model.log(), supervised)
    half = 0.5 * math.log2(0.5 / 0.25) + 0.5 * math.log2(0.5 / 0.75)
    assert score.mean == pytest.approx((0 + 1 + half) / 3, abs=1e-6)
    assert score.per_position[:2].tolist() == pytest.approx([1, half / 2], abs=1e-6)
    assert score.per_position[2].isnan()
    both = torch.tensor([[True, False, False]] * 2)
    errors = tunnels.entropy_error(exact, model.log(), both)  # one bit too few, one too many: they do not cancel
    assert errors.mean == pytest.approx(1, abs=1e-6)
    assert tunnels.kl(exact, model.log(), both).mean == math.inf  # the model excludes what happens
    right = tunnels.accuracy(torch.tensor([[1, 0, 1], [0, 0, 0]]), model.log(), supervised)
    assert right.mean == pytest.approx(2 / 3)
    assert right.per_position[:2].tolist() == [1.0, 0.5]
    median, error = tunnels.best_constant_entropy(exact, torch.tensor([[True, True, False], [True, False, False]]))
    assert (median, error) == (0.0, pytest.approx(1 / 3))


def test_scores_agree_with_pytorch():
    tunnel = TUNNELS["sticky fixed"]
    batch = draw(tunnel, 50)
    log_p = torch.randn(50, tunnel.T, tunnel.C, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    score = tunnels.kl(batch.posterior, log_p, batch.supervised)
    reference = torch.nn.functional.kl_div(log_p.double(), batch.posterior, reduction="none").sum(-1) / math.log(2)
    assert score.mean == pytest.approx(reference.mean().item())
    assert torch.allclose(score.per_position, reference.mean(0))


@every_tunnel
def test_a_batch_moves_whole(tunnel):
    moved = draw(tunnel, 2).to("meta")
    assert {part.device.type for part in [*moved[:4], *moved.extra.values()]} == {"meta"}


@pytest.mark.cuda
@every_tunnel
def test_predictors_agree_on_cuda(tunnel):
    batch = draw(tunnel, 20)
    there = tunnel.predictors(batch.to("cuda"))
    for name, p in tunnel.predictors(batch).items():
        assert there[name].device.type == "cuda"
        assert torch.allclose(there[name].cpu(), p, atol=1e-12), name


TWO = (torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))  # no state shows symbol 1
PAIR = torch.full((1, 2, 2), 0.5), torch.full((1, 2, 2), 0.5).log(), torch.ones(1, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Bijection(V=1), ValueError, "V must be at least 2, got 1"),
        (lambda: Bijection(V=4, L=5), ValueError, "L must be at most 4, got 5"),
        (lambda: Bijection(replacement=1), TypeError, "replacement must be True or False, got 1"),
        (lambda: Recall(N=5, keys=4), ValueError, "keys must be at least 5, got 4"),
        (lambda: Recall(queries=0), ValueError, "queries must be at least 1, got 0"),
        (lambda: HeaderHMM(S=1), ValueError, "S must be at least 2, got 1"),
        (lambda: HeaderHMM(K=2.5), TypeError, "K must be a whole number, got 2.5"),
        (lambda: HeaderHMM(floor=0.2), ValueError, "floor must leave something to share out, got 0.2"),
        (lambda: HeaderHMM(quantum=5), ValueError, "floor must leave something to share out"),
        (lambda: HeaderHMM(sticky=0.7), TypeError, "sticky must be None or a pair"),
        (
            lambda: HeaderHMM(sticky=(0.7, 1.0)),
            ValueError,
            "sticky must hold a multiple of 1 / 100 and end by 96 / 100",
        ),
        (lambda: HeaderHMM(sticky=(0.9, 0.8)), ValueError, "sticky[1] must be finite and at least 0.9"),
        (lambda: HeaderHMM(sticky=(0.701, 0.709)), ValueError, "sticky must hold a multiple of 1 / 100"),
        (lambda: HeaderHMM(sharpness=1.5), ValueError, "sharpness must be finite"),
        (lambda: FixedHMM(seed=-1), ValueError, "seed must be at least 0, got -1"),
        (lambda: StickyTunnel(self_prob=2), ValueError, "self_prob must be finite"),
        (lambda: StickyTunnel(noise=0), ValueError, "noise must be finite and above 0"),
        (lambda: LookupTunnel(K=1), ValueError, "K must be at least 2, got 1"),
        (lambda: Bijection().draw(0, 3), TypeError, "generator must be a torch.Generator on the CPU, got 0"),
        (lambda: draw(Bijection(), 0), ValueError, "sequences must be at least 1, got 0"),
        (lambda: draw(Bijection(), 1, dtype=torch.int64), TypeError, "dtype must be a floating-point dtype"),
        (lambda: Bijection().predictors(3), TypeError, "batch must be a Batch, got int"),
        (lambda: Bijection().predictors(draw(Recall(), 1)), ValueError, "batch.posterior must have size"),
        (lambda: HeaderHMM().decode_header(torch.zeros(1, 9).long()), ValueError, "tokens must have size 73"),
        (lambda: tunnels.quantise(torch.ones(3), 2), ValueError, "total must be at least 3 x 1 for floors of 1, got 2"),
        (lambda: tunnels.quantise(-torch.ones(3), 9), ValueError, "rows must not be negative nor all zero"),
        (lambda: tunnels.hmm_window(*(torch.ones(1, 1, 1),) * 2, torch.zeros(1, 1).long(), 0), ValueError, "n must be"),
        (lambda: tunnels.kl(PAIR[0], torch.zeros(1, 2, 2), PAIR[2]), ValueError, "log_p must hold log-probabilities"),
        (lambda: tunnels.kl(PAIR[0], PAIR[1] * math.nan, PAIR[2]), ValueError, "log_p must hold log-probabilities"),
        (lambda: tunnels.kl(PAIR[0], PAIR[1][:, :1], PAIR[2]), ValueError, "log_p must have size 2"),
        (lambda: tunnels.entropy_error(PAIR[0], PAIR[1], ~PAIR[2]), ValueError, "supervised must be a bool mask"),
        (lambda: tunnels.accuracy(PAIR[2].long()[:, :1], *PAIR[1:]), ValueError, "targets must have size 2"),
        (
            lambda: tunnels.accuracy(PAIR[2].long() + 9, *PAIR[1:]),
            ValueError,
            "targets must be class indices from 0 to",
        ),
        (lambda: tunnels.kl(2 * PAIR[0], *PAIR[1:]), ValueError, "posterior must be probabilities"),
        (lambda: FixedHMM().parameters(None, 1), TypeError, "generator must be a torch.Generator on the CPU, got None"),
        (lambda: FixedHMM().parameters(torch.Generator(), 0), ValueError, "sets must be at least 1, got 0"),
        (
            lambda: tunnels.hmm_filter(*TWO, torch.tensor([[0, 2]])),
            ValueError,
            "observations must be symbols from 0 to 1",
        ),
        (
            lambda: tunnels.hmm_window(*TWO, torch.tensor([[0, 2]]), 1),
            ValueError,
            "observations must be symbols from 0",
        ),
        (
            lambda: tunnels.hmm_filter(2 * TWO[0], TWO[1], torch.tensor([[0]])),
            ValueError,
            "transition must be probabilities",
        ),
        (
            lambda: tunnels.hmm_filter(TWO[0], TWO[1] / 2, torch.tensor([[0]])),
            ValueError,
            "emission must be probabilities",
        ),
        (lambda: tunnels.hmm_filter(*TWO, torch.tensor([[0, 1]])), ValueError, "got one of probability 0 at [0, 1]"),
        (
            lambda: FixedHMM(seed=3).predictors(draw(FixedHMM(seed=2), 1)),
            ValueError,
            "matrices, seed 3, got one of others",
        ),
        (
            lambda: FixedHMM().predictors(draw(FixedHMM(), 1)._replace(extra={})),
            ValueError,
            "with its matrices, got none",
        ),
        (lambda: HeaderHMM().decode_header(torch.zeros(1, 73).long()), ValueError, "tokens must state rows"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_a_batch_of_the_wrong_kind_of_hmm_is_refused():
    with pytest.raises(ValueError, match="must have size"):
        HeaderHMM().predictors(draw(FixedHMM(), 1))
    assert isinstance(draw(FixedHMM(), 1), Batch)
