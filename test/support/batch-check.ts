import { expect } from 'vitest';
import { type BatchAxis, rowsOf } from '../../src/ops/batch.ts';
import { type Shape, type Tensor, float32, isFloat, sizeOf, tensor, toNumbers } from '../../src/tensor/tensor.ts';
import {
  type Compiled, type Feeds, type Sample, batchResult, build, differentiable, feedsOf, gradientContext, gradients,
  randomLike, shapes, withSession,
} from './operator-sample.ts';
import { testRandom } from './random-network.ts';

/** The row of the batch that each element of a value belongs to. */
export function rowOfEach(shape: Shape, { axis, after, before }: BatchAxis): (i: number) => number {
  const rows = rowsOf(shape, { axis, before, after });
  const inner = sizeOf(shape.slice(axis + 1)) * after;
  return (i) => Math.floor(i / inner) % rows;
}

/** `t` with row `to` replaced by what row `from` holds. */
function copyRow(t: Tensor, batch: BatchAxis, from: number, to: number): Tensor {
  const inner = sizeOf(t.shape.slice(batch.axis + 1)) * batch.after;
  const row = rowOfEach(t.shape, batch);
  const data = t.data.slice();
  for (let i = 0; i < data.length; i++) if (row(i) === to) data[i] = t.data[i + (from - to) * inner]!;
  return tensor(t.dtype, t.shape, data);
}

function spoilRow(t: Tensor, batch: BatchAxis, at: number): Tensor {
  if (!isFloat(t.dtype)) return t;
  const row = rowOfEach(t.shape, batch);
  return float32(toNumbers(t).map((v, i) => (row(i) === at ? NaN : v)), t.shape);
}

/** The elements of one row, in order. */
export function rowValues(t: Tensor, batch: BatchAxis, at: number): number[] {
  const row = rowOfEach(t.shape, batch);
  return toNumbers(t).filter((_, i) => row(i) === at);
}

type Places = Readonly<Record<string, BatchAxis | undefined>>;

/**
 * Checks a batch rule. Where it claims to know where the outputs carry the batch, another value (or NaN) in row i of
 * the inputs changes nothing but row i of the outputs and of the gradients, bit for bit; and a row that holds what another
 * row held gives what that one gave.
 *
 * @returns what the rule said
 */
export async function checkBatchRule(sample: Sample, seed = 1): Promise<'proved' | 'refused'> {
  const built = build(sample);
  const result = batchResult(built, sample);
  if ('violation' in result) {
    expect(result.violation).not.toBe('');
    expect(result.fix).not.toBe('');
    return 'refused';
  }
  const { b, node } = built;
  const carrier = sample.inputs.find((o) => o?.batch !== undefined);
  if (carrier?.batch === undefined) throw new Error('no operand of the sample carries the batch');
  const rows = rowsOf(carrier.value.shape, carrier.batch);
  const outputPlaces: Places = Object.fromEntries(node.outputs.map((y, k) => [y, result[k]]));
  for (const [y, at] of Object.entries(outputPlaces)) {
    if (at !== undefined) expect(b.shape(y)[at.axis], `batch of ${y}, ${shapes(sample)}`)
      .toBe(at.before * rows * at.after);
  }
  const inputPlaces: Places = Object.fromEntries(sample.inputs.map((o, i) => [`x${i}`, o?.batch]));
  await withSession(b.build(node.outputs.map((y) => [y, y])), (run) =>
    checkRows(run, feedsOf(sample), inputPlaces, outputPlaces, rows, shapes(sample)));

  const flowing = node.outputs.flatMap((y, k) => (isFloat(b.type(y).dtype) && result[k] !== undefined ? [k] : []));
  const wanted = differentiable(sample).filter((i) => sample.inputs[i]?.batch !== undefined);
  if (flowing.length === 0 || wanted.length === 0 || 'reason' in built.operator.gradient) return 'proved';
  const random = testRandom(seed);
  const context = gradientContext(built, sample, wanted, flowing);
  const given = gradients(built, context).flatMap((g, i) => (g === undefined ? [] : [[i, g] as const]));
  if (given.length === 0) return 'proved';
  const cotangents = Object.fromEntries(flowing.map((k) => [`dy${k}`, randomLike(random, b.type(node.outputs[k]!))]));
  const places = { ...inputPlaces, ...Object.fromEntries(flowing.map((k) => [`dy${k}`, result[k]])) };
  await withSession(b.build(given.map(([i, g]) => [`g${i}`, g])), (run) => checkRows(
    run, { ...feedsOf(sample), ...cotangents }, places,
    Object.fromEntries(given.map(([i]) => [`g${i}`, inputPlaces[`x${i}`]])), rows, `gradients of ${shapes(sample)}`,
  ));
  return 'proved';
}

async function checkRows(run: Compiled, feeds: Feeds, inputs: Places, outputs: Places, rows: number,
  what: string): Promise<void> {
  const change = (edit: (t: Tensor, at: BatchAxis) => Tensor): Feeds =>
    Object.fromEntries(Object.entries(feeds)
      .map(([name, t]) => [name, inputs[name] === undefined ? t : edit(t, inputs[name])]));
  const base = await run(feeds);
  for (const at of [0, rows - 1]) {
    const from = (at + 1) % rows;
    const copied = await run(change((t, place) => copyRow(t, place, from, at)));
    const spoiled = await run(change((t, place) => spoilRow(t, place, at)));
    for (const [name, place] of Object.entries(outputs)) {
      for (const found of [copied, spoiled]) {
        const rowOf = place === undefined ? () => -1 : rowOfEach(base[name]!.shape, place);
        const touched = toNumbers(base[name]!)
          .findIndex((v, i) => rowOf(i) !== at && !Object.is(v, Number(found[name]!.data[i])));
        expect(touched, `${what}: ${name} element ${touched} changes with row ${at} of ${rows}`).toBe(-1);
      }
      if (place === undefined) continue;
      const expected = rowValues(base[name]!, place, from);
      rowValues(copied[name]!, place, at).forEach((v, i) => {
        expect(Math.abs(v - expected[i]!) <= 1e-5 * (1 + Math.abs(v)) || Object.is(v, expected[i]),
          `${what}: row ${at} of ${name} depends on its position`).toBe(true);
      });
    }
  }
}
