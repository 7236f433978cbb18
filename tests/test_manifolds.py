"""Diagnostics of networks on points whose answer is planted, and on networks."""

import dataclasses
import math

import pytest
import torch
from sklearn.linear_model import LinearRegression

from bayesattn_core import geometry, manifolds, networks, tunnels


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(0)


def test_a_planted_entropy_coordinate_is_found_at_fixed_position(draw):
    entropy = torch.rand(200, 5, generator=draw, dtype=torch.float64)
    axis = torch.randn(1, 7, generator=draw, dtype=torch.float64)
    points = 10 * entropy[..., None] * axis + 0.01 * torch.randn(200, 5, 7, generator=draw, dtype=torch.float64)
    overall, fixed = manifolds.entropy_correlation(points, entropy)
    assert overall > 0.99
    assert fixed > 0.99
    shuffled = entropy[torch.randperm(200, generator=draw)]
    assert manifolds.entropy_correlation(points, shuffled)[1] < 0.2
    by_position = entropy[:1].expand(200, -1)  # entropy a function of position: nothing is left at fixed position
    points = by_position[..., None] * axis + 0.001 * torch.randn(200, 5, 7, generator=draw, dtype=torch.float64)
    overall, fixed = manifolds.entropy_correlation(points, by_position)
    assert overall > 0.9
    assert math.isnan(fixed)


def test_a_coordinate_that_ranks_without_fault_has_1_whatever_the_ties(draw):
    entropy = torch.randint(0, 3, (200, 5), generator=draw).double()
    told = entropy + 0.1 * torch.rand(200, 5, generator=draw, dtype=torch.float64)
    overall, fixed = manifolds.entropy_correlation(told[..., None], entropy + 1e-9 * told)
    assert overall == pytest.approx(1)
    assert fixed == pytest.approx(1)
    assert geometry.spearman(told.mT, entropy.mT).mean() < 0.96
    assert manifolds.entropy_correlation(entropy[..., None], entropy)[1] == pytest.approx(1)  # tied alike: not above 1
    points = torch.cat([told[..., None], torch.zeros(200, 5, 1)], -1)
    tokens = torch.randint(0, 2, (200, 5), generator=draw)
    assert manifolds.entropy_correlation_within(points, entropy, tokens) == pytest.approx(1)


def test_at_a_position_where_the_coordinate_is_the_same_nothing_is_ranked(draw):
    entropy = torch.rand(50, 3, generator=draw, dtype=torch.float64)
    points = entropy[..., None].clone()
    points[:, 1] = 0.5
    assert manifolds.entropy_correlation(points, entropy)[1] == pytest.approx(1)


def test_within_tokens_only_what_goes_beyond_the_token_counts(draw):
    tokens = torch.randint(0, 3, (400, 6), generator=draw)
    entropy = torch.rand(400, 6, generator=draw, dtype=torch.float64)
    means = 100 * torch.randn(3, 7, generator=draw, dtype=torch.float64)
    axis = torch.randn(1, 7, generator=draw, dtype=torch.float64)
    noise = 0.001 * torch.randn(400, 6, 7, generator=draw, dtype=torch.float64)
    points = means[tokens] + 10 * entropy[..., None] * axis + noise
    assert manifolds.entropy_correlation(points, entropy)[1] < 0.9  # the tokens are what varies most
    assert manifolds.entropy_correlation_within(points, entropy, tokens) > 0.99
    assert manifolds.entropy_correlation_within(means[tokens] + noise, entropy, tokens) < 0.2
    shown = torch.nn.functional.one_hot(tokens).double() @ means  # nothing but tokens
    assert math.isnan(manifolds.entropy_correlation_within(shown, entropy, tokens))
    few = slice(0, 20)  # about seven of twenty sequences share a token
    assert math.isnan(manifolds.entropy_correlation_within(points[few], entropy[few], tokens[few]))
    by_token = tokens.double()  # entropy a function of the token: nothing is left
    assert math.isnan(manifolds.entropy_correlation_within(points, by_token, tokens))


def test_readable_is_the_share_that_the_reader_tells(draw):
    settings, _ = small("lstm")
    fit, judge = (manifolds.fresh_batch(settings, which, 100) for which in (0, 1))

    class Entropy(torch.nn.Module):
        """The posterior's entropy in bits along one axis of eight, the rest noise."""

        norm, head = torch.nn.Identity(), torch.nn.Linear(8, 3)
        share = 1.0

        def record(self, inputs):
            batch = fit if torch.equal(inputs, fit.inputs) else judge
            entropy = torch.special.entr(batch.posterior).sum(-1, keepdim=True)
            noise = torch.randn(*entropy.shape[:2], 8, generator=draw)
            return [{"residual": noise + torch.nn.functional.pad(100 * self.share * entropy, (3, 4))}]

    told = Entropy()
    assert manifolds.measure(told, fit, judge, draw)["readable"] > 0.99
    told.share = 0.0
    assert abs(manifolds.measure(told, fit, judge, draw)["readable"]) < 0.02


