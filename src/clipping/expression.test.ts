import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { float32 } from '../tensor/tensor.ts';
import { emitExpression, parseExpression } from './expression.ts';

const names = ['n', 'R', 'gamma'];
const parse = (source: string) => parseExpression(source, names, 'clipping.function');

const meanings: readonly (readonly [source: string, meaning: (n: number, R: number, gamma: number) => number])[] = [
  ['min(1, R / (n + 0.1))', (n, R) => Math.min(1, R / (n + 0.1))],
  ['R/n/2', (n, R) => R / n / 2],
  ['1 - n - R', (n, R) => 1 - n - R],
  ['1 - (n - R)', (n, R) => 1 - (n - R)],
  ['2 * n ^ 2 ^ 0.5 + 1', (n) => 2 * n ** (2 ** 0.5) + 1],
  ['-n^2 + 10', (n) => -(n ** 2) + 10],
  ['2^-1 * n', (n) => 0.5 * n],
  ['where(n < R, 1, R / n)', (n, R) => (n < R ? 1 : R / n)],
  ['(n >= R) * R / n + (n <= 2)', (n, R) => ((n >= R ? 1 : 0) * R) / n + (n <= 2 ? 1 : 0)],
  ['max(exp(-n), sqrt(abs(log(n)))) * 1.5e1', (n) => Math.max(Math.exp(-n), Math.sqrt(Math.abs(Math.log(n)))) * 15],
  ['R/(n + gamma/(n + gamma))', (n, R, gamma) => R / (n + gamma / (n + gamma))],
  ['.5', () => 0.5],
];

describe('expressions', () => {
  it('mean what they say', async () => {
    const b = graphBuilder(semantics);
    const variables = {
      n: b.input('n', { dtype: 'float32', shape: [4] }), R: b.input('R', { dtype: 'float32', shape: [1] }), gamma: b.scalar(0.01),
    };
    const graph = b.build(meanings.map(([source], i) => [`y${i}`, emitExpression(b, parse(source), variables)]));
    const session = await onnxruntimeEngine().compile(graph, { threads: 1 });
    const n = [0.25, 0.7, 1.9, 6];
    const { outputs } = await session.run({ n: float32(n, [4]), R: float32([0.7], [1]) });
    await session.release();
    meanings.forEach(([source, meaning], i) => {
      const found = outputs[`y${i}`]!.data as Float32Array;
      n.forEach((x, k) => expect(found[found.length === 1 ? 0 : k], `${source} at ${x}`).toBeCloseTo(meaning(Math.fround(x), Math.fround(0.7), 0.01), 4));
    });
  });

  it.each([
    ['R / nn', /unknown name "nn".*position 5/s, /did you mean "n"/],
    ['mim(1, n)', /unknown name "mim"/, /did you mean "min"/],
    ['min(1)', /position 1/, /2 operands of min, not 1/],
    ['R / (n + 1', /the end at position 11/, /"\)"/],
    ['R // n', /\/ at position 4/, /a number, a name/],
    ['R n', /n at position 3/, /an operator/],
    ['R $ n', /\$ at position 3/, /numbers, names/],
    ['', /the end at position 1/, /a number, a name/],
    ['constructor', /unknown name "constructor"/, /n, R, gamma/],
    ['1 < n < 2', /< at position 7/, /an operator/],
  ])('refuse %j and say where', (source, found, expected) => {
    const refuse = () => parse(source);
    expect(refuse).toThrow(GhostgradError);
    expect(refuse).toThrow(found);
    expect(refuse).toThrow(expected);
  });

  it('are not nested without end', () => {
    expect(() => parse(`${'('.repeat(2000)}1`)).toThrow(/2001 characters/);
  });
});
