import { bytesPerElement, sameShape, sizeOf } from '../tensor/tensor.ts';
import { type Attribute, type Graph, type TypedGraph, showNode, showShape, showType } from './ir.ts';

/**
 * Checks the invariants that every pass relies on; tests run it after each pass.
 *
 * @throws Error (a mistake in a pass, not of the user) with the list of violations: a value defined twice or used
 * before its definition, outputs or types missing, names not unique, tensors whose data does not match their shape,
 * malformed attributes
 */
export function verify(graph: Graph | TypedGraph): void {
  const violations = [...definitions(graph), ...names(graph), ...tensors(graph), ...attributes(graph), ...types(graph)];
  if (violations.length > 0) {
    throw new Error(`graph "${graph.name}" is not valid:\n${violations.map((v) => `  ${v}`).join('\n')}`);
  }
}

function* definitions(graph: Graph): Iterable<string> {
  const defined = new Set<string>();
  const define = function* (name: string, by: string): Iterable<string> {
    if (defined.has(name)) yield `"${name}" is defined twice, the second time by ${by}`;
    defined.add(name);
  };
  for (const { name } of graph.inputs) yield* define(name, 'an input');
  for (const name of graph.initializers.keys()) yield* define(name, 'an initializer');
  for (const node of graph.nodes) {
    for (const input of node.inputs) {
      if (input !== '' && !defined.has(input)) yield `${showNode(node)} uses "${input}" before it is defined`;
    }
    for (const output of node.outputs) if (output !== '') yield* define(output, showNode(node));
    if (node.outputs.every((output) => output === '')) yield `${showNode(node)} has no output`;
  }
  for (const { name } of graph.outputs) if (!defined.has(name)) yield `output "${name}" is not defined`;
  for (const name of graph.literals ?? []) {
    if (!graph.initializers.has(name)) yield `literal "${name}" is not an initializer`;
  }
}

function* names(graph: Graph): Iterable<string> {
  const repeated = (all: readonly string[]): readonly string[] => {
    const seen = new Set<string>();
    return all.filter((name) => seen.size === seen.add(name).size);
  };
  for (const name of repeated(graph.nodes.map((node) => node.name))) yield `two nodes are named "${name}"`;
  for (const name of repeated(graph.outputs.map((output) => output.name))) yield `two outputs are named "${name}"`;
  for (const node of graph.nodes) {
    if (node.name === '' || node.op === '') yield `a node without a name or an operator: ${showNode(node)}`;
  }
  if ([...graph.inputs.map((v) => v.name), ...graph.initializers.keys()].includes('')) {
    yield 'an input or initializer without a name';
  }
}

function* tensors(graph: Graph): Iterable<string> {
  for (const [name, t] of graph.initializers) {
    if (t.data.length !== sizeOf(t.shape)) {
      yield `initializer "${name}", ${showType(t)}, holds ${t.data.length} elements`;
    }
    if (t.data.BYTES_PER_ELEMENT !== bytesPerElement(t.dtype)) {
      yield `initializer "${name}", ${showType(t)}, is stored as ${t.data.constructor.name}`;
    }
  }
}

const isWellFormed: { readonly [T in Attribute['type']]: (value: unknown) => boolean } = {
  int: (value) => Number.isInteger(value),
  float: (value) => typeof value === 'number',
  string: (value) => typeof value === 'string',
  tensor: (value) =>
    typeof value === 'object' && value !== null && 'dtype' in value && 'shape' in value && 'data' in value,
  ints: (value) => Array.isArray(value) && value.every(Number.isInteger),
  floats: (value) => Array.isArray(value) && value.every((x) => typeof x === 'number'),
  strings: (value) => Array.isArray(value) && value.every((x) => typeof x === 'string'),
  other: (value) => typeof value === 'string',
};

function* attributes(graph: Graph): Iterable<string> {
  for (const node of graph.nodes) {
    for (const [name, { type, value }] of Object.entries(node.attributes)) {
      if (!isWellFormed[type](value)) yield `attribute "${name}" of ${showNode(node)} is not of type ${type}`;
    }
  }
}

function* types(graph: Graph | TypedGraph): Iterable<string> {
  if (!('types' in graph)) return;
  const defined = [
    ...graph.inputs.map((v) => v.name), ...graph.initializers.keys(), ...graph.nodes.flatMap((node) => node.outputs),
  ].filter((name) => name !== '');
  for (const name of defined) {
    const type = graph.types.get(name);
    if (type === undefined) yield `"${name}" has no type`;
    else if (!type.shape.every((n) => Number.isSafeInteger(n) && n >= 0))
      yield `"${name}" has the impossible type ${showType(type)}`;
  }
  for (const [name, t] of graph.initializers) {
    const type = graph.types.get(name);
    if (type && (type.dtype !== t.dtype || !sameShape(type.shape, t.shape))) {
      yield `initializer "${name}" is ${showType(t)} but has the type ${showType(type)}`;
    }
  }
  for (const value of [...graph.inputs, ...graph.outputs]) {
    const type = graph.types.get(value.name);
    const declared = `${value.dtype}${value.shape ? showShape(value.shape) : ' of unknown rank'}`;
    if (type && declared !== showType(type)) {
      yield `"${value.name}" is declared ${declared} but has the type ${showType(type)}`;
    }
  }
}
