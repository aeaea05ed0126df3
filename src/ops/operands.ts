import { GhostgradError } from '../errors.ts';
import { showNode } from '../graph/ir.ts';
import type { TensorType } from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';
import type { Value } from './builder.ts';
import type { BatchViolation, OperandContext, ParameterContext } from './operator.ts';

/** Type of a required input. Throws GhostgradError when it is omitted. */
export function operand({ node, inputs }: OperandContext, index: number): TensorType {
  const found = inputs[index];
  if (found === undefined) {
    throw new GhostgradError({
      what: `input ${index} of ${node.op} is required`, where: showNode(node), found: 'an omitted input',
      fix: 'export the model again, or repair the node',
    });
  }
  return found;
}

/** The error for operands that an operator cannot take. */
export const badOperands = ({ node }: Pick<OperandContext, 'node'>, found: string, expected: string): GhostgradError =>
  new GhostgradError({
    what: `${node.op} cannot take these operands`, where: showNode(node), found, expected,
    fix: 'check the shapes given for the model\'s inputs, or export the model again',
  });

/** What is written out as one node, or one number, for each of its parts has at most this many. */
const maximumUnrolled = 100_000;

/** Throws GhostgradError where a node would have to be written out in too many parts. */
export function requireUnrolled({ node }: Pick<OperandContext, 'node'>, parts: number, what: string, most = maximumUnrolled): void {
  if (parts <= most) return;
  throw new GhostgradError({
    what: `${node.op} over ${what} of ${parts} entries`, where: showNode(node), expected: `at most ${most}`,
    fix: 'check the sizes that the model declares and the shapes given for its inputs',
  });
}

/** The gradient of an output that is known to have one. */
export function outputGradient(
  { node, outputGradients }: Pick<ParameterContext, 'node' | 'outputGradients'>, index = 0,
): Value {
  const found = outputGradients[index];
  if (found === undefined) throw new Error(`no gradient reaches output ${index} of ${showNode(node)}`);
  return found;
}

/** Where a value that a parameter meets carries the batch. Throws GhostgradError where the parameter meets no data. */
export function batchOf({ node }: Pick<ParameterContext, 'node'>, batch: BatchAxis | undefined): BatchAxis {
  if (batch === undefined) {
    throw new GhostgradError({
      what: 'a trainable parameter is used before it meets the data', where: showNode(node),
      expected: 'an operator that combines the parameter with values of the examples',
      fix: 'fold that computation into the parameter, or freeze the parameter',
    });
  }
  return batch;
}

export const violation = (axis: number, what: string, fix: string): BatchViolation => ({ violation: what, axis, fix });
