import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { float32, int64, tensor, toNumbers } from '../tensor/tensor.ts';
import { byteColumn, floatColumn, integerColumn } from './column.ts';
import { type SpareBatch, batchOf, datasetFromTensors, datasetOf, gatherColumn, withLabels } from './dataset.ts';
import { byteTables, normaliseFloats } from './normalise.ts';
import { validateDataset } from './validate.ts';

const rows = (...indices: number[]): Uint32Array => Uint32Array.from(indices);
const identity = byteTables('none', [1], 'test');

describe('batches', () => {
  const data = datasetFromTensors(float32([1, 2, 3, 4, 5, 6], [3, 2]), int64([7, 8, 9]));
  const spareOf = (batch: ReturnType<typeof batchOf>): SpareBatch => ({ features: (name) => batch.features.get(name), labels: batch.labels });

  it('are written over an earlier one of the same size, its rows cleared, and over no other', () => {
    const first = batchOf(data, rows(0, 1, 2));
    const again = batchOf(data, rows(2), 3, spareOf(first));
    expect([...again.features.get('input')!.data]).toEqual([5, 6, 0, 0, 0, 0]);
    expect([...again.labels.data]).toEqual([9n, 0n, 0n]);
    expect(again.features.get('input')!.data).toBe(first.features.get('input')!.data);
    expect(again.labels.data).toBe(first.labels.data);
    const smaller = batchOf(data, rows(1), 2, spareOf(again));
    expect([...smaller.features.get('input')!.data]).toEqual([3, 4, 0, 0]);
    expect([...again.labels.data]).toEqual([9n, 0n, 0n]);
  });
});

describe('columns', () => {
  it('gather rows in the order asked for, repeats included, and zero the rest', () => {
    const column = floatColumn(Float32Array.of(1, 2, 3, 4, 5, 6), [2]);
    expect(column.size).toBe(3);
    const into = new Float32Array(8).fill(9);
    column.gather(rows(2, 0, 2), into);
    expect([...into]).toEqual([5, 6, 1, 2, 5, 6, 0, 0]);
    const labels = new BigInt64Array(3).fill(9n);
    integerColumn(BigInt64Array.of(7n, 8n)).gather(rows(1), labels);
    expect([...labels]).toEqual([8n, 0n, 0n]);
  });

  it('find the first number that is not finite', () => {
    const values = Float32Array.of(0, -0, 3.4028234663852886e38, -3.4028234663852886e38, 1e-45, -1e-45, 7, 8);
    expect(floatColumn(values, [2]).firstNonFinite()).toBeUndefined();
    for (const odd of [NaN, Infinity, -Infinity]) {
      for (let at = 0; at < values.length; at++) {
        expect(floatColumn(values.with(at, odd), [2]).firstNonFinite()).toEqual({ row: at >> 1, element: at % 2 });
      }
    }
  });

  it('turn bytes into floats through one table for each channel', () => {
    const data = Uint8Array.of(0, 255, 10, 20, 1, 2, 3, 4);
    const tables = byteTables({ mean: [0.5, 0], std: [0.5, 2] }, [2, 1, 2], 'test');
    const into = new Float32Array(8);
    byteColumn(data, [2, 1, 2], tables).gather(rows(1, 0), into);
    const expected = [1, 2, 3, 4, 0, 255, 10, 20].map((v, i) => (i % 4 < 2 ? (v / 255 - 0.5) / 0.5 : v / 255 / 2));
    expected.forEach((x, i) => expect(into[i]).toBeCloseTo(x, 6));
  });

  it('of bytes and of floats agree, whatever is gathered', () => {
    fc.assert(fc.property(
      fc.uint8Array({ minLength: 12, maxLength: 12 }), fc.array(fc.nat(3), { maxLength: 9 }),
      fc.double({ min: -2, max: 2, noNaN: true }),
      (bytes, indices, mean) => {
        const normalize = { mean: [mean, 0, 1], std: [1, 0.5, 3] };
        const floats = Float32Array.from(bytes, (v) => v / 255);
        normaliseFloats(floats, normalize, [3], 'test');
        const a = gatherColumn(byteColumn(bytes, [3], byteTables(normalize, [3], 'test')), Uint32Array.from(indices));
        const b = gatherColumn(floatColumn(floats, [3]), Uint32Array.from(indices));
        toNumbers(a).forEach((x, i) => expect(x).toBeCloseTo(toNumbers(b)[i]!, 5));
      },
    ));
  });

  it('refuse rows that are none, and buffers too small', () => {
    for (const column of [floatColumn(Float32Array.of(1, 2), []), byteColumn(Uint8Array.of(1, 2), [], identity)]) {
      expect(() => column.gather(rows(2), new Float32Array(1))).toThrow(/no row 2/);
      expect(() => column.gather(rows(0, 1), new Float32Array(1))).toThrow(/do not fit/);
    }
    expect(() => floatColumn(new Float32Array(5), [2])).toThrow(RangeError);
  });
});

