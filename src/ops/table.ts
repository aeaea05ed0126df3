import { GhostgradError } from '../errors.ts';
import { type Node, type OperatorSemantics, showNode } from '../graph/ir.ts';
import { nearest } from '../suggest.ts';
import { activations } from './activations.ts';
import { convolution } from './convolution.ts';
import { elementwise } from './elementwise.ts';
import { gathering } from './gathering.ts';
import { linear } from './linear.ts';
import { normalization } from './normalization.ts';
import type { NoGradient, ObstacleContext, Operator } from './operator.ts';
import { pooling } from './pooling.ts';
import { reductions } from './reductions.ts';
import { shape } from './shape.ts';
import { slicing } from './slicing.ts';

const families = {
  ...elementwise, ...activations, ...reductions, ...shape, ...slicing, ...gathering,
  ...linear, ...convolution, ...pooling, ...normalization,
};

/** The operators known: ONNX names, or `domain:Name` outside the standard set. */
export type OperatorName = keyof typeof families;

/** One entry for each operator, total by type. */
export const operators: { readonly [K in OperatorName]: Operator } = families;

type Named = Pick<Node, 'op' | 'domain'>;

const keyOf = ({ op, domain }: Named): string => (domain === '' || domain === 'ai.onnx' ? op : `${domain}:${op}`);
const isKnown = (key: string): key is OperatorName => Object.hasOwn(operators, key);

export const hasOperator = (node: Named): boolean => isKnown(keyOf(node));

/** The entry of a node's operator. Throws GhostgradError when the table has none. */
export function operatorOf(node: Pick<Node, 'op' | 'domain' | 'name'>): Operator {
  const key = keyOf(node);
  if (isKnown(key)) return operators[key];
  const near = nearest(key, Object.keys(operators));
  throw new GhostgradError({
    what: `unsupported operator ${key}`,
    where: showNode(node),
    found: key,
    expected: `an operator of the table${near === undefined ? '' : `; the nearest name there is ${near}`}`,
    fix: 'replace the operator by supported ones before export, or add an entry for it under src/ops/',
  });
}

/** Why no gradient flows back through a node; undefined where its operator's gradient rule holds. */
export function noGradientOf(context: ObstacleContext): NoGradient | undefined {
  const { gradient, obstacle } = operatorOf(context.node);
  return 'reason' in gradient ? gradient : obstacle?.(context);
}

/** What specialisation needs to know of the table. */
export const semantics: OperatorSemantics = {
  infer: (node, inputs, constants) => operatorOf(node).shape({ node, inputs, constants }).slice(0, node.outputs.length),
  fold: (node, inputs, constants) => {
    const { fold: rule, foldsTypes } = operatorOf(node);
    const given = node.inputs.findLastIndex((v) => v !== '') + 1;
    const known = constants.slice(0, given).filter((t) => t !== undefined);
    return known.length === given || foldsTypes === true ? rule?.({ node, inputs, constants: known }) : undefined;
  },
};
