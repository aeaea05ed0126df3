#!/usr/bin/env python3
"""Times one training step (forward, loss, backward) of a bench model in PyTorch, without privacy.

Answers one line of JSON for each line on standard input, so that another program can alternate with it:
    pytorch.py MODEL BATCH THREADS LAYOUT      (LAYOUT: nchw or channels-last)
Memory is the highest resident set during a step, less what was resident before the first.
"""
import json
import sys
import time

import torch
from torch import nn


def vgg(stages):
    layers, channels = [], 3
    for convolutions, width in zip(stages, (64, 128, 256, 512, 512)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)


def cnn_tanh():
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)), (1, 28, 28)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                         nn.Linear(256, 10)), (1, 28, 28)


MODELS = {
    'vgg11': lambda: vgg((1, 1, 2, 2, 2)), 'vgg13': lambda: vgg((2, 2, 2, 2, 2)),
    'vgg16': lambda: vgg((2, 2, 3, 3, 3)), 'vgg19': lambda: vgg((2, 2, 4, 4, 4)),
    'cnn-tanh': cnn_tanh, 'mlp': mlp,
}


def resident(field):
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def main():
    name, batch, threads, layout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, shape = MODELS[name]()
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
    if layout == 'channels-last':
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    loss = nn.CrossEntropyLoss()
    print(json.dumps({'ready': True, 'version': torch.__version__, 'threads': torch.get_num_threads()}), flush=True)
    for _ in sys.stdin:
        with open('/proc/self/clear_refs', 'w') as refs:
            refs.write('5')
        before = resident('VmRSS')
        start = time.perf_counter()
        for p in model.parameters():
            p.grad = None
        loss(model(x), y).backward()
        ms = (time.perf_counter() - start) * 1000
        print(json.dumps({'ms': ms, 'peakMiB': resident('VmHWM') - before}), flush=True)


main()
