import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { modes } from '../src/clipping/plan.ts';
import { rowsOf } from '../src/ops/batch.ts';
import { expandComposites } from '../src/ops/expand.ts';
import { analyse, atBatchSize } from '../src/training/compile.ts';
import { checkComposition } from './support/composition-check.ts';
import { composedNetwork, composition } from './support/random-composition.ts';

describe('networks of any operators in any composition', () => {
  it.each(modes)('equal the one-example oracle, whose gradients equal differences of the loss: %s', async (mode) => {
    let said = 0;
    await fc.assert(fc.asyncProperty(composition, async (choice) => {
      if (await checkComposition(choice, mode) === 'checked') said++;
    }), { numRuns: 14 });
    expect(said).toBeGreaterThan(7);
  });

  it('have the same values by the same names at every batch size, and the batch where the proof found it', () => {
    fc.assert(fc.property(composition, (choice) => {
      const { batch, forms, task, violations } = analyse({ model: composedNetwork(choice).model, loss: 'cross-entropy' });
      expect(violations).toEqual([]);
      for (const rows of [1, 2, 3, 4, 6]) {
        const graph = expandComposites(atBatchSize(task, rows).graph);
        expect(graph.nodes.map(({ name, op }) => [name, op])).toEqual([...forms]);
        for (const value of graph.nodes.flatMap(({ outputs }) => outputs)) {
          const at = batch.get(value);
          if (at !== undefined) expect(rowsOf(graph.types.get(value)!.shape, at), value).toBe(rows);
        }
      }
    }), { numRuns: 60 });
  });
});
