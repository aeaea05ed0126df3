import { GhostgradError } from '../errors.ts';
import { type DType, type Tensor, allocate, bytesPerElement, dtypes, int64, sizeOf, tensor } from '../tensor/tensor.ts';
import type { LossName } from './loss.ts';

/** Reference values for one batch: exact per-example losses, norms and gradients. */
export interface Expected {
  readonly inputs: Readonly<Record<string, Tensor>>;
  readonly loss: LossName;
  /** The value of the model that the loss is taken of. */
  readonly output: string;
  /** What the loss compares the output with: classes [B], or tokens [B, T]. */
  readonly labels: Tensor;
  readonly losses: readonly number[];
  /** By parameter, one squared norm for each example. */
  readonly squaredNorms: Readonly<Record<string, readonly number[]>>;
  /** Full per-example gradients [B, ...shape] of some parameters. */
  readonly gradients: Readonly<Record<string, Float32Array>>;
  readonly clip: ExpectedClip | undefined;
}

/** The sum of the gradients clipped at `norm`: of some parameters whole, of others its squared norm. */
export interface ExpectedClip {
  readonly norm: number;
  readonly sums: Readonly<Record<string, Float32Array>>;
  readonly squaredNorms: Readonly<Record<string, number>>;
}

/** Reads the JSON form of reference gradients. Throws GhostgradError when a part is missing or malformed. */
export function parseExpected(text: string, where: string): Expected {
  const json = fieldsOf(parse(text, where), where);
  const inputs = json.tensors('inputs');
  const losses = json.numbers('perExampleLoss');
  const { loss, output, labels } = lossOf(json.fields('loss'), inputs, losses.length, where);
  for (const [name, t] of Object.entries({ ...inputs, labels })) {
    if (t.shape[0] !== losses.length) {
      throw refusal('reference gradients contradict themselves', `${where}: ${name}`,
        `${t.shape[0] ?? 'no'} rows`, `${losses.length}, as perExampleLoss has`);
    }
  }
  const clip = json.has('clip') ? json.fields('clip') : undefined;
  return {
    inputs, loss, output, labels, losses,
    squaredNorms: json.fields('parameters').map((parameter) => parameter.numbers('perExampleSquaredNorm', losses.length)),
    gradients: json.has('perExampleGradient') ? json.floats('perExampleGradient') : {},
    clip: clip && {
      norm: clip.number('norm'),
      sums: clip.has('sum') ? clip.floats('sum') : {},
      squaredNorms: clip.has('sumSquaredNorm') ? clip.fields('sumSquaredNorm').mapNumbers() : {},
    },
  };
}

/** What a reference file calls the losses that are known here. */
const losses: Readonly<Record<string, LossName>> = {
  cross_entropy: 'cross-entropy', next_token_cross_entropy_sum: 'causal-lm',
};

function lossOf(json: Fields, inputs: Readonly<Record<string, Tensor>>, rows: number, where: string) {
  const kind = json.text('kind');
  const loss = losses[kind];
  if (loss === undefined) {
    throw refusal('unsupported loss of reference gradients', `${where}: loss.kind`, kind, Object.keys(losses).join(' or '));
  }
  const labels = json.has('labels') ? int64(json.numbers('labels', rows)) : undefined;
  if (loss === 'causal-lm') return { loss, output: json.text('output'), labels: tokens(inputs, where) };
  return { loss, output: json.text('output'), labels: labels ?? int64(json.numbers('labels', rows)) };
}

/** The tokens that a language model is to predict: those that it reads. */
function tokens(inputs: Readonly<Record<string, Tensor>>, where: string): Tensor {
  const whole = Object.entries(inputs).filter(([, { dtype }]) => dtype === 'int64' || dtype === 'int32');
  const found = inputs['input_ids'] ?? (whole.length === 1 ? whole[0]?.[1] : undefined);
  if (found === undefined) {
    throw refusal('no tokens to predict', `${where}: inputs`, Object.keys(inputs).join(', '), 'integers named input_ids');
  }
  return int64(Array.from(found.data as ArrayLike<number | bigint>), found.shape);
}

