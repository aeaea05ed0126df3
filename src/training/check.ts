import type { Mode } from '../clipping/plan.ts';
import { defaultRho } from '../clipping/norm.ts';
import { type StepLayer, stepNames } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import type { Engine, Feeds } from '../runtime/engine.ts';
import { type Tensor, sizeOf, tensor } from '../tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from './compile.ts';
import type { Expected } from './expected.ts';
import { labelsInput } from './loss.ts';

/** What is compared: losses, norms by parameter, and gradients (of each example, and their clipped sum). */
type Quantity = 'loss' | 'norms' | 'gradients';

export interface CheckResult {
  readonly ok: boolean;
  readonly maxRelativeError: Readonly<Record<Quantity, number>>;
  readonly worst: {
    readonly quantity: Quantity;
    /** Empty for the loss. */
    readonly parameter: string;
    /** Row of the batch; -1 for the clipped sum. */
    readonly example: number;
    readonly error: number;
  };
}

/** Largest relative error that passes. */
export const checkTolerance = 1e-4;

/**
 * Compares a model's private step with reference gradients: losses, norms by parameter, per-example gradients and
 * the clipped sum. Errors are relative to the expected value, or, where a parameter's gradient is about zero, to
 * the norm of the example's whole gradient.
 *
 * @throws GhostgradError where the model lacks a parameter of the reference or cannot be trained privately
 */
export async function check(model: Graph, expected: Expected, engine: Engine, mode: Mode = 'book-keeping'): Promise<CheckResult> {
  const names = Object.keys(expected.squaredNorms);
  requireAll(names, model);
  const step = compileCheck(model, expected, mode);
  const found = await runCheck(step, model, expected, engine);
  return compare(expected, found);
}

/** What the compiled step says of the batch. */
interface Found {
  readonly losses: readonly number[];
  /** By parameter, one for each example. */
  readonly norms: ReadonlyMap<string, readonly number[]>;
  /** The clipped sum of one parameter. */
  readonly sum: (parameter: string) => Float32Array;
  /** One example's gradient of one parameter. */
  readonly gradient: (parameter: string, example: number) => Float32Array;
}

function compileCheck(model: Graph, { loss, output, inputs, losses, squaredNorms }: Expected, mode: Mode) {
  const graph = prune(model, [output]);
  requireInputs(graph, inputs);
  const analysis = analyse({
    model: graph, loss, output,
    // What the loss does not depend on has a gradient of zero, and the reference may well say so.
    trainable: Object.keys(squaredNorms).filter((name) => graph.initializers.has(name)),
    exampleShapes: Object.fromEntries(graph.inputs.map(({ name }) => [name, inputs[name]?.shape.slice(1) ?? []])),
  });
  requireTrainable(analysis);
  const { graph: compiled, layers } = compileTask(analysis, losses.length, {
    mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1, diagnostics: true,
  });
  return { graph: compiled, layers };
}

async function runCheck(
  { graph, layers }: { readonly graph: Parameters<Engine['compile']>[0]; readonly layers: readonly StepLayer[] },
  model: Graph, expected: Expected, engine: Engine,
): Promise<Found> {
  const rows = expected.losses.length;
  const session = await engine.compile(graph);
  // Buffers move to the engine and back: these are copies.
  const copy = (t: Tensor) => ({ ...t, data: t.data.slice() });
  let parameters: Feeds = Object.fromEntries(layers.map(({ parameter }) => [parameter, copy(model.initializers.get(parameter)!)]));
  const given = graph.inputs.map(({ name }) => name);
  const batch = Object.entries({ ...expected.inputs, [labelsInput]: expected.labels }).filter(([name]) => given.includes(name));
  const run = async (present: (row: number) => boolean, threshold: number) => {
    const { outputs, feeds } = await session.run({
      ...parameters,
      ...Object.fromEntries(batch.map(([name, t]) => [name, copy(t)])),
      [stepNames.rowMask]: tensor('bool', [rows], Uint8Array.from({ length: rows }, (_, i) => Number(present(i)))),
      [stepNames.thresholds]: tensor('float32', [1], Float32Array.of(threshold)),
    });
    parameters = Object.fromEntries(layers.map(({ parameter }) => [parameter, feeds[parameter]!]));
    return (name: string) => outputs[name]!.data as Float32Array;
  };
  try {
    const together = await run(() => true, expected.clip?.norm ?? Infinity);
    const alone: ((name: string) => Float32Array)[] = [];
    // Alone and unclipped, an example's sum is its gradient.
    for (let i = 0; i < rows; i++) alone.push(await run((row) => row === i, Infinity));
    const squared = together(stepNames.squaredNorms);
    const sumOf = (outputs: typeof together, name: string): Float32Array => (layers.some(({ parameter }) => parameter === name)
      ? outputs(stepNames.sum(name)) : new Float32Array(sizeOf(model.initializers.get(name)?.shape ?? [])));
    return {
      losses: Array.from(together(stepNames.losses)),
      // A parameter's norm is that of its parts.
      norms: new Map(layers.map(({ parameter }) => [parameter, expected.losses.map((_, i) => Math.sqrt(layers.reduce(
        (sum, layer, column) => sum + (layer.parameter === parameter ? Math.max(0, squared[i * layers.length + column]!) : 0), 0,
      )))])),
      sum: (name) => sumOf(together, name),
      gradient: (name, example) => sumOf(alone[example]!, name),
    };
  } finally {
    await session.release();
  }
}

