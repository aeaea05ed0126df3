import { GhostgradError } from '../errors.ts';
import { type Graph, showShape } from '../graph/ir.ts';
import { showValue, unknownName } from '../suggest.ts';
import type { Shape } from '../tensor/tensor.ts';

/**
 * Sizes of a model's inputs as a user states them. By the name of an input: all its dimensions, the batch first, which
 * is a letter or word, or the number of rows that costs are told for. By the name of a symbolic dimension: its size.
 */
export type ShapeBindings = Readonly<Record<string, readonly (number | string)[]>>;

export interface BoundShapes {
  /** Shape of one example by input, for all inputs that the bindings determine. */
  readonly exampleShapes: Readonly<Record<string, Shape>>;
  /** The number of rows, where a binding gives one. */
  readonly batchSize?: number;
}

/**
 * What bindings say of the inputs of a model. A symbolic dimension that is bound through one input, or by its own name,
 * is bound in all inputs that use it.
 *
 * @throws GhostgradError for a name that is neither an input nor a symbolic dimension, a wrong number of dimensions, a
 * dimension that is no whole number of at least 1, and two sizes for one symbolic dimension or for the batch
 */
export function bindShapes(model: Graph, bindings: ShapeBindings, where = '--shape'): BoundShapes {
  const symbols = symbolsOf(model);
  const sizes = new Map<string, number>();
  const bind = (symbol: string, size: number, by: string): void => {
    const before = sizes.get(symbol);
    if (before !== undefined && before !== size) {
      throw new GhostgradError({
        what: `two sizes for the dimension "${symbol}"`, where: `${where} ${by}`, found: String(size),
        expected: `${before}, as bound before`, fix: 'give every input that shares the dimension the same size',
      });
    }
    sizes.set(symbol, size);
  };
  const given = new Map<string, Shape>();
  const batches = new Set<number>();
  for (const [name, dimensions] of Object.entries(bindings)) {
    const input = model.inputs.find((i) => i.name === name);
    if (input === undefined) {
      const [size] = dimensions;
      if (!symbols.has(name)) throw unknownName('input', name, [...model.inputs.map((i) => i.name), ...symbols], where);
      if (dimensions.length !== 1 || !isSize(size)) throw notAShape(name, dimensions, where);
      bind(name, size, name);
      continue;
    }
    const [batch, ...example] = dimensions;
    if (!(typeof batch === 'string' || isSize(batch)) || !example.every(isSize)) throw notAShape(name, dimensions, where);
    if (typeof batch === 'number') batches.add(batch);
    if (input.shape !== null && input.shape.length !== dimensions.length) {
      throw new GhostgradError({
        what: 'wrong number of dimensions', where: `${where} ${name}`, found: showShape(dimensions),
        expected: showShape(input.shape), fix: 'give one size for each dimension, the batch first',
      });
    }
    given.set(name, example);
    example.forEach((size, i) => {
      const declared = input.shape?.[i + 1];
      if (typeof declared === 'string') bind(declared, size, name);
    });
  }
  if (batches.size > 1) {
    throw new GhostgradError({
      what: 'two sizes for the batch', where, found: [...batches].join(' and '), expected: 'one number of rows',
      fix: 'write a letter for the batch: input=B,128',
    });
  }
  const [batchSize] = batches;
  const exampleShapes: Record<string, Shape> = {};
  for (const input of model.inputs) {
    const shape = given.get(input.name) ?? resolved(input.shape, sizes);
    if (shape !== undefined) exampleShapes[input.name] = shape;
  }
  return { exampleShapes, ...(batchSize !== undefined && { batchSize }) };
}

const isSize = (n: unknown): n is number => typeof n === 'number' && Number.isSafeInteger(n) && n > 0;

const notAShape = (name: string, dimensions: readonly (number | string)[], where: string): GhostgradError =>
  new GhostgradError({
    what: 'not a shape', where, found: `${name}=${dimensions.join()}`, expected: 'input=B,dim,dim,…, or dimension=size',
    fix: 'e.g. --shape tokens=B,128',
  });

/** Names of dimensions other than the batch's. */
const symbolsOf = (model: Graph): ReadonlySet<string> =>
  new Set(model.inputs.flatMap(({ shape }) => (shape ?? []).slice(1).filter((d) => typeof d === 'string')));

/** The shape of one example, when every dimension but the first has a size. */
function resolved(
  declared: Graph['inputs'][number]['shape'], sizes: ReadonlyMap<string, number>,
): Shape | undefined {
  if (declared === null || declared.length === 0) return undefined;
  const shape = declared.slice(1).map((d) => (typeof d === 'string' ? sizes.get(d) : d));
  return shape.every((d) => typeof d === 'number') ? shape : undefined;
}

/**
 * The shape of one example of an input: as given for it, as declared, or as the dimensions that it shares with inputs of
 * given shapes say.
 *
 * @throws GhostgradError when nothing says it
 */
export function exampleShape(
  { model, exampleShapes = {} }: { readonly model: Graph; readonly exampleShapes?: Readonly<Record<string, Shape>> | undefined },
  input: string,
): Shape {
  const given = exampleShapes[input];
  if (given !== undefined) return given;
  const sizes = new Map<string, number>();
  for (const { name, shape } of model.inputs) {
    exampleShapes[name]?.forEach((size, i) => {
      const declared = shape?.[i + 1];
      if (typeof declared === 'string' && !sizes.has(declared)) sizes.set(declared, size);
    });
  }
  const declared = model.inputs.find(({ name }) => name === input)?.shape;
  const shape = resolved(declared ?? null, sizes);
  if (shape !== undefined) return shape;
  const example = (declared ?? [null, null]).slice(1).map((d) => (typeof d === 'number' ? d : 128));
  throw new GhostgradError({
    what: 'the shape of an input is not known', where: `input "${input}"`,
    found: declared ? showShape(declared) : 'no declared shape', expected: 'a fixed shape for one example',
    fix: `give it, e.g. --shape ${[`${input}=B`, ...example].join()}`,
  });
}

/**
 * Bindings as a command line gives them, each of its own or several in one text: `ids=B,128,mask=B,128`.
 *
 * @throws GhostgradError for a text without a name or without sizes
 */
export function parseShapes(texts: readonly string[], where = '--shape'): ShapeBindings {
  const bindings: Record<string, (number | string)[]> = {};
  for (const text of texts) {
    let name: string | undefined;
    for (const piece of text.split(',').map((part) => part.trim())) {
      const at = piece.lastIndexOf('=');
      if (at >= 0) {
        name = piece.slice(0, at);
        if (name === '' || Object.hasOwn(bindings, name)) throw badText(name, text, where);
        bindings[name] = [];
      }
      const dimension = piece.slice(at + 1);
      if (name === undefined || dimension === '') throw badText('', text, where);
      bindings[name]!.push(/^[+-]?\d/.test(dimension) ? Number(dimension) : dimension);
    }
  }
  return bindings;
}

const badText = (name: string, text: string, where: string): GhostgradError => new GhostgradError({
  what: name === '' ? 'not a shape' : `two shapes for "${name}"`, where, found: showValue(text),
  expected: 'input=B,dim,dim,…, each input once', fix: 'e.g. --shape tokens=B,128',
});