def test_the_reader_is_the_planted_axis(draw):
    points = torch.randn(500, 6, generator=draw, dtype=torch.float64)
    direction = torch.randn(6, generator=draw, dtype=torch.float64)
    axis = manifolds.reader(points, points @ direction)[:, 0]
    assert torch.allclose(axis, direction, atol=1e-3)


def small(architecture):
    settings = networks.settings("hmm-fixed-sticky", architecture, parameters=4000, layers=2)
    return settings, networks.build(settings)


@pytest.mark.parametrize("architecture", ["transformer", "mamba", "lstm", "mlp"])
def test_measures_of_a_network(architecture, draw):
    settings, model = small(architecture)
    fit, judge = (manifolds.fresh_batch(settings, which, 40) for which in (0, 1))
    assert not torch.equal(fit.inputs, judge.inputs)
    found = manifolds.measure(model, fit, judge, draw)
    assert ("keys" in found) == (architecture == "transformer")
    assert set(found) >= {"correlation_within", "correlation_within_shuffled"}
    for name in (
        "correlation_within",
        "correlation_within_shuffled",
        "stream_within",
    ):  # no twenty of forty share a token; and see below
        found.pop(name)
    assert all(math.isfinite(value) for value in found.values())
    evaluated = networks.evaluate(model, judge)["kl"].mean().item()
    assert found["kl"] == pytest.approx(evaluated, rel=1e-4)
    if architecture == "transformer":
        keys = torch.stack([block["keys"] for block in model.record(judge.inputs)])
        for name, of in (("keys", keys), ("keys_centred", keys - keys.mean(-2, keepdim=True))):
            cosine = geometry.key_cosine(of, judge.inputs[:, None]).mean().item()
            assert found[name] == pytest.approx(cosine, rel=1e-4)
        assert found["keys_centred"] != pytest.approx(found["keys"], rel=1e-5)


def test_once_erased_no_line_tells_it_and_points_move_along_one_direction(draw):
    entropy = torch.rand(400, generator=draw, dtype=torch.float64)
    told = entropy - entropy.mean()
    noise = torch.randn(400, 5, generator=draw, dtype=torch.float64) * torch.tensor([3.0, 1, 0.1, 1, 1]).double()
    noise = noise - torch.outer(told, told @ noise) / told.square().sum()  # says nothing of the entropy
    direction = torch.randn(1, 5, generator=draw, dtype=torch.float64)
    points = noise @ torch.randn(5, 5, generator=draw, dtype=torch.float64) + entropy[:, None] * direction
    left = manifolds.erased(points, points, entropy)
    before, after = (LinearRegression().fit(x.numpy(), entropy.numpy()).score(x.numpy(), entropy.numpy()) for x in (points, left))  # fmt: skip
    assert before > 0.2
    assert after < 1e-6
    change = points - left
    along = change @ direction.mT / direction.square().sum()
    assert torch.allclose(change, along @ direction, atol=1e-4)
    rest = geometry.without(points, manifolds.reader(points, entropy))  # to remove the reader's own axis is less
    assert LinearRegression().fit(rest.numpy(), entropy.numpy()).score(rest.numpy(), entropy.numpy()) > 0.03


def test_removing_what_the_network_reads_costs_and_a_silent_axis_does_not(draw):
    """A head that reads one axis of the residual alone."""
    settings, _ = small("mlp")
    fit, judge = (manifolds.fresh_batch(settings, which, 100) for which in (0, 1))

    class Told(torch.nn.Module):
        """The exact log posterior, written along the first axes of a wide residual stream; a head that reads it."""

        norm = torch.nn.Identity()

        def record(self, inputs):
            batch = fit if torch.equal(inputs, fit.inputs) else judge
            told = torch.nn.functional.pad(batch.posterior.log(), (0, 61))
            return [{"residual": told}]

        def head(self, residual):
            return residual[..., :3]

    found = manifolds.measure(Told(), fit, judge, draw)
    moved = {name: found[f"moved_{name}"] for name in ("entropy", "line", "first", "random")}
    assert moved["line"] > moved["random"]  # it goes along what varies most
    assert found["ceiling"] == pytest.approx(1, abs=0.01)  # few histories, so few entropies, at the first positions
    assert found["correlation_within"] > 3 * found["correlation_within_shuffled"]
    assert found["kl_without_line"] > 10 * found["kl_without_random"]  # random lines move along what varies most
    told = [batch.posterior.double().log().flatten(0, 1) for batch in (fit, judge)]
    entropy = torch.special.entr(fit.posterior.double()).sum(-1).flatten() / math.log(2)
    wide = [torch.nn.functional.pad(points, (0, 61)) for points in told]
    left = manifolds.erased(wide[1], wide[0], entropy)[:, :3]
    by_hand = tunnels.kl(judge.posterior, left.view_as(judge.posterior).log_softmax(-1), judge.supervised).mean
    assert found["kl_without_entropy"] == pytest.approx(by_hand, rel=1e-3)
    spread = (told[1] - told[1].mean(0)).square().sum()
    assert moved["entropy"] == pytest.approx(((left - told[1]).square().sum() / spread).item(), rel=1e-3)
    first = geometry.principal_axes(wide[0], 1)[0]
    assert moved["first"] == pytest.approx(
        (((wide[1] - wide[1].mean(0)) @ first).square().sum() / spread).item(), rel=1e-6
    )
    assert by_hand != pytest.approx(found["kl_without_first"], rel=1e-2)
    assert abs(found["kl"]) < 1e-6
    assert found["kl_without_first"] > 0.05
    assert found["kl_without_random"] < found["kl_without_first"] / 5


