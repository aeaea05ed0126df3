import { describe, expect, it } from 'vitest';
import { addRows, addRowsAt } from '../../src/ops/add-rows.ts';
import { graphBuilder, reshape } from '../../src/ops/builder.ts';
import { semantics } from '../../src/ops/table.ts';
import { onnxruntimeEngine } from '../../src/runtime/node.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';

describe('adding rows at their places', () => {
  it('loses none that meet others, whatever the number of threads', async () => {
    const [n, size, p] = [2048, 50, 256];
    const b = graphBuilder(semantics);
    const places = b.input('places', { dtype: 'int64', shape: [n] });
    const rows = b.input('rows', { dtype: 'float32', shape: [n, p] });
    const session = await onnxruntimeEngine().compile(b.build([['sums', addRows(b, size, places, rows)]]), { threads: 4 });
    const expected = Array.from({ length: size }, (_, v) => Math.ceil((n - v) / size));
    for (let run = 0; run < 20; run++) {
      const { outputs } = await session.run({
        places: int64(Array.from({ length: n }, (_, i) => i % size)), rows: float32(new Float32Array(n * p).fill(1), [n, p]),
      });
      const sums = outputs['sums']!.data as Float32Array;
      expect(expected.every((count, v) => sums.subarray(v * p, (v + 1) * p).every((x) => x === count))).toBe(true);
    }
    await session.release();
  });

  it('counts coordinates from the back', async () => {
    const b = graphBuilder(semantics);
    const rows = b.constant(float32([1, 2, 3], [3, 1]));
    const sums = addRowsAt(b, [2, 3], b.constant(int64([0, 1, -1, -1, 0, -2], [3, 2])), rows);
    const session = await onnxruntimeEngine().compile(b.build([['sums', reshape(b, sums, [2, 3])]]));
    const { outputs } = await session.run({});
    expect([...outputs['sums']!.data]).toEqual([0, 4, 0, 0, 0, 2]);
    await session.release();
  });
});
