import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { readModel } from '../src/graph/file.ts';
import { upgrade } from '../src/graph/upgrade.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { check, parseExpected } from '../src/training/check.ts';

const fixture = (path: string) => fileURLToPath(new URL(`fixtures/${path}`, import.meta.url));
const model = (name: string) => upgrade(readModel(fixture(`models/${name}.onnx`)));
const expected = (name: string) => parseExpected(readFileSync(fixture(`gradients/${name}.json`), 'utf8'), name);

describe('reference gradients of another implementation', () => {
  const names = ['mlp-random', 'vgg11-tiny-random', 'resnet18-gn-tiny-random', 'resnet20-cifar10-bn'];
  const cases = names.flatMap((name) => modes.filter((mode) => mode !== 'non-private').map((mode): [string, Mode] => [name, mode]));

  it.each(cases)('%s, %s', async (name, mode) => {
    const result = await check(model(name), expected(name), onnxruntimeEngine(), mode);
    expect(result.ok).toBe(true);
    expect(Math.max(...Object.values(result.maxRelativeError))).toBeLessThan(1e-4);
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
    expect(() => parseExpected('{"inputs": {}}', 'x.json')).toThrow(/x\.json: loss/);
    expect(() => parseExpected('not json', 'x.json')).toThrow(/not a JSON file/);
  });
});
