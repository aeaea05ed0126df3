import type { Mode } from '../clipping/plan.ts';
import { defaultRho } from '../clipping/norm.ts';
import { stepNames } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import type { Engine, Feeds } from '../runtime/engine.ts';
import { type FloatTensor, type Tensor, int64, tensor } from '../tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from './compile.ts';
import { labelsInput } from './loss.ts';

/** Reference values for one batch: exact per-example losses, norms and gradients. */
export interface Expected {
  readonly inputs: Readonly<Record<string, Tensor>>;
  readonly labels: readonly number[];
  readonly output: string;
  readonly losses: readonly number[];
  /** By parameter, one squared norm for each example. */
  readonly squaredNorms: Readonly<Record<string, readonly number[]>>;
  /** Full per-example gradients [B, ...shape] of some parameters. */
  readonly gradients: Readonly<Record<string, Float32Array>>;
  readonly clip: { readonly norm: number; readonly sums: Readonly<Record<string, Float32Array>> } | undefined;
}

export interface CheckResult {
  readonly ok: boolean;
  readonly maxRelativeError: { readonly loss: number; readonly norms: number; readonly gradients: number };
  readonly worst: { readonly parameter: string; readonly example: number };
}

/** Largest relative error that passes. */
export const checkTolerance = 1e-4;

/**
 * Compares a model's private step with reference gradients: losses, norms by parameter, per-example gradients and
 * the clipped sum. Errors are relative to the expected value, or, where a parameter's gradient is about zero, to
 * the norm of the example's whole gradient.
 */
export async function check(model: Graph, expected: Expected, engine: Engine, mode: Mode = 'book-keeping'): Promise<CheckResult> {
  const names = Object.keys(expected.squaredNorms);
  requireAll(names, [...model.initializers.keys()]);
  const analysis = analyse({
    model, loss: 'cross-entropy', output: expected.output, trainable: names,
    exampleShapes: Object.fromEntries(Object.entries(expected.inputs).map(([name, t]) => [name, t.shape.slice(1)])),
  });
  requireTrainable(analysis);
  requireAll(names, analysis.parameters);
  const rows = expected.labels.length;
  const step = compileTask(analysis, rows, {
    mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1, diagnostics: true,
  });
  const session = await engine.compile(step.graph);
  let parameters: Feeds = Object.fromEntries(analysis.parameters.map((name) => {
    const t = model.initializers.get(name) as FloatTensor;
    return [name, tensor('float32', t.shape, t.data.slice())];
  }));
  const run = async (present: (row: number) => boolean, threshold: number) => {
    const { outputs, feeds } = await session.run({
      ...parameters,
      ...Object.fromEntries(Object.entries(expected.inputs).map(([name, t]) => [name, { ...t, data: t.data.slice() }])),
      [labelsInput]: int64(expected.labels),
      [stepNames.rowMask]: tensor('bool', [rows], Uint8Array.from({ length: rows }, (_, i) => Number(present(i)))),
      [stepNames.threshold]: tensor('float32', [], Float32Array.of(threshold)),
    });
    parameters = Object.fromEntries(analysis.parameters.map((name) => [name, feeds[name]!]));
    return (name: string) => outputs[name]!.data as Float32Array;
  };

  const everything = await run(() => true, expected.clip?.norm ?? Infinity);
  const errors = { loss: 0, norms: 0, gradients: 0 };
  let worst = { parameter: '', example: 0, error: -1 };
  const note = (kind: keyof typeof errors, parameter: string, example: number, error: number) => {
    const size = Number.isFinite(error) ? error : Infinity;
    errors[kind] = Math.max(errors[kind], size);
    if (size > worst.error) worst = { parameter, example, error: size };
  };
  expected.losses.forEach((loss, i) => note('loss', '', i, relative(everything(stepNames.losses)[i]!, loss, Math.abs(loss))));

  const totals = expected.losses.map((_, i) => Math.sqrt(names.reduce((sum, name) => sum + expected.squaredNorms[name]![i]!, 0)));
  const squared = everything(stepNames.squaredNorms);
  step.layers.forEach(({ parameter }, column) => totals.forEach((total, i) => {
    const wanted = Math.sqrt(expected.squaredNorms[parameter]![i]!);
    const found = Math.sqrt(Math.max(0, squared[i * step.layers.length + column]!));
    note('norms', parameter, i, relative(found, wanted, wanted > 1e-3 * total ? wanted : total));
  }));

  for (const [name, sum] of Object.entries(expected.clip?.sums ?? {})) {
    note('gradients', name, -1, arrayError(everything(stepNames.sum(name)), sum, largest(sum)));
  }
  for (let i = 0; i < rows; i++) {
    // Alone and unclipped, an example's sum is its gradient.
    const alone = await run((row) => row === i, Infinity);
    for (const [name, all] of Object.entries(expected.gradients)) {
      const wanted = all.subarray((i * all.length) / rows, ((i + 1) * all.length) / rows);
      const scale = largest(wanted);
      note('gradients', name, i, arrayError(alone(stepNames.sum(name)), wanted, scale > 1e-4 * totals[i]! ? scale : totals[i]!));
    }
  }
  await session.release();
  return {
    ok: Math.max(errors.loss, errors.norms, errors.gradients) <= checkTolerance,
    maxRelativeError: errors, worst: { parameter: worst.parameter, example: worst.example },
  };
}