describe('normalize', () => {
  it('refuses constants that fit neither one nor every channel', () => {
    expect(() => byteTables({ mean: [1, 2], std: 1 }, [3, 4, 4], 'photos'))
      .toThrow(/normalize does not fit[^]*photos[^]*one of each, or 3/);
    expect(() => normaliseFloats(new Float32Array(2), 'unit', [2], 'x')).toThrow(/unit is for bytes/);
  });
});

describe('datasets', () => {
  const dataset = datasetFromTensors(float32([1, 2, 3, 4, 5, 6], [3, 2]), int64([2, 0, 1]), { size: 100 });

  it('hand out batches, padded with zero rows', () => {
    expect(dataset).toMatchObject({ size: 3, declaredSize: 100 });
    const batch = batchOf(dataset, rows(1, 0), 3);
    expect(batch.features.get('input')).toEqual(float32([3, 4, 1, 2, 0, 0], [3, 2]));
    expect(batch.labels).toEqual(int64([0, 2, 0]));
    const into = { features: new Map([['input', new Float32Array(2)]]), labels: new BigInt64Array(1) };
    dataset.gather(rows(2), into);
    expect([...into.features.get('input')!, ...into.labels]).toEqual([5, 6, 1n]);
    expect(() => dataset.gather(rows(0), { ...into, labels: new Float32Array(1) }))
      .toThrow(/labels is not of type int64/);
    expect(batchOf(dataset, rows(), 2).features.get('input')).toEqual(float32([0, 0, 0, 0], [2, 2]));
  });

  it('have as many labels as features, and at least one row', () => {
    expect(() => datasetFromTensors(float32([1, 2], [2, 1]), int64([1, 2, 3])))
      .toThrow(/2 rows of features and 3 labels/);
    expect(() => datasetFromTensors(float32([], [0, 4]), int64([]))).toThrow(/no rows/);
  });

  it('give labels in the type and shape a loss takes', () => {
    const targets = withLabels(dataset, 'float32', [1]);
    expect(batchOf(targets, rows(0, 1)).labels).toEqual(float32([2, 0], [2, 1]));
    expect(batchOf(withLabels(targets, 'int64', []), rows(0, 2)).labels).toEqual(int64([2, 1]));
    const halves = datasetFromTensors(float32([1, 2], [2, 1]), float32([1, 0.5]), { name: 'set' });
    expect(() => withLabels(halves, 'int64', [])).toThrow(/not a whole number \(set, label of row 2/);
    expect(() => withLabels(dataset, 'float32', [2])).toThrow(/another shape/);
  });
});

describe('validateDataset', () => {
  const good = datasetFromTensors(float32([1, 2, 3, 4], [2, 2]), int64([0, 1]));

  it('passes sound data', () => {
    expect(() => validateDataset(good, { inputShape: [2], classes: 2 })).not.toThrow();
    expect(() => validateDataset(good, { inputShape: ['features'], classes: 9 })).not.toThrow();
  });

  it('refuses another shape, and says how to mend it where that is possible', () => {
    expect(() => validateDataset(good, { inputShape: [3] })).toThrow(/found: +\[2\][^]*expected: +\[3\]/);
    expect(() => validateDataset(good, { inputShape: [1, 2, 1] })).toThrow(/add shape: \[1, 2, 1\]/);
    expect(() => validateDataset(good, { inputShape: [1, null] })).toThrow(/another shape/);
  });

  it('finds NaN and infinities in features and labels by row and column, without their values', () => {
    for (const bad of [Number.NaN, Infinity, -Infinity]) {
      const named = datasetOf({
        name: 'file.csv',
        features: new Map([['input', floatColumn(Float32Array.of(1, 2, 3, bad), [2], ['age', 'pay'])]]),
        labels: integerColumn(BigInt64Array.of(0n, 1n)),
      });
      expect(() => validateDataset(named))
        .toThrow(/file\.csv, feature "input", row 2 \(counting from 1\), column "pay"/);
      const label = datasetFromTensors(float32([1, 2], [2, 1]), float32([bad, 0]));
      expect(() => validateDataset(label)).toThrow(/labels, row 1 \(/);
    }
  });

  it('finds labels out of range, without showing them', () => {
    for (const bad of [-4711, 4711]) {
      const dataset = datasetFromTensors(float32([1, 2, 3], [3, 1]), int64([0, 1, bad]));
      expect(() => validateDataset(dataset, { classes: 3 })).toThrow(/row 3 \([^]*from 0 to 2/);
      expect(() => validateDataset(dataset, { classes: 3 })).not.toThrow(/4711/);
    }
    const half = datasetFromTensors(tensor('float32', [1, 1], Float32Array.of(1)), float32([0.5]));
    expect(() => validateDataset(half, { classes: 3 })).toThrow(/out of range/);
  });
});
