import { expect } from 'vitest';
import { type BatchAxis, rowsOf } from '../../src/ops/batch.ts';
import type { Value } from '../../src/ops/builder.ts';
import type { ConvolutionGeometry, ParameterUse } from '../../src/ops/operator.ts';
import { type Shape, type Tensor, allocate, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { rowOfEach } from './batch-check.ts';
import {
  type Operand, type Sample, batchResult, build, feedsOf, gradientContext, gradients, randomLike, shapes, withSession,
} from './operator-sample.ts';
import { testRandom } from './random-network.ts';

/** The one row of a value as a batch of its own. */
function onlyRow(t: Tensor, batch: BatchAxis, at: number): Tensor {
  const row = rowOfEach(t.shape, batch);
  const shape = t.shape.map((n, i) => (i === batch.axis ? batch.before * batch.after : n));
  const data = allocate(t.dtype, sizeOf(shape));
  let next = 0;
  t.data.forEach((v: number | bigint, i: number) => { if (row(i) === at) data[next++] = v; });
  return tensor(t.dtype, shape, data);
}

const rowOperand = (o: Operand | undefined, at: number): Operand | undefined =>
  (o?.batch === undefined ? o : { ...o, value: onlyRow(o.value, o.batch, at) });

/**
 * Checks the use that a node makes of input `index` as a parameter: the per-example gradients that its operands stand
 * for, computed in float64, are the gradients that the gradient rule gives for each row alone.
 */
export async function checkParameterUse(sample: Sample, index: number, seed = 1): Promise<void> {
  const built = build(sample);
  const { b, node, operator } = built;
  const result = batchResult(built, sample);
  if ('violation' in result) throw new Error(`${shapes(sample)}: ${result.violation}`);
  const carrier = sample.inputs.find((o) => o?.batch !== undefined)!;
  const rows = rowsOf(carrier.value.shape, carrier.batch!);
  const context = gradientContext(built, sample, [], [0]);
  const use = operator.parameter?.({
    ...context, index, inputBatch: sample.inputs.map((o) => o?.batch), outputBatch: node.outputs
      .map((_, k) => result[k]),
  });
  if (use === undefined) throw new Error(`${node.op} takes no parameters`);
  const dY = randomLike(testRandom(seed), b.type(node.outputs[0]!));
  const operands = valuesOf(use);
  const values = await withSession(b.build(Object.entries(operands)), (run) => run({ ...feedsOf(sample), dy0: dY }));
  const shape = sample.inputs[index]!.value.shape;
  const found = instantiate(use, values, shape, rows);

  const single = { ...sample, inputs: sample.inputs.map((o) => rowOperand(o, 0)) };
  const alone = build(single);
  const gradient = gradients(alone, gradientContext(alone, single, [index], [0]))[index];
  if (gradient === undefined) throw new Error(`no gradient for input ${index} of ${node.op}`);
  await withSession(alone.b.build([['g', gradient]]), async (run) => {
    for (let row = 0; row < rows; row++) {
      const one = { ...sample, inputs: sample.inputs.map((o) => rowOperand(o, row)) };
      const { g } = await run({ ...feedsOf(one), dy0: onlyRow(dY, result[0]!, row) });
      const largest = Array.from(g!.data, Number).reduce((m, v) => Math.max(m, Math.abs(v)), 1);
      Array.from(g!.data, Number).forEach((v, i) => {
        expect(Math.abs(found[row]![i]! - v),
          `row ${row}, element ${i} of ${shapes(sample)} as ${use.kind}: ${found[row]![i]} and ${v}`)
          .toBeLessThan(1e-4 * largest);
      });
    }
  });
}

function valuesOf(use: ParameterUse): Record<string, Value> {
  switch (use.kind) {
    case 'outer':
    case 'convolution': return { input: use.input, outputGradient: use.outputGradient };
    case 'gather': return { indices: use.indices, outputGradient: use.outputGradient };
    case 'broadcast': return { gradient: use.gradient };
    case 'opaque': return { perExample: use.perExample };
  }
}

/** Per-example gradients of a parameter, in float64, from the values of a use's operands. */
function instantiate(use: ParameterUse, values: Readonly<Record<string, Tensor>>, shape: Shape,
  rows: number): Float64Array[] {
  const size = sizeOf(shape);
  const empty = () => Array.from({ length: rows }, () => new Float64Array(size));
  switch (use.kind) {
    case 'outer': return outer(values['input']!, values['outputGradient']!, use.transposed, use.scale ?? 1, empty());
    case 'convolution': return convolution(values['input']!, values['outputGradient']!, use.geometry, shape, empty());
    case 'gather': {
      const [indices, dY] = [values['indices']!, values['outputGradient']!];
      const [, T, p] = dY.shape as [number, number, number];
      return empty().map((g, r) => {
        for (let t = 0; t < T; t++) {
          for (let k = 0; k < p; k++) g[Number(indices.data[r * T + t]) * p
            + k]! += Number(dY.data[(r * T + t) * p + k]);
        }
        return g;
      });
    }
    case 'broadcast': return broadcast(values['gradient']!, [...shape, ...Array<number>(use.trailing ?? 0).fill(1)],
      empty());
    case 'opaque': return empty().map((g, r) => g.map((_, i) => Number(values['perExample']!.data[r * size + i])));
  }
}

function outer(x: Tensor, dY: Tensor, transposed: boolean, scale: number, into: Float64Array[]): Float64Array[] {
  const [, T, d] = x.shape as [number, number, number];
  const p = dY.shape[2]!;
  return into.map((g, r) => {
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < d; i++) {
        for (let k = 0; k < p; k++) {
          g[transposed ? k * d + i : i * p
            + k]! += scale * Number(x.data[(r * T + t) * d + i]) * Number(dY.data[(r * T + t) * p + k]);
        }
      }
    }
    return g;
  });
}