const refusal = (what: string, where: string, found: string, expected: string): GhostgradError => new GhostgradError({
  what, where, found, expected, fix: 'give a complete reference file, made for this model',
});

function parse(text: string, where: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new GhostgradError({
      what: 'not a JSON file', where, expected: 'reference gradients as JSON', fix: 'give the file made for this model',
    }, { cause });
  }
}

/** The members of a JSON object, each read as what it is expected to be. */
interface Fields {
  readonly has: (key: string) => boolean;
  readonly text: (key: string) => string;
  readonly number: (key: string) => number;
  /** A list of numbers, of `length` if that is given. */
  readonly numbers: (key: string, length?: number) => readonly number[];
  readonly fields: (key: string) => Fields;
  readonly tensors: (key: string) => Readonly<Record<string, Tensor>>;
  readonly floats: (key: string) => Readonly<Record<string, Float32Array>>;
  readonly map: <T>(read: (fields: Fields) => T) => Readonly<Record<string, T>>;
  readonly mapNumbers: () => Readonly<Record<string, number>>;
}

function fieldsOf(json: unknown, where: string): Fields {
  const isObject = typeof json === 'object' && json !== null && !Array.isArray(json);
  if (!isObject) throw refusal('reference gradients lack a part', where, typeof json, 'an object');
  const object = json as Readonly<Record<string, unknown>>;
  const has = (key: string): boolean => Object.hasOwn(object, key) && object[key] !== null;
  const at = <T>(key: string, expected: string, is: (value: unknown) => value is T): T => {
    const value = has(key) ? object[key] : undefined;
    if (is(value)) return value;
    const what = value === undefined ? 'reference gradients lack a field' : 'reference gradients have a malformed field';
    throw refusal(what, `${where}: ${key}`, value === undefined ? 'nothing' : typeof value, expected);
  };
  const isNumber = (value: unknown): value is number => typeof value === 'number';
  const inner = (key: string): Fields => fieldsOf(at(key, 'an object', isPresent), `${where}: ${key}`);
  const map = <T>(read: (fields: Fields) => T): Readonly<Record<string, T>> => Object.fromEntries(
    Object.keys(object).map((key) => [key, read(inner(key))]));
  const tensors = (key: string) => inner(key).map((encoded) => decode(encoded, `${where}: ${key}`));
  return {
    has, map, tensors,
    text: (key) => at(key, 'a text', (value) => typeof value === 'string'),
    number: (key) => at(key, 'a number', isNumber),
    numbers: (key, length) => at(key, `${length === undefined ? 'a list of' : length} numbers`,
      (value): value is readonly number[] => Array.isArray(value) && value.every(isNumber) && (length ?? value.length) === value.length),
    fields: inner,
    floats: (key) => Object.fromEntries(Object.entries(tensors(key)).map(([name, t]) => {
      if (t.dtype !== 'float32') throw refusal('unsupported element type', `${where}: ${key}: ${name}`, t.dtype, 'float32');
      return [name, t.data as Float32Array];
    })),
    mapNumbers: () => Object.fromEntries(Object.keys(object).map((key) => [key, at(key, 'a number', isNumber)])),
  };
}

const isPresent = (value: unknown): value is object => value !== undefined;

/** `{dtype, shape, base64}`, little-endian. */
function decode(encoded: Fields, where: string): Tensor {
  const named = encoded.text('dtype');
  const shape = encoded.numbers('shape');
  const dtype = dtypes.find((known): known is DType => known === named);
  if (dtype === undefined) throw refusal('unsupported element type', where, named, dtypes.join(', '));
  const bytes = Buffer.from(encoded.text('base64'), 'base64');
  if (bytes.length !== sizeOf(shape) * bytesPerElement(dtype)) {
    throw refusal('a tensor of another size than its shape', where, `${bytes.length} bytes`, `${dtype}[${shape.join(', ')}]`);
  }
  const data = allocate(dtype, sizeOf(shape));
  new Uint8Array(data.buffer).set(bytes);
  return tensor(dtype, shape, data);
}
