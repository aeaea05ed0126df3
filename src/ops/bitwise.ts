import { intAttribute, showType, stringAttribute } from '../graph/ir.ts';
import { dataTypeName, dtypeOf } from '../graph/onnx.ts';
import { type DType, bytesPerElement, isFloat } from '../tensor/tensor.ts';
import { foldElementwise } from './fold.ts';
import { badOperands, operand } from './operands.ts';
import type { OperandContext, Operator } from './operator.ts';
import { elementwiseBatch, elementwiseShape, noGradientFlows, rowwise } from './rules.ts';

const isWhole = (dtype: DType): boolean => !isFloat(dtype) && dtype !== 'bool';

function wholeOperands(context: OperandContext, count: number): void {
  for (let i = 0; i < count; i++) {
    const type = operand(context, i);
    if (!isWhole(type.dtype)) throw badOperands(context, showType(type), 'whole numbers');
  }
}

/** A function of the bits of whole numbers. Two's complement of any width is what bigint computes. */
const onBits = (f: (x: bigint, y: bigint, context: { readonly left: boolean }) => bigint, count: number): Operator => ({
  shape: (context) => {
    wholeOperands(context, count);
    return elementwiseShape(undefined, count)(context);
  },
  batch: elementwiseBatch, gradient: noGradientFlows,
  fold: (context) => {
    const left = stringAttribute(context.node, 'direction', '') === 'LEFT';
    return foldElementwise((x, y = 0n) => f(BigInt(x), BigInt(y), { left }))(context);
  },
});

/** The same bits as another type of the same width. */
const bitCast: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    const to = intAttribute(context.node, 'to', 0);
    const dtype = dtypeOf(to);
    if (dtype === undefined || bytesPerElement(dtype) !== bytesPerElement(x.dtype)) {
      throw badOperands(context, `${x.dtype} to ${dataTypeName(to)}`, 'types of equal width');
    }
    return [{ dtype, shape: x.shape }];
  },
  batch: rowwise, gradient: noGradientFlows,
};

/** Whole numbers as bits; nothing flows back through them. */
export const bitwise = {
  BitwiseAnd: onBits((x, y) => x & y, 2),
  BitwiseOr: onBits((x, y) => x | y, 2),
  BitwiseXor: onBits((x, y) => x ^ y, 2),
  BitwiseNot: { ...onBits((x) => ~x, 1), batch: rowwise },
  BitShift: onBits((x, y, { left }) => (left ? x << y : x >> y), 2),
  BitCast: bitCast,
} satisfies Record<string, Operator>;
