"""What the book computes with: attention's gradients, tasks with exact posteriors, training, diagnostics.

Modules, each using only those before it:

    checks      input checks, devices, files written whole
    attention   the head: forward pass and every closed-form gradient
    gradcheck   finite differences on any scalar function of named tensors
    em          expectation-maximisation beside attention: mixtures, the majorised M-step
    tasks       tasks with exact posteriors
    tunnels     tasks with exact posteriors for networks, behind one interface
    scan        the selective scan of Mamba, with its gradients by hand
    models      Transformer, Mamba, LSTM and MLP behind one interface
    routing     every layer as Σ_s w_ts z_s: the routing weights of each architecture
    records     recorded runs
    training    gradient descent on the head
    networks    training of networks on wind tunnels: one loop, checkpoints
    geometry    diagnostics: distances, paths, principal axes
    manifolds   what networks hold inside, against the exact posterior
    experiments the experiments on the head: settings, arms, controls
    recorded    the recorded runs, each made again by one command
    figures     the style and the register of figures
    results     what chapters record and quote
    claims      verdicts on the paper's claims, as code over recorded numbers
    ledger      the claims: what the chapters recorded about each, and the verdicts together
    pages       what the built pages add
    __main__    the commands
"""

__version__ = "0.1.0"