function compare(expected: Expected, found: Found): CheckResult {
  const { losses, squaredNorms, gradients, clip } = expected;
  const errors = { loss: 0, norms: 0, gradients: 0 };
  let worst: CheckResult['worst'] = { quantity: 'loss', parameter: '', example: 0, error: -1 };
  const note = (quantity: Quantity, parameter: string, example: number, error: number): void => {
    const size = Number.isFinite(error) ? error : Number.MAX_VALUE;
    errors[quantity] = Math.max(errors[quantity], size);
    if (size > worst.error) worst = { quantity, parameter, example, error: size };
  };
  losses.forEach((loss, i) => note('loss', '', i, relative(found.losses[i]!, loss, Math.abs(loss))));

  const totals = losses.map((_, i) => Math.sqrt(Object.values(squaredNorms).reduce((sum, squared) => sum + squared[i]!, 0)));
  for (const [name, squared] of Object.entries(squaredNorms)) {
    totals.forEach((total, i) => {
      const wanted = Math.sqrt(squared[i]!);
      note('norms', name, i, relative(found.norms.get(name)?.[i] ?? 0, wanted, wanted > 1e-3 * total ? wanted : total));
    });
  }
  const total = Math.max(...totals);
  for (const [name, sum] of Object.entries(clip?.sums ?? {})) {
    const scale = largest(sum);
    note('gradients', name, -1, arrayError(found.sum(name), sum, scale > 1e-4 * total ? scale : total));
  }
  for (const [name, squared] of Object.entries(clip?.squaredNorms ?? {})) {
    const wanted = Math.sqrt(squared);
    note('gradients', name, -1, relative(length(found.sum(name)), wanted, wanted > 1e-3 * total ? wanted : total));
  }
  for (const [name, all] of Object.entries(gradients)) {
    totals.forEach((whole, i) => {
      const wanted = all.subarray((i * all.length) / losses.length, ((i + 1) * all.length) / losses.length);
      const scale = largest(wanted);
      note('gradients', name, i, arrayError(found.gradient(name, i), wanted, scale > 1e-4 * whole ? scale : whole));
    });
  }
  return { ok: worst.error <= checkTolerance, maxRelativeError: errors, worst };
}

const relative = (found: number, wanted: number, scale: number): number => Math.abs(found - wanted) / Math.max(scale, 1e-12);
const largest = (xs: Float32Array): number => xs.reduce((m, x) => Math.max(m, Math.abs(x)), 0);
const length = (xs: Float32Array): number => Math.sqrt(xs.reduce((sum, x) => sum + x * x, 0));

function arrayError(found: Float32Array, wanted: Float32Array, scale: number): number {
  if (found.length !== wanted.length) return Infinity;
  return found.reduce((worst, x, i) => Math.max(worst, relative(x, wanted[i]!, scale)), 0);
}

function requireAll(names: readonly string[], { initializers }: Graph): void {
  const missing = names.filter((name) => initializers.get(name)?.dtype !== 'float32');
  if (missing.length === 0) return;
  throw new GhostgradError({
    what: 'the model does not have every parameter of the reference', where: 'model', found: `no ${missing.join(', ')}`,
    expected: 'initializers with the names of the reference file', fix: 'give the model that the reference was made with',
  });
}

function requireInputs({ inputs }: Graph, given: Expected['inputs']): void {
  const missing = inputs.find(({ name }) => !Object.hasOwn(given, name));
  if (missing === undefined) return;
  throw new GhostgradError({
    what: 'the reference lacks an input of the model', where: `input "${missing.name}"`, found: Object.keys(given).join(', '),
    expected: 'all inputs that the output depends on', fix: 'give the reference made for this model',
  });
}
