"""The bench models in plain PyTorch (1.13 or newer), in the widths, initial layers and losses of the builders."""
import torch
from torch import nn
from torch.nn import functional as F


def vgg(stages):
    layers, channels = [], 3
    for convolutions, width in zip(stages, (64, 128, 256, 512, 512)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def cnn_tanh():
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Residual(nn.Module):
    """Convolutions with GroupNorm, added to their input."""

    def __init__(self, inputs, filters, stride, bottleneck):
        super().__init__()
        sizes = [(filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1)] if bottleneck else [(filters, 3, stride), (filters, 3, 1)]
        layers, channels = [], inputs
        for outputs, kernel, step in sizes:
            layers += [conv(channels, outputs, kernel, step), nn.GroupNorm(32, outputs), nn.ReLU()]
            channels = outputs
        self.main = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == channels
        self.downsample = nn.Identity() if same else nn.Sequential(conv(inputs, channels, 1, stride), nn.GroupNorm(32, channels))

    def forward(self, x):
        return F.relu(self.main(x) + self.downsample(x))


def resnet(blocks, bottleneck):
    layers, channels = [conv(3, 64, 3), nn.GroupNorm(32, 64), nn.ReLU()], 64
    for stage, count in enumerate(blocks):
        filters = 64 * 2 ** stage
        for i in range(count):
            layers.append(Residual(channels, filters, 2 if stage > 0 and i == 0 else 1, bottleneck))
            channels = filters * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class WideBlock(nn.Module):
    """Norm and activation in front of each convolution; the first block of a stage has a shortcut of 1×1."""

    def __init__(self, inputs, outputs, stride, first):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(16, inputs), nn.ReLU())
        self.rest = nn.Sequential(conv(inputs, outputs, 3, stride), nn.GroupNorm(16, outputs), nn.ReLU(), conv(outputs, outputs, 3))
        self.shortcut = conv(inputs, outputs, 1, stride) if first else None

    def forward(self, x):
        y = self.first(x)
        return self.rest(y) + (x if self.shortcut is None else self.shortcut(y))


def wide_resnet(blocks=2, widening=4):
    layers, channels = [conv(3, 16, 3)], 16
    for stage, base in enumerate((16, 32, 64)):
        for i in range(blocks):
            layers.append(WideBlock(channels, base * widening, 2 if stage > 0 and i == 0 else 1, i == 0))
            channels = base * widening
    return nn.Sequential(*layers, nn.GroupNorm(16, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def attend(q, k, v, heads, bias=None):
    """softmax(q·kᵀ/√d + bias)·v for each head."""
    batch, tokens, width = q.shape
    q, k, v = (x.view(batch, tokens, heads, width // heads).transpose(1, 2) for x in (q, k, v))
    scores = torch.matmul(q * (width // heads) ** -0.5, k.transpose(2, 3))
    weights = torch.softmax(scores if bias is None else scores + bias, -1)
    return torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, width)


def feed_forward(width, approximate='none'):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate), nn.Linear(4 * width, width))


class PreNorm(nn.Module):
    """A block of ViT or GPT-2."""

    def __init__(self, width, heads, epsilon, approximate='none'):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = feed_forward(width, approximate)

    def forward(self, x, bias=None):
        x = x + self.proj(attend(*self.qkv(self.norm1(x)).chunk(3, -1), self.heads, bias))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    """The class token in front of linear maps of the patches."""

    def __init__(self, patch, width):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)

    def forward(self, x):
        patches = self.proj(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), patches], 1)


class ViT(nn.Module):
    def __init__(self, size, patch, width, heads, depth=12):
        super().__init__()
        self.patches = Patches(patch, width)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(PreNorm(width, heads, 1e-6) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patches(x) + self.positions)[:, 0]))


class BeitBlock(nn.Module):
    def __init__(self, width, heads, side):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.gamma_1, self.gamma_2 = nn.Parameter(0.1 * torch.ones(width)), nn.Parameter(0.1 * torch.ones(width))
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2 + 3, heads))
        self.mlp = feed_forward(width)
        self.register_buffer('index', relative_positions(side))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        bias = self.table[self.index].permute(2, 0, 1)
        x = x + self.gamma_1 * self.proj(attend(q + self.q_bias, k, v + self.v_bias, self.heads, bias))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


