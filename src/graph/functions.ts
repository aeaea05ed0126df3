import { create } from '@bufbuild/protobuf';
import {
  type AttributeProto,
  AttributeProto_AttributeType as AttributeType,
  type FunctionProto,
  type ModelProto,
  type NodeProto,
  NodeProtoSchema,
} from 'onnx-buf';
import { GhostgradError } from '../errors.ts';
import { uniqueNames } from './order.ts';

/** More nodes than this after inlining means a file made to exhaust memory. */
const maximumNodes = 200_000;
const maximumDepth = 100;

type Functions = ReadonlyMap<string, FunctionProto>;

const keyOf = (domain: string, name: string, overload: string): string => `${domain}:${name}:${overload}`;

/**
 * The model's nodes with every call of one of its local functions replaced by the function's body.
 *
 * @throws GhostgradError when a function calls itself, holds a subgraph, or was written for another version of
 * an operator set than the model
 */
export function inlineFunctions({ graph, functions, opsetImport }: ModelProto, where: string): readonly NodeProto[] {
  const nodes = graph?.node ?? [];
  if (functions.length === 0) return nodes;
  const versions = new Map(opsetImport.map(({ domain, version }) => [domain, version]));
  functions.forEach((f) => { requirePlain(f, versions, where); });
  const table: Functions = new Map(functions.map((f) => [keyOf(f.domain, f.name, f.overload), f]));
  requireFinite(nodes, table, where);
  const unique = uniqueNames([
    ...nodes.flatMap((node) => node.output),
    ...(graph?.input ?? []).map((v) => v.name),
    ...(graph?.initializer ?? []).map((t) => t.name),
  ]);
  const expand = (node: NodeProto): readonly NodeProto[] => {
    const f = calledBy(node, table);
    return f === undefined ? [node] : bodyOf(f, node, unique).flatMap(expand);
  };
  return nodes.flatMap(expand);
}

const calledBy = (node: NodeProto, table: Functions): FunctionProto | undefined =>
  table.get(keyOf(node.domain, node.opType, node.overload));

interface Extent {
  /** Nodes after inlining, each call counted too. */
  readonly size: number;
  /** How deep calls nest. */
  readonly depth: number;
}

/** Measures the result of inlining beforehand, since a few functions that call one another can stand for 2^60 nodes. */
function requireFinite(nodes: readonly NodeProto[], table: Functions, where: string): void {
  const extents = new Map<FunctionProto, Extent>();
  const sum = (body: readonly NodeProto[], callers: readonly FunctionProto[]): Extent => {
    const parts = body.map((node) => extentOf(node, callers));
    return {
      size: parts.reduce((n, { size }) => n + size, 1),
      depth: parts.reduce((n, { depth }) => Math.max(n, depth), 0),
    };
  };
  const extentOf = (node: NodeProto, callers: readonly FunctionProto[]): Extent => {
    const f = calledBy(node, table);
    if (f === undefined) return { size: 1, depth: 0 };
    const known = extents.get(f);
    if (known !== undefined) return known;
    if (callers.includes(f)) refuse(f, where, 'it calls itself', 'functions without recursion');
    if (callers.length > maximumDepth) {
      refuse(f, where, `calls nested more than ${maximumDepth} deep`, 'a flatter model');
    }
    const { size, depth } = sum(f.node, [...callers, f]);
    if (size > maximumNodes) refuse(f, where, `more than ${maximumNodes} nodes after inlining`, 'a smaller model');
    if (depth >= maximumDepth) refuse(f, where, `calls nested more than ${maximumDepth} deep`, 'a flatter model');
    extents.set(f, { size, depth: depth + 1 });
    return { size, depth: depth + 1 };
  };
  const { size } = sum(nodes, []);
  if (size > maximumNodes) refuse(undefined, where, `${size} nodes after inlining`, `at most ${maximumNodes}`);
}

function refuse(f: FunctionProto | undefined, where: string, found: string, expected: string): never {
  throw new GhostgradError({
    what: f ? `cannot inline the model's function "${f.domain}.${f.name}"` : "cannot inline the model's functions",
    where,
    found,
    expected,
    fix: 'export the model without local functions',
  });
}

function requirePlain(f: FunctionProto, versions: ReadonlyMap<string, bigint>, where: string): void {
  for (const { domain, version } of f.opsetImport) {
    const found = versions.get(domain);
    if (found !== undefined && found !== version) {
      refuse(f, where, `operator set "${domain}" version ${version}`, `version ${found}, as in the model`);
    }
  }
  const nested = f.node.find((node) =>
    node.attribute.some((a) => a.type === AttributeType.GRAPH || a.type === AttributeType.GRAPHS),
  );
  if (nested) refuse(f, where, `a subgraph in its ${nested.opType} node "${nested.name}"`, 'a body of plain nodes');
}

/** The body of a function with the values and attributes of a call put in the place of its formal ones. */
function bodyOf(f: FunctionProto, call: NodeProto, unique: (hint: string) => string): readonly NodeProto[] {
  const prefix = call.name !== '' ? call.name : f.name;
  const values = new Map<string, string>([['', '']]);
  f.input.forEach((formal, i) => values.set(formal, call.input[i] ?? ''));
  const passed = f.output.filter((formal) => f.input.includes(formal));
  f.output.forEach((formal, i) => {
    const actual = call.output[i] ?? '';
    if (actual !== '' && !passed.includes(formal)) values.set(formal, actual);
  });
  const actualOf = (formal: string): string => {
    const known = values.get(formal);
    if (known !== undefined) return known;
    const name = unique(`${prefix}/${formal}`);
    values.set(formal, name);
    return name;
  };
  const attributes = new Map<string, AttributeProto>([...f.attributeProto, ...call.attribute].map((a) => [a.name, a]));
  const body = f.node.map((node) =>
    create(NodeProtoSchema, {
      opType: node.opType,
      domain: node.domain,
      overload: node.overload,
      name: `${prefix}/${node.name !== '' ? node.name : node.opType}`,
      input: node.input.map(actualOf),
      output: node.output.map(actualOf),
      attribute: node.attribute.flatMap((a) => {
        if (a.refAttrName === '') return [a];
        const actual = attributes.get(a.refAttrName);
        return actual === undefined ? [] : [{ ...actual, name: a.name, refAttrName: '' }];
      }),
    }),
  );
  // A function may hand an input straight through, or return one value under two names.
  const aliases = f.output.flatMap((formal, i) => {
    const actual = call.output[i] ?? '';
    const value = values.get(formal);
    return actual === '' || value === actual ? [] : [create(NodeProtoSchema, {
      opType: 'Identity', name: `${prefix}/Identity`, input: [value ?? ''], output: [actual],
    })];
  });
  return [...body, ...aliases];
}