def test_what_the_head_cannot_read_is_not_measured_as_read(draw):
    """Entropy in the length of the stream alone; a LayerNorm before the head makes all lengths the same."""
    settings, _ = small("mlp")
    fit, judge = (manifolds.fresh_batch(settings, which, 100) for which in (0, 1))
    ways = {id(batch): torch.randn(*batch.inputs.shape, 16, generator=draw) for batch in (fit, judge)}

    class Long(torch.nn.Module):
        norm, head = torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)

        def record(self, inputs):
            batch = fit if torch.equal(inputs, fit.inputs) else judge
            entropy = torch.special.entr(batch.posterior).sum(-1, keepdim=True)
            way = self.norm(ways[id(batch)]) / 4
            return [{"residual": way * (1 + entropy) + 0.0}]

    found = manifolds.measure(Long(), fit, judge, draw)
    assert found["length_fixed"] > 0.95
    assert found["bare_fixed"] == pytest.approx(found["correlation_fixed"], abs=1e-3)  # a gain of 1 and no bias, as yet
    assert found["correlation_fixed"] < 0.2
    assert found["moved_entropy"] < 0.1


def test_random_keys_are_one_for_each_token(draw):
    """Turned by their positions as the keys are: so the keys of a network whose maps to keys are tokens drawn at random."""
    settings, model = small("transformer")
    fit, judge = (manifolds.fresh_batch(settings, which, 40) for which in (0, 1))
    found = manifolds.measure(model, fit, judge, draw)
    assert settings.tunnel.vocabulary == 3
    assert found["keys_random"] == pytest.approx(0.637, abs=0.1)  # two dimensions a head: 2 / pi
    still = dataclasses.replace(
        settings, positions="sinusoidal"
    )  # not turned: with three tokens the mean takes most away
    unturned = manifolds.measure(networks.build(still), fit, judge, draw)
    assert unturned["keys_centred_random"] > unturned["keys_random"] + 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: manifolds.entropy_correlation(torch.rand(9, 4, 3), torch.ones(9, 4)), ValueError, "entropy must vary, got 1"),
        (lambda: manifolds.reader(torch.rand(9, 3), torch.ones(9)), ValueError, "told must vary, got 1"),
        (lambda: manifolds.erased(torch.rand(9, 3), torch.ones(9, 3), torch.rand(9)), ValueError, "points must not all be"),
        (lambda: manifolds.without_tokens(torch.rand(9, 4, 3), -torch.ones(9, 4).long()), ValueError, "tokens must be int64"),
        (lambda: manifolds.without_tokens(torch.rand(9, 4, 3), torch.ones(4).long()), ValueError, "tokens must have"),
        (lambda: manifolds.without_tokens(torch.rand(9, 4, 3), torch.ones(1, 4).long()), ValueError, "tokens must have size 9"),
        (lambda: manifolds.entropy_correlation(torch.rand(2, 9, 4, 3), torch.rand(9, 4)), ValueError, "points must have 3 dim"),
        (lambda: manifolds.entropy_correlation_within(torch.rand(9, 4, 3), torch.rand(9, 1), torch.ones(9, 4).long()), ValueError, "entropy must have size 4"),
        (lambda: manifolds.reader(torch.rand(2, 9, 3), torch.rand(2, 9)), ValueError, "points must have 2 dimensions and no more"),
        (lambda: manifolds.along_training([], torch.ones(4, 4).long()), ValueError, "layers must not be empty"),
        (lambda: manifolds.along_training([dict.fromkeys(("attention", "keys", "values"), torch.rand(2, 4, 3, 5, 5))], torch.ones(5).long()), ValueError, "labels must have shape"),
        (lambda: manifolds.probes({"probe@x/0/keys": torch.ones(1)}), ValueError, "weights must name probes"),
        (lambda: manifolds.probes({"probe@0/1/keys": torch.ones(1)}), ValueError, "of layers from 0"),
        (lambda: manifolds.probes({"probe@0/0/keys": torch.ones(1), "probe@5/0/values": torch.ones(1)}), ValueError, "the same probes at every step"),
        (lambda: manifolds.along_training([{"keys": torch.rand(2, 4, 3, 5, 2)}], torch.ones(4, 5).long()), ValueError, "name must be one of keys"),
        (lambda: manifolds.reader(torch.rand(9, 3), torch.rand(9).double()), TypeError, "told must have the dtype"),
        (lambda: manifolds.fresh_batch(None, 0), TypeError, "settings must be networks.Settings, got NoneType"),
    ],
)  # fmt: skip
def test_what_has_no_answer_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
