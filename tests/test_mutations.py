"""Deliberate mistakes in the closed forms: each must be caught by the checks that `make test` runs."""

import ast
import types
from pathlib import Path

import pytest

from bayesattn_core import attention, gradcheck

SOURCE = ast.unparse(ast.parse(Path(attention.__file__).read_text()))  # one statement a line, no comments

# name: (what the source says, what a mistake would say); in `gradients` unless the name says otherwise
MUTATIONS = {
    "residual: wrong sign": ("(head.probabilities - one_hot(", "(-head.probabilities + one_hot("),
    "residual: position weights forgotten": ("position_weights[..., None] * (head.prob", "1.0 * (head.prob"),
    "upstream: product transposed": ("U = residual @ W_O.mT", "U = residual @ W_O.flip(-1).mT"),
    "upstream: sign": ("U = residual @ W_O.mT", "U = -residual @ W_O.mT"),
    "compatibility: queries for values": ("B = (U @ head.values.mT)", "B = (U @ head.contexts.mT)"),
    "compatibility: mask forgotten": (
        "(U @ head.values.mT).masked_fill(~visible(X.shape[-2], causal, X.device), 0.0)",
        "(U @ head.values.mT)",
    ),
    "advantage law: baseline dropped": ("dS = A * (B - baseline)", "dS = A * B"),
    "advantage law: sign": ("dS = A * (B - baseline)", "dS = -A * (B - baseline)"),
    "advantage law: attention forgotten": ("dS = A * (B - baseline)", "dS = B - baseline"),
    "advantage law: plain mean as baseline": ("baseline = (A * B).sum(-1", "baseline = B.mean(-1"),
    "queries: scale forgotten": ("dQ = dS @ head.keys * scale", "dQ = dS @ head.keys"),
    "queries: product transposed": ("dQ = dS @ head.keys", "dQ = dS.mT @ head.keys"),
    "keys: scale forgotten": ("dK = dS.mT @ head.queries * scale", "dK = dS.mT @ head.queries"),
    "keys: product transposed": ("dK = dS.mT @ head.queries", "dK = dS @ head.queries"),
    "values: product transposed": ("dV = A.mT @ U", "dV = A @ U"),
    "values: sign": ("dV = A.mT @ U", "dV = -(A.mT @ U)"),
    "W_Q: keys' gradient": ("W_Q=X.mT @ dQ", "W_Q=X.mT @ dK"),
    "W_K: sign": ("W_K=X.mT @ dK", "W_K=-X.mT @ dK"),
    "W_V: attention twice": ("W_V=X.mT @ dV", "W_V=X.mT @ A.mT @ dV"),
    "W_O: values for contexts": ("W_O=head.contexts.mT @ residual", "W_O=head.values.mT @ residual"),
    "W_O: position weights twice": (
        "head.contexts.mT @ residual",
        "head.contexts.mT @ (position_weights[..., None] * residual)",
    ),
    "scale: square root forgotten": ("scale = 1 / math.sqrt(head.queries", "scale = 1 / (head.queries"),
    "forward: mask forgotten": (
        "S = S.masked_fill(~visible(X.shape[-2], causal, X.device), -math.inf)",
        "S = S",
    ),
    "forward: scale forgotten": ("return queries @ keys.mT / math.sqrt(queries.shape[-1])", "return queries @ keys.mT"),
    "forward: one too few seen": ("ones.tril() if causal", "ones.tril(1) if causal"),
    "blocks: residual unweighted": ("(lp[rows].exp() - y[rows]) * w_r[rows]", "(lp[rows].exp() - y[rows]) * w.mean()"),
    "blocks: baseline dropped": ("U[:, d_v] = -(U * g[rows]).sum(-1)", "U[:, d_v] = 0"),
    "blocks: mask forgotten": (
        "if causal:\n                A[:, first:]",
        "if not causal:\n                A[:, first:]",
    ),
    "blocks: queries' scale forgotten": ("dQ[..., :d_k] * scale", "dQ[..., :d_k]"),
    "blocks: scores' scale forgotten": ("@ runs(W_Q, 2) * scale)", "@ runs(W_Q, 2))"),
    "blocks: values overwritten": ("dv[seen].addmm_(A.mT, U)", "dv[seen] = A.mT @ U"),
    "blocks: keys overwritten": ("dk[seen].addmm_(dS.mT, q[rows])", "dk[seen] = dS.mT @ q[rows]"),
    "blocks: attention forgotten": ("(U @ v[seen].mT).mul_(A)", "U @ v[seen].mT"),
    "blocks: hidden columns": (
        "(slice(first, last), slice(0, last if causal else T))",
        "(slice(first, last), slice(0, last))",
    ),
    "blocks: padding taken for a value": ("(G[..., :d_v], residual)", "(G[..., 1:d_v + 1], residual)"),
}


def mutant(old: str, new: str) -> types.ModuleType:
    assert SOURCE.count(old) == 1, f"the source must hold {old!r} once, holds it {SOURCE.count(old)} times"
    module = types.ModuleType("bayesattn_core.mutant")
    module.__package__ = "bayesattn_core"
    exec(compile(SOURCE.replace(old, new), "mutant", "exec"), module.__dict__)
    return module


def caught(module) -> bool:
    """Whether the gradient checks, or the comparison of blocks with the plain forms, see anything wrong."""
    for case in gradcheck.random_cases():
        try:
            if not gradcheck.check_head(case, module.gradients, differences=False).passed:
                return True
            _, plain = attention.gradients(*case)
            _, _, blocked = module.blockwise(*case, block=3)
            if any((blocked[n] - getattr(plain, n)).abs().max() > 1e-13 for n in attention.WEIGHTS):
                return True
        except (RuntimeError, ValueError):  # a mistake that no longer fits together
            return True
    return False


def test_the_unchanged_source_is_not_caught():
    assert not caught(mutant('"""One causal attention head', '"""One attention head'))


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_caught(name):
    assert caught(mutant(*MUTATIONS[name]))


def test_finite_differences_alone_catch_a_mistake():
    case = next(c for c in gradcheck.random_cases() if c.X.shape[-2] > 2)
    broken = mutant(*MUTATIONS["advantage law: baseline dropped"])
    report = gradcheck.check_head(case, broken.gradients)
    wrong = {row.name for row in report.rows if row.judge == "finite difference" and not row.passed}
    assert wrong == {"scores", "queries", "keys", "W_Q", "W_K"}
    with pytest.raises(gradcheck.GradientMismatch, match="worst at index"):
        report.require()