function broadcast(gradient: Tensor, shape: Shape, into: Float64Array[]): Float64Array[] {
  const full = gradient.shape.slice(1);
  const block = sizeOf(full);
  const shift = full.length - shape.length;
  return into.map((g, r) => {
    for (let i = 0; i < block; i++) {
      const slot = shape.reduce((flat, n, axis) => {
        const at = Math.floor(i / sizeOf(full.slice(axis + shift + 1))) % full[axis + shift]!;
        return flat * n + (n === 1 ? 0 : at);
      }, 0);
      g[slot]! += Number(gradient.data[r * block + i]);
    }
    return g;
  });
}

/** Every product of an input and an output gradient that meets in an element of the kernel. */
function convolution(x: Tensor, dY: Tensor, { strides, dilations, pads, groups }: ConvolutionGeometry, shape: Shape,
  into: Float64Array[]): Float64Array[] {
  const [images, channels, ...space] = x.shape as [number, number, ...number[]];
  const [, p, ...outSpace] = dY.shape as [number, number, ...number[]];
  const [perGroup, kernel] = [shape[1]!, shape.slice(2)];
  const places = (s: readonly number[]) => Array.from({ length: sizeOf(s) }, (_, i) =>
    s.map((n, axis) => Math.floor(i / sizeOf(s.slice(axis + 1))) % n));
  const flat = (at: readonly number[], s: readonly number[]) => s.reduce((f, n, axis) => f * n + at[axis]!, 0);
  for (let image = 0; image < images; image++) {
    const g = into[Math.floor(image / (images / into.length))]!;
    for (let o = 0; o < p; o++) {
      for (let c = 0; c < perGroup; c++) {
        const channel = Math.floor(o / (p / groups)) * perGroup + c;
        places(kernel).forEach((k, tap) => {
          places(outSpace).forEach((at, position) => {
            const from = at.map((n, axis) => n * strides[axis]! + k[axis]! * dilations[axis]! - pads[axis]!);
            if (from.some((n, axis) => n < 0 || n >= space[axis]!)) return;
            g[(o * perGroup + c) * sizeOf(kernel)
              + tap]! += Number(x.data[(image * channels + channel) * sizeOf(space) + flat(from, space)])
              * Number(dY.data[(image * p + o) * sizeOf(outSpace) + position]);
          });
        });
      }
    }
  }
  return into;
}
