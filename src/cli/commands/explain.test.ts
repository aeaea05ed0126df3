import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { blobModel } from '../../../test/support/blobs.ts';
import { ghostgrad, json, refused } from '../../../test/support/cli.ts';
import { temporaryFolder } from '../../../test/support/temp.ts';
import { writeModel } from '../../graph/file.ts';
import { type Graph, latestOpset } from '../../graph/ir.ts';
import { buildModel } from '../../models/index.ts';
import { float32 } from '../../tensor/tensor.ts';

describe('explain', () => {
  it('tells how each layer would be trained', async () => {
    const explained = json(await ghostgrad(['explain', 'cnn-tanh', '--batch-size', '64', '--json'])) as {
      layers: { parameter: string }[];
    };
    expect(explained).toMatchObject({
      parameters: { total: 26010, trainable: 26010 },
      unsupported: [],
      batchIndependent: true,
      violations: [],
    });
    expect(explained.layers[0]).toMatchObject({
      name: 'conv1',
      parameter: 'conv1.weight',
      operator: 'Conv',
      kind: 'convolution',
      T: 169,
      d: 64,
      p: 16,
      groups: 1,
      norm: expect.any(String) as string,
      bytes: expect.any(Number) as number,
      flops: expect.any(Number) as number,
    });
    expect((await ghostgrad(['explain', '{name: mlp, hidden: [7]}'])).out).toMatch(/hidden\.0\.weight +1 +784 +7/);
  });

  it('tells the last layer, what a head would be put on, and what training it or the biases alone takes', async () => {
    const model = '{name: wrn-16-4-gn, depth: 10, widening: 1, size: 8, groups: 4}';
    expect((await ghostgrad(['explain', model])).out).toMatch(/last layer +fc\.weight, fc\.bias, on the value pool\.flatten\.output/);
    const of = async (trainable: string) => json(await ghostgrad(['explain', model, '--trainable', trainable, '--json']));
    expect(await of('head')).toMatchObject({
      parameters: { trainable: 650 }, lastLayer: { parameters: ['fc.weight', 'fc.bias'], features: 'pool.flatten.output' },
    });
    expect((await of('bias') as { layers: { parameter: string }[] }).layers.every(({ parameter }) => parameter.endsWith('.bias'))).toBe(true);
  });

  it('takes shapes, patterns and losses', async () => {
    const { folder } = temporaryFolder();
    const open: Graph = {
      name: 'open',
      opset: latestOpset,
      metadata: {},
      initializers: new Map([
        ['w', float32([1, 2, 3, 4], [2, 2])],
        ['b', float32([1, 2])],
      ]),
      inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 'time', 2] }],
      outputs: [{ name: 'y', dtype: 'float32', shape: null }],
      nodes: [
        { op: 'MatMul', domain: '', name: 'm', inputs: ['x', 'w'], outputs: ['a'], attributes: {} },
        { op: 'Add', domain: '', name: 'add', inputs: ['a', 'b'], outputs: ['y'], attributes: {} },
      ],
    };
    const path = join(folder, 'open.onnx');
    writeModel(path, open);
    expect(await refused(['explain', path])).toMatch(/the shape of an input is not known[^]*--shape x=/);
    const args = ['explain', path, '--shape', 'x=8,5,2', '--loss', 'mse', '--trainable', 'w', '--json'];
    expect(json(await ghostgrad(args))).toMatchObject({
      parameters: { total: 6, trainable: 4 },
      layers: [{ parameter: 'w', T: 5, d: 2, p: 2 }],
    });
    for (const shape of ['x', 'x=', 'x=B,', 'x=B,-1', 'x=B,a'])
      expect(await refused(['explain', path, '--shape', shape])).toMatch('not a shape');
    expect(await refused(['explain', path, '--shape', 'z=B,2'])).toMatch('unknown input "z"');
    expect(await refused(['explain', path, '--loss', 'mes'])).toMatch('did you mean "mse"?');
    expect(await refused(['explain', 'mlp', '--mode', 'ghots'])).toMatch('did you mean "ghost"?');
    expect(await refused(['explain', 'mlp', '--trainable', 'conv*'])).toMatch('matches no parameter');
    expect(await refused(['explain', 'mlp', '--trainable', 'norm'])).toMatch('no normalisation');
  });

  it('is coloured on terminals that want it, and never in JSON', async () => {
    const args = ['explain', 'mlp'];
    const escape = String.fromCharCode(27);
    const coloured = await ghostgrad(args, { isTTY: true });
    expect(coloured.out).toContain(escape);
    const plain = await ghostgrad(args);
    expect(coloured.out.replaceAll(/\u001b\[\d+m/g, '')).toBe(plain.out);
    expect(plain.out).not.toContain(escape);
    expect((await ghostgrad(args, { isTTY: true, env: { NO_COLOR: '1' } })).out).not.toContain(escape);
    expect((await ghostgrad([...args, '--json'], { isTTY: true })).out).not.toContain(escape);
  });

  it('reports what stands in the way, and that is no failure', async () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'mixing.onnx');
    const model = buildModel(blobModel);
    const softmax = {
      op: 'Softmax',
      domain: '',
      name: 'mixer',
      inputs: ['logits'],
      outputs: ['mixed'],
      attributes: { axis: { type: 'int', value: 0 } },
    } as const;
    writeModel(path, {
      ...model,
      nodes: [...model.nodes, softmax],
      outputs: [{ name: 'mixed', dtype: 'float32', shape: ['batch', 2] }],
    });
    const explained = json(await ghostgrad(['explain', path, '--json']));
    expect(explained).toMatchObject({
      batchIndependent: false,
      violations: [{ node: 'mixer', axis: 0, fix: expect.any(String) as string }],
    });
    expect((await ghostgrad(['explain', path])).out).toMatch(/examples mix +yes[^]*mixer/);
  });
});