const relative = (found: number, wanted: number, scale: number): number => Math.abs(found - wanted) / Math.max(scale, 1e-12);
const largest = (xs: Float32Array): number => xs.reduce((m, x) => Math.max(m, Math.abs(x)), 0);

function arrayError(found: Float32Array, wanted: Float32Array, scale: number): number {
  if (found.length !== wanted.length) return Infinity;
  return found.reduce((worst, x, i) => Math.max(worst, relative(x, wanted[i]!, scale)), 0);
}

/** Reads the JSON form of reference gradients. Throws GhostgradError when a part is missing or malformed. */
export function parseExpected(text: string, where: string): Expected {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw new GhostgradError({ what: 'not a JSON file', where, expected: 'reference gradients as JSON', fix: 'give the file made for this model' }, { cause });
  }
  const at = <T>(object: unknown, key: string): T => {
    const value = typeof object === 'object' && object !== null ? (object as Record<string, unknown>)[key] : undefined;
    if (value === undefined) {
      throw new GhostgradError({ what: 'reference gradients lack a field', where: `${where}: ${key}`, expected: 'inputs, loss, perExampleLoss, parameters', fix: 'give a complete file' });
    }
    return value as T;
  };
  const loss = at<{ kind: string; output: string; labels: number[] }>(json, 'loss');
  if (loss.kind !== 'cross_entropy') {
    throw new GhostgradError({ what: 'unsupported loss of reference gradients', where: `${where}: loss.kind`, found: String(loss.kind), expected: 'cross_entropy', fix: 'check this model when that loss exists' });
  }
  const floats = (encoded: Readonly<Record<string, WireTensor>>) =>
    Object.fromEntries(Object.entries(encoded).map(([name, t]) => [name, decode(t, where).data as Float32Array]));
  const parameters = at<Record<string, { perExampleSquaredNorm: number[] }>>(json, 'parameters');
  const clip = (json as { clip?: { norm: number; sum: Record<string, WireTensor> } }).clip;
  const gradients = (json as { perExampleGradient?: Record<string, WireTensor> }).perExampleGradient ?? {};
  return {
    inputs: Object.fromEntries(Object.entries(at<Record<string, WireTensor>>(json, 'inputs')).map(([name, t]) => [name, decode(t, where)])),
    labels: loss.labels, output: loss.output,
    losses: at<number[]>(json, 'perExampleLoss'),
    squaredNorms: Object.fromEntries(Object.entries(parameters).map(([name, p]) => [name, at<number[]>(p, 'perExampleSquaredNorm')])),
    gradients: floats(gradients),
    clip: clip && { norm: clip.norm, sums: floats(clip.sum) },
  };
}

interface WireTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly base64: string;
}

function decode({ dtype, shape, base64 }: WireTensor, where: string): Tensor {
  const bytes = Uint8Array.from(Buffer.from(base64, 'base64'));
  if (dtype === 'float32') return tensor(dtype, shape, new Float32Array(bytes.buffer));
  if (dtype === 'int64') return tensor(dtype, shape, new BigInt64Array(bytes.buffer));
  throw new GhostgradError({ what: 'unsupported element type', where, found: dtype, expected: 'float32 or int64', fix: 'convert the tensor' });
}

function requireAll(names: readonly string[], present: readonly string[]): void {
  const missing = names.filter((name) => !present.includes(name));
  if (missing.length === 0) return;
  throw new GhostgradError({
    what: 'the model does not train every parameter of the reference', where: 'model', found: `no ${missing.join(', ')}`,
    expected: 'initializers with the names of the reference file', fix: 'give the model that the reference was made with',
  });
}
