import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { readModel } from '../src/graph/file.ts';
import { upgrade } from '../src/graph/upgrade.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { check } from '../src/training/check.ts';
import { type Expected, parseExpected } from '../src/training/expected.ts';
import { float32 } from '../src/tensor/tensor.ts';

const fixture = (path: string) => fileURLToPath(new URL(`fixtures/${path}`, import.meta.url));
const model = (name: string) => upgrade(readModel(fixture(`models/${name}.onnx`)));
const expected = (name: string) => parseExpected(readFileSync(fixture(`gradients/${name}.json`), 'utf8'), name);

describe('reference gradients of another implementation', () => {
  const names = [
    'mlp-random', 'vgg11-tiny-random', 'resnet18-gn-tiny-random', 'resnet20-cifar10-bn',
    'bert-tiny-random', 'vit-tiny-random', 'gpt2-tiny-random', 'gpt2-tiny-random-tied',
  ];
  const cases = names.flatMap((name) => modes.filter((mode) => mode !== 'non-private').map((mode): [string, Mode] => [name, mode]));

  it.each(cases)('%s, %s', async (name, mode) => {
    const result = await check(model(name), expected(name), onnxruntimeEngine(), mode);
    expect(result.ok).toBe(true);
    expect(Math.max(...Object.values(result.maxRelativeError))).toBeLessThan(1e-4);
  });

  it.each([
    'llama-tiny-random-tied', 'roberta-tiny-random', 'convnext-tiny-random', 'crnn-tiny-random', 'detector-tiny-random',
  ])('%s, ghost norms and instantiated ones', async (name) => {
    const reference = expected(name);
    expect(await check(model(name), reference, onnxruntimeEngine())).toMatchObject({ ok: true });
    expect(await check(model(name), reference, onnxruntimeEngine(), 'instantiate')).toMatchObject({ ok: true });
  });

  it.each(['bert-tiny-random', 'gpt2-tiny-random', 'gpt2-tiny-random-tied'])('%s with frozen embeddings', async (name) => {
    const whole = expected(name);
    const trained = <T>(values: Readonly<Record<string, T>>) =>
      Object.fromEntries(Object.entries(values).filter(([parameter]) => !/embeddings\.\w+\.weight|w[tp]e\.weight/.test(parameter)));
    const part = { ...whole, squaredNorms: trained(whole.squaredNorms), gradients: trained(whole.gradients), clip: undefined };
    expect(Object.keys(part.squaredNorms).length).toBeGreaterThan(10);
    expect(await check(model(name), part, onnxruntimeEngine())).toMatchObject({ ok: true });
  });

  it('a parameter that the loss does not depend on has a gradient of zero', async () => {
    const graph = model('mlp-random');
    const unused = { ...graph, initializers: new Map([...graph.initializers, ['unused', float32([1, 2])]]) };
    const { squaredNorms, gradients, ...rest } = expected('mlp-random');
    const zero = { ...rest, squaredNorms: { ...squaredNorms, unused: [0, 0, 0, 0] }, gradients: { ...gradients, unused: new Float32Array(8) } };
    expect(await check(unused, zero, onnxruntimeEngine())).toMatchObject({ ok: true });
    const other = { ...zero, squaredNorms: { ...squaredNorms, unused: [0, 0, 1, 0] } };
    expect(await check(unused, other, onnxruntimeEngine()))
      .toMatchObject({ ok: false, worst: { quantity: 'norms', parameter: 'unused', example: 2 } });
  });

  it('names what is wrong', async () => {
    const right = expected('mlp-random');
    const { clip } = right;
    if (clip === undefined) throw new Error('the reference has a clipped sum');
    const worst = async (changed: Partial<Expected>) =>
      (await check(model('mlp-random'), { ...right, ...changed }, onnxruntimeEngine())).worst;
    const bent = (values: Float32Array, at: number) => values.map((x, i) => (i === at ? x + 0.1 : x));
    const bias = right.gradients['fc1.bias']!;
    expect(await worst({ gradients: { 'fc1.bias': bent(bias, 2 * 32 + 5) } }))
      .toMatchObject({ quantity: 'gradients', parameter: 'fc1.bias', example: 2 });
    expect(await worst({ losses: right.losses.map((loss, i) => (i === 1 ? loss * 1.01 : loss)) }))
      .toMatchObject({ quantity: 'loss', parameter: '', example: 1 });
    expect(await worst({ clip: { ...clip, sums: { ...clip.sums, 'fc2.bias': bent(clip.sums['fc2.bias']!, 0) } } }))
      .toMatchObject({ quantity: 'gradients', parameter: 'fc2.bias', example: -1 });
    expect(await worst({ clip: { ...clip, squaredNorms: { ...clip.squaredNorms, 'fc1.weight': 9 } } }))
      .toMatchObject({ quantity: 'gradients', parameter: 'fc1.weight', example: -1 });
  });

  it('a changed weight does not pass', async () => {
    const graph = model('mlp-random');
    const [name, t] = [...graph.initializers][0]!;
    const data = (t.data as Float32Array).slice();
    data[0]! += 0.05;
    const changed = { ...graph, initializers: new Map([...graph.initializers, [name, { ...t, dtype: 'float32' as const, data }]]) };
    const result = await check(changed, expected('mlp-random'), onnxruntimeEngine());
    expect(result.ok).toBe(false);
  });

  it('a malformed reference is refused by name of the field', () => {
    expect(() => parseExpected('{"inputs": {}}', 'x.json')).toThrow(/x\.json: perExampleLoss/);
    expect(() => parseExpected('not json', 'x.json')).toThrow(/not a JSON file/);
    const changed = (change: (json: Record<string, Record<string, unknown>>) => void) => () => {
      const json = JSON.parse(readFileSync(fixture('gradients/mlp-random.json'), 'utf8')) as Record<string, Record<string, unknown>>;
      change(json);
      parseExpected(JSON.stringify(json), 'x.json');
    };
    expect(changed((json) => (json['loss']!['kind'] = 'hinge'))).toThrow(/unsupported loss[^]*x\.json: loss\.kind[^]*hinge/);
    expect(changed((json) => (json['loss']!['labels'] = [0, 1]))).toThrow(/x\.json: loss: labels[^]*4 numbers/);
    expect(changed((json) => (json['inputs'] = { input: { dtype: 'float32', shape: [4, 20], base64: 'AAAA' } })))
      .toThrow(/another size than its shape[^]*3 bytes/);
    expect(changed((json) => (json['inputs'] = { input: { dtype: 'complex64', shape: [1], base64: 'AAAA' } })))
      .toThrow(/complex64/);
    expect(changed((json) => (json['parameters'] = { w: { perExampleSquaredNorm: 'many' } })))
      .toThrow(/malformed field[^]*perExampleSquaredNorm/);
  });
});
