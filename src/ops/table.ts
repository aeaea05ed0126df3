import { GhostgradError } from '../errors.ts';
import { type Node, type OperatorSemantics, showNode } from '../graph/ir.ts';
import { nearest } from '../suggest.ts';
import { isFloat } from '../tensor/tensor.ts';
import { activations } from './activations.ts';
import { arranging } from './arranging.ts';
import { attention } from './attention.ts';
import { bitwise } from './bitwise.ts';
import { type Composite, expansion, isComposite } from './composite.ts';
import { contributed } from './contributed.ts';
import { convolution } from './convolution.ts';
import { contraction } from './einsum.ts';
import { elementwise } from './elementwise.ts';
import { gathering } from './gathering.ts';
import { linear } from './linear.ts';
import { losses } from './losses.ts';
import { normalization } from './normalization.ts';
import { plainNormalization } from './plain-normalization.ts';
import type { NoGradient, ObstacleContext, Operator } from './operator.ts';
import { pooling } from './pooling.ts';
import { products } from './products.ts';
import { quantization } from './quantization.ts';
import { recurrent } from './recurrent.ts';
import { reductions } from './reductions.ts';
import { refusalOf } from './refusals.ts';
import { resizing } from './resize.ts';
import { sampling } from './sampling.ts';
import { scattering } from './scatter.ts';
import { shape } from './shape.ts';
import { slicing } from './slicing.ts';
import { spectral } from './spectral.ts';
import { traditional } from './traditional-ml.ts';

/** The entries by what they do. */
export const families = {
  elementwise, activations, reductions, shape, slicing, gathering, linear, convolution, pooling,
  normalization: { ...normalization, ...plainNormalization },
  resizing, scattering, sampling, arranging, contraction, losses, spectral, products, bitwise, quantization, traditional,
  recurrent, attention, contributed,
} satisfies Record<string, Readonly<Record<string, Operator | Composite>>>;

type Families = typeof families;

/** The operators known: ONNX names, or `domain:Name` outside the standard set. */
export type OperatorName = { [F in keyof Families]: keyof Families[F] }[keyof Families];

type Table = { readonly [K in OperatorName]: Operator | Composite };

/** One entry for each operator, total by type. */
export const operators: Table = Object.assign({}, ...Object.values(families)) as Table;

type Named = Pick<Node, 'op' | 'domain'>;

const keyOf = ({ op, domain }: Named): string => (domain === '' || domain === 'ai.onnx' ? op : `${domain}:${op}`);
const isKnown = (key: string): key is OperatorName => Object.hasOwn(operators, key);

export const hasOperator = (node: Named): boolean => isKnown(keyOf(node));

/** Why the table has no entry for a node's operator; undefined where it has one. */
export function missingOf(node: Named): NoGradient | undefined {
  const key = keyOf(node);
  return isKnown(key) ? undefined : refusalOf(key) ?? unknownOperator(key, node);
}

const standardDomains = ['', 'ai.onnx', 'ai.onnx.ml', 'com.microsoft'];

function unknownOperator(key: string, { domain }: Named): NoGradient {
  const near = nearest(key, Object.keys(operators));
  const origin = standardDomains.includes(domain) ? '' : `; the operators of "${domain}" are known to its makers alone`;
  return {
    reason: `it is not in the table of operators${near === undefined ? '' : ` (the nearest name there is ${near})`}${origin}`,
    fix: 'replace the operator by supported ones before export, or add an entry for it under src/ops/',
  };
}

/** The entry of a node's operator. Throws GhostgradError when the table has none. */
export function entryOf(node: Pick<Node, 'op' | 'domain' | 'name'>): Operator | Composite {
  const key = keyOf(node);
  if (isKnown(key)) return operators[key];
  const { reason, fix } = missingOf(node) ?? {};
  throw new GhostgradError({ what: `unsupported operator ${key}: ${reason}`, where: showNode(node), found: key, fix });
}

/** Why no gradient flows back through a node; undefined where its operator's gradient rule holds. */
export function noGradientOf(context: ObstacleContext): NoGradient | undefined {
  const { gradient, obstacle } = operatorOf(context.node);
  return 'reason' in gradient ? gradient : obstacle?.(context);
}

/** The entry of an operator that is not composite; every graph that is differentiated has been expanded before. */
export function operatorOf(node: Pick<Node, 'op' | 'domain' | 'name'>): Operator {
  const entry = entryOf(node);
  if (isComposite(entry)) throw new Error(`${showNode(node)} is composite and was not expanded`);
  return entry;
}

/** What specialisation needs to know of the table. */
export const semantics: OperatorSemantics = {
  untrained: (node) => (hasOperator(node) ? entryOf(node).untrained ?? [] : []),
  infer: (node, inputs, constants) => {
    const entry = entryOf(node);
    if (!isComposite(entry)) return entry.shape({ node, inputs, constants }).slice(0, node.outputs.length);
    if (entry.shape !== undefined) return entry.shape({ node, inputs, constants }).slice(0, node.outputs.length);
    // The shapes of an expansion follow from integers; a float operand's value may be a parameter's.
    const fixed = constants.map((t) => (t === undefined || isFloat(t.dtype) ? undefined : t));
    const { types } = expansion(entry, node, inputs, fixed, semantics);
    return node.outputs.map((name) => types.get(name) ?? { dtype: 'float32', shape: [] });
  },
  fold: (node, inputs, constants) => {
    const entry = entryOf(node);
    if (isComposite(entry)) return undefined;
    const { fold: rule, foldsTypes } = entry;
    const given = node.inputs.findLastIndex((v) => v !== '') + 1;
    const known = constants.slice(0, given).filter((t) => t !== undefined);
    return known.length === given || foldsTypes === true ? rule?.({ node, inputs, constants: known }) : undefined;
  },
};