def relative_positions(side):
    """Rows of the table for each pair of tokens: offsets of patches, then class to patch, patch to class, class to itself."""
    span = 2 * side - 1
    row, column = (x.flatten() for x in torch.meshgrid(torch.arange(side), torch.arange(side), indexing='ij'))
    index = torch.empty(side ** 2 + 1, side ** 2 + 1, dtype=torch.long)
    index[1:, 1:] = (row[:, None] - row[None] + side - 1) * span + column[:, None] - column[None] + side - 1
    index[0, :], index[:, 0], index[0, 0] = span ** 2, span ** 2 + 1, span ** 2 + 2
    return index


class BEiT(nn.Module):
    def __init__(self, size=224, patch=16, width=768, heads=12, depth=12):
        super().__init__()
        self.patches = Patches(patch, width)
        self.blocks = nn.Sequential(*(BeitBlock(width, heads, size // patch) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patches(x))[:, 1:].mean(1)))


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.mlp = feed_forward(width)

    def forward(self, x, bias):
        x = self.norm1(self.output(attend(self.query(x), self.key(x), self.value(x), self.heads, bias)) + x)
        return self.norm2(self.mlp(x) + x)


class BERT(nn.Module):
    def __init__(self, width=768, heads=12, depth=12):
        super().__init__()
        self.words, self.segments, self.positions = (nn.Embedding(count, width) for count in (30522, 2, 512))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids):
        mask = torch.ones_like(ids)
        bias = (1 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
        places = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.norm(self.words(ids) + self.segments(torch.zeros_like(ids)) + self.positions(places))
        for layer in self.layers:
            x = layer(x, bias)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class GPT2(nn.Module):
    def __init__(self, width=768, heads=12, depth=12):
        super().__init__()
        self.words, self.positions = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(PreNorm(width, heads, 1e-5, 'tanh') for _ in range(depth))
        self.norm = nn.LayerNorm(width, 1e-5)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids):
        tokens = ids.shape[1]
        bias = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)
        x = self.words(ids) + self.positions(torch.arange(tokens).expand_as(ids))
        for block in self.blocks:
            x = block(x, bias)
        return F.linear(self.norm(x), self.words.weight)


class LSTM(nn.Module):
    def __init__(self, embedding=256, hidden=256):
        super().__init__()
        self.embedding = nn.Embedding(10000, embedding)
        self.lstm, self.fc = nn.LSTM(embedding, hidden, 2, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, ids):
        return self.fc(self.lstm(self.embedding(ids))[1][0][-1])


SMALL, LARGE = (3, 32, 32), (3, 224, 224)
# The model, and the shape of an image or the size of the vocabulary.
MODELS = {
    'mlp': (mlp, (1, 28, 28)), 'cnn-tanh': (cnn_tanh, (1, 28, 28)),
    'vgg11': (lambda: vgg((1, 1, 2, 2, 2)), SMALL), 'vgg13': (lambda: vgg((2, 2, 2, 2, 2)), SMALL),
    'vgg16': (lambda: vgg((2, 2, 3, 3, 3)), SMALL), 'vgg19': (lambda: vgg((2, 2, 4, 4, 4)), SMALL),
    'resnet18-gn': (lambda: resnet((2, 2, 2, 2), False), SMALL), 'resnet50-gn': (lambda: resnet((3, 4, 6, 3), True), SMALL),
    'wrn-16-4-gn': (wide_resnet, SMALL),
    'vit-tiny': (lambda: ViT(32, 4, 192, 3), SMALL), 'vit-small': (lambda: ViT(32, 4, 384, 6), SMALL),
    'vit-tiny-224': (lambda: ViT(224, 16, 192, 3), LARGE), 'vit-small-224': (lambda: ViT(224, 16, 384, 6), LARGE),
    'beit-base-224': (BEiT, LARGE), 'bert-base': (BERT, 30522), 'gpt2-small': (GPT2, 50257), 'lstm': (LSTM, 10000),
}


def workload(name, batch, sequence):
    """The model, a batch for it, and its loss as a function of logits."""
    build, kind = MODELS[name]
    model = build()
    if isinstance(kind, tuple):
        x, labels = torch.randn(batch, *kind), torch.randint(10, (batch,))
    else:
        x, labels = torch.randint(kind, (batch, sequence)), torch.randint(2, (batch,))
    if name == 'gpt2-small':
        # A sum over the tokens of an example, as causal-lm takes it, and a mean over examples.
        return model, x, lambda logits: F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction='sum') / batch
    return model, x, lambda logits: F.cross_entropy(logits, labels)
