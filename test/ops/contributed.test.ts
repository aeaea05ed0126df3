import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { int } from '../../src/graph/ir.ts';
import { leading } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { operatorOf } from '../../src/ops/table.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { buildNode, floats } from '../support/operator-sample.ts';

const normalised = fc.tuple(fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 2 }), fc.integer({ min: 2, max: 6 }))
  .chain(([outer, d]) => fc.tuple(floats([...outer, d]), floats([d])))
  .map(([x, scale]) => ({ op: 'SimplifiedLayerNormalization', inputs: [{ value: x }, { value: scale }], attributes: { axis: int(-1) } }));

describe('SimplifiedLayerNormalization', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(normalised, (sample) => checkExpansion(sample)), { numRuns: 10 });
  });
});

describe('expanding composite nodes', () => {
  const sample = fc.sample(normalised, { seed: 3, numRuns: 1 })[0]!;
  const { b, node } = buildNode(sample);
  const whole = b.build([['y0', 'y0']]);

  it('keeps the names of what the node makes, and names the rest after the node', () => {
    const core = expandComposites(whole);
    expect(core.outputs).toEqual(whole.outputs);
    expect(core.nodes.every(({ name }) => name.startsWith('node/'))).toBe(true);
    expect(core.nodes.flatMap(({ outputs }) => outputs).filter((v) => !v.startsWith('node/'))).toEqual(['y0']);
  });

  it('leaves nodes whole that it is not asked to expand, and graphs without composites as they are', () => {
    expect(expandComposites(whole, () => false)).toBe(whole);
    const core = expandComposites(whole);
    expect(expandComposites(core)).toBe(core);
  });

  it('lets the batch rules of the parts decide', () => {
    const core = expandComposites(whole);
    expect(traceBatch(core, new Map([['x0', leading]])).violations.length).toBe(core.types.get('x0')!.shape.length === 1 ? 1 : 0);
  });

  it('refuses to differentiate a node that was not expanded', () => {
    expect(() => operatorOf(node)).toThrow(/composite and was not expanded/);
  });
});
