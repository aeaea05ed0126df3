#!/usr/bin/env python3
"""Times one training step (forward, loss, backward) of a bench model in PyTorch.

Answers one line of JSON for each line on standard input, so that another program can alternate with it:
    pytorch.py MODEL BATCH [--threads 2] [--layout nchw|channels-last] [--sequence 128] [--trainer plain|opacus|fastDP]
`plain` trains without privacy. Opacus and fastDP clip (their step is part of what is timed); they have to be installed.
Memory is the highest resident set during a step, less what was resident before.
"""
import argparse
import json
import sys
import time

import torch

from pytorch_models import MODELS, workload


def plain(model, x, loss):
    def step():
        for p in model.parameters():
            p.grad = None
        loss(model(x)).backward()
    return step


def opacus(model, x, loss):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    model = GradSampleModule(model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=len(x))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(model(x)).backward()
        optimizer.step()
    return step


def fast_dp(model, x, loss):
    from fastDP import PrivacyEngine
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = PrivacyEngine(model, batch_size=len(x), sample_size=50000, epochs=1, target_epsilon=8,
                           clipping_mode='MixOpt', clipping_style='all-layer')
    engine.attach(optimizer)

    def step():
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return step


TRAINERS = {'plain': plain, 'opacus': opacus, 'fastDP': fast_dp}


def resident(field):
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('model', choices=MODELS)
    parser.add_argument('batch', type=int)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--layout', choices=['nchw', 'channels-last'], default='nchw')
    parser.add_argument('--sequence', type=int, default=128)
    parser.add_argument('--trainer', choices=TRAINERS, default='plain')
    return parser.parse_args()


def say(**facts):
    print(json.dumps(facts), flush=True)


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    model, x, loss = workload(given.model, given.batch, given.sequence)
    if given.layout == 'channels-last':
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    parameters = sum(p.numel() for p in model.parameters())
    try:
        step = TRAINERS[given.trainer](model, x, loss)
    except Exception as error:  # not installed, or a layer that it does not take: said to whoever asked
        say(failed=f'{given.trainer}: {error}')
        return
    say(ready=True, version=torch.__version__, threads=torch.get_num_threads(), parameters=parameters)
    for _ in sys.stdin:
        with open('/proc/self/clear_refs', 'w') as refs:
            refs.write('5')
        before = resident('VmRSS')
        start = time.perf_counter()
        step()
        ms = (time.perf_counter() - start) * 1000
        say(ms=ms, peakMiB=resident('VmHWM') - before)


main()
